"""``python run.py --help``: what there is to choose and to set, from the configuration's own files.

A choice is explained by the comment on top of its YAML file, or else by the first sentence of the module that it names;
a setting by the comment after it. No module is imported for that, so help comes at once.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Collection, Iterator, Sequence
from typing import cast

from omegaconf import DictConfig

from dllm.app.command_line.commands import COMMANDS, FILTER, TUNE
from dllm.app.command_line.foreign_words import UNSETTABLE, setting_values
from dllm.app.command_line.program import program
from dllm.compose.choice_files import choice_notes, choice_summary, comments
from dllm.compose.config_choices import SHIPPED, choices, config_groups
from dllm.compose.parts import composed

EXAMPLES = r"""
python run.py                                   the default prompt with a small model that comes along
python run.py prompt=$'Sort the list:\n["Kai", "Emma", "Hugo"]'
python run.py prompts=FILE batch_size=8         a JSON-lines file, one {"prompt": "..."} per line
python run.py chat=true                         a conversation
python run.py sampler=static sampler.steps=16   another sampler, and one of its options
python run.py model=llada-8b-instruct model.path=FOLDER
python run.py resume=FOLDER                     resume a run that was stopped
python run.py again=FOLDER                      decode a run once more, and say whether it is equal
python run.py trace=true                        keep every turn, and a page to look at them
python run.py task=parallelbench                score a benchmark
python run.py -m experiment=small name=NAME     a grid of methods; then: python run.py report FOLDER
python run.py experiment=published/prefix model.path=FOLDER   a paper's settings, its figures beside yours
python run.py task=replay trace=FILE            check a trace that trace=true left
python run.py task=serve                        serve it: OpenAI's interface, a playground; dllm serve is the same
python run.py task=check model.path=FOLDER      look into a checkpoint without loading it
python run.py sampler=credit --help             the options of another choice
"""
SERVE_EXAMPLES = """
python run.py                                   serve the small model that comes along, on port 8000
python run.py model=llada-8b-instruct model.path=FOLDER
python run.py task.port=8001 task.host=0.0.0.0 task.api_key_file=FILE   for other machines
python run.py sampler=credit cache=dual         what holds where a request says nothing
"""
FIRST_GROUPS = ("model", "sampler", "blocks", "cache", "eos", "length", "constraint", "task", "engine", "experiment")


def help_text(arguments: Sequence[str], width: int | None = None) -> str:
    """The whole help, with the settings that ``arguments`` change."""
    width, config = width or _terminal_width(), _composed(arguments)
    names = chosen_names(config)
    lines = [
        f"Decode masked diffusion language models: {program()} NAME=VALUE ...",
        "",
        *textwrap.indent(examples(), "  ").splitlines(),
        "",
        "To choose from (NAME=CHOICE; * marks what is chosen now):",
        "",
        *choice_lines(names, width),
        "Settings (NAME=VALUE; as they are set now):",
        "",
        *setting_lines(config, names, width),
        "",
        "The rule inside a wrapper is chosen by sampler/inner=NAME.",
    ]
    return "\n".join(lines)


def command_help(name: str, arguments: Sequence[str], width: int | None = None) -> str:
    """The help of a short command: how it is used, its own settings, and where the rest is."""
    width, config, command = width or _terminal_width(), _composed(arguments), COMMANDS[name]
    names = chosen_names(config)
    hidden = {command.prefix + option for option in command.option_names} | set(UNSETTABLE)
    keys = [key for key in setting_values(config) if key.startswith(command.settings) and key not in hidden]
    space = max(len(example) for example, _ in command.examples) + 4
    lines = [f"dllm {name} {command.usage}: {command.does}", ""]
    for example, does in command.examples:
        lines += two_columns(f"  {example}", does, space, width)
    if command.options:
        lines += ["", "Options (NAME=VALUE; with their defaults):", ""]
        for option, meaning in command.options:
            lines += two_columns(f"  {option}", meaning, max(len(text) for text, _ in command.options) + 4, width)
    if keys:
        lines += ["", "Settings (NAME=VALUE; as they are set now):", "", *setting_lines(config, names, width, keys)]
    if name in ("run", "chat", "serve", "sweep"):
        groups = ("model", "sampler", "blocks", "cache", "eos", "length") + ("task",) * (name == "sweep")
        lines += ["", "To choose from:", ""]
        for group in groups:
            lines += two_columns(f"  {group}=", ", ".join(choices(group)), 12, width)
    return "\n".join([*lines, "", "Everything there is, with a line on each: dllm --help"])


def _terminal_width() -> int:
    return min(shutil.get_terminal_size((100, 24)).columns, 120)


def _composed(arguments: Sequence[str]) -> DictConfig:
    """The configuration that a command line chooses, without its flags."""
    settings = [argument for argument in arguments if argument[:1] != "-" and argument not in (TUNE, FILTER)]
    return cast(DictConfig, composed(settings, whole=True))


def examples() -> str:
    """The examples as they are typed to the program that was called."""
    lines, name = EXAMPLES.strip().splitlines(), program()
    if name == "dllm serve":
        lines = SERVE_EXAMPLES.strip().splitlines()
    return "\n".join(line.replace("python run.py", name) for line in lines)


def top_groups() -> list[str]:
    """Groups that stand by themselves, the most used first."""
    there = [group for group in config_groups() if "/" not in group]
    order = {group: place for place, group in enumerate(FIRST_GROUPS)}
    return sorted(there, key=lambda group: (order.get(group, len(order)), group))


def chosen_names(config: DictConfig) -> dict[str, str | None]:
    """The chosen name in each top group; None: nothing is chosen."""
    choices_now = config.hydra.runtime.choices
    return {group: None if choices_now.get(group) is None else str(choices_now[group]) for group in top_groups()}


def choice_lines(choice_names: dict[str, str | None], width: int) -> Iterator[str]:
    for group, now in choice_names.items():
        yield f"  {group}="
        names = choices(group)
        space = max(map(len, names)) + 8
        for name in names:
            mark = "*" if name == now else " "
            yield from two_columns(f"    {mark} {name}", choice_summary(group, name), space, width)
        yield ""


def two_columns(left: str, right: str, space: int, width: int) -> list[str]:
    """``left``, and after it ``right`` in a column of its own."""
    wrapped = [" " * space + line for line in textwrap.wrap(right, max(width - space, 30), break_on_hyphens=False)]
    if len(left) < space and wrapped:
        wrapped[0] = left + wrapped[0][len(left) :]
        return wrapped
    return [left, *wrapped]


def setting_lines(
    config: DictConfig, names: dict[str, str | None], width: int, only: Collection[str] | None = None
) -> Iterator[str]:
    """Every setting with its comment; only: the keys to show, None: all."""
    notes = comments((SHIPPED / "config.yaml").read_text())
    for group, name in names.items():
        if name is not None:
            notes |= {f"{group}.{key}": note for key, note in choice_notes(group, name).items()}
    first_prefix = "task." if names["task"] == "serve" else "\0"  # a server's operator looks for its options
    for key, value in sorted(setting_values(config).items(), key=lambda entry: not entry[0].startswith(first_prefix)):
        if key in UNSETTABLE or (only is not None and key not in only):
            continue
        text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
        name = key.rpartition(".")[2]
        place = "" if key.startswith("sampling.") else "task." if key.startswith(f"{names['task']}.") else None
        note = notes.get(key) or (None if place is None else notes.get(place + name)) or ""
        yield from two_columns(f"  {key}={text[:60]}", note, 46, width)
