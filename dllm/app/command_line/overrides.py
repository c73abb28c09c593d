"""Flags and settings of a command line, and the quotes that Hydra's grammar wants and people leave out."""

from __future__ import annotations

import os
import re
from argparse import Namespace
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import NoReturn

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.main import get_args_parser

from dllm.app.command_line.foreign_words import of_flag, values_beside
from dllm.app.command_line.program import program
from dllm.common.errors import UserError, nearest

# with what a list or mapping begins, where it may be one
STRUCTURED = {"stop": "[", "constraint.schema": "{", "constraint.functions": "["}
TEXT_SETTINGS = ("prompt", "constraint.pattern", "constraint.grammar", *STRUCTURED)
PATH_SETTINGS = ("prompts", "trace", "resume", "again", "name", "output", "model.path")


SHOW_FLAGS = ("cfg", "info")  # Hydra's flags that show a configuration instead of running it
PASSED_FLAGS = (*SHOW_FLAGS, "resolve", "config_dir")
OTHER_FLAGS = ("hydra_help", "shell_completion", "package", "config_path", "config_name", "experimental_rerun")
USUAL_FLAGS = ("--help", "--version", "--multirun", "--cfg", "--info", "--config-dir")  # that a misspelt one may mean


def flags_of(arguments: Sequence[str]) -> tuple[Namespace, list[str]]:
    """The arguments as Hydra's own parser reads them, and its flags beside -m as words of a command line.

    Raises UserError for a flag that is not offered, lacks its value, or contradicts another.
    """
    parser = get_args_parser()
    parser.error = partial(refuse_flags, arguments=arguments)
    flags = parser.parse_intermixed_args(list(arguments))
    for name in OTHER_FLAGS:
        if getattr(flags, name):
            refuse_flags(f"--{name.replace('_', '-')} is not offered")
    shows = [name for name in (*SHOW_FLAGS, "multirun") if getattr(flags, name)]
    if len(shows) > 1:
        refuse_flags(f"--{shows[0]} and --{shows[1]} exclude each other")
    if flags.resolve and not flags.cfg:
        refuse_flags("--resolve goes with --cfg")
    values = [(name.replace("_", "-"), getattr(flags, name)) for name in PASSED_FLAGS if getattr(flags, name)]
    return flags, [word for name, value in values for word in (f"--{name}", value) if word is not True]


def config_folder(arguments: Sequence[str]) -> Path | None:
    """The folder of the user's own choices that the arguments name, before anything else of them is read."""
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        flag, equals, value = word.partition("=")
        if flag == "-cd" or (len(flag) > len("--config-") and "--config-dir".startswith(flag)):
            return Path(value if equals else following)
    return None


def refuse_flags(message: str, arguments: Sequence[str] = ()) -> NoReturn:
    """Raise UserError where Hydra would print its usage, with what to write for a flag of another program."""
    unknown = re.match(r"unrecognized arguments: (\S+)|argument (--\w+)/.*invalid choice", message)
    if unknown:
        word = unknown[1] or unknown[2]
        at = next((at for at, word_at in enumerate(arguments) if word_at.startswith(word)), len(arguments))
        text, advice = of_flag(" ".join(arguments[at : at + 1]), arguments[at + 1 :], values_beside(arguments))
        if advice is not None:
            raise UserError(f"{text} is not a flag here: {advice}.")
        hint = nearest(word, USUAL_FLAGS)
        raise UserError(f"{message}.{hint} Settings are NAME=VALUE; {program()} --help lists them.")
    raise UserError(f"{message}. Settings are NAME=VALUE; {program()} --help lists them.")


def hydra_quoted(arguments: Sequence[str]) -> list[str]:
    """Arguments as Hydra's grammar wants them: ``prompt=Sort: [b, a]`` needs no second pair of quotes."""
    return [_quoted(argument) for argument in at_home(arguments)]


def at_home(arguments: Sequence[str]) -> list[str]:
    """A value that begins with ``~`` is in the home folder, which bash writes out only where a word begins."""
    return [_at_home(argument) for argument in arguments]


def _at_home(argument: str) -> str:
    key, equals, value = argument.partition("=")
    if not equals or key.lstrip("+") in TEXT_SETTINGS or not re.match("['\"]?~", value):
        return argument
    if value[0] == "~":
        whole = f"{key}={','.join(os.path.expanduser(path) for path in value.split(','))}"  # noqa: PTH111
        return whole if key.startswith("-") or parsed_override(whole) else f"{key}={hydra_quote(whole[len(key) + 1 :])}"
    return f"{key}={hydra_quote(os.path.expanduser(value[1:-1]))}" if value[-1] == value[0] else argument  # noqa: PTH111


def _quoted(argument: str) -> str:
    key, equals, value = argument.partition("=")
    if key == "compare" and "=" in value and parsed_override(argument) is None:  # choices: compare=[cache=a,cache=b]
        return f"compare=[{','.join(map(hydra_quote, re.split(r' *, *', value.strip('[] '))))}]"
    if not equals or key not in TEXT_SETTINGS + PATH_SETTINGS or value == "null":
        return argument
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" and parsed_override(argument) is not None:
        return argument
    if key in STRUCTURED and value.startswith(STRUCTURED[key]) and parsed_override(argument) is not None:
        return argument
    if key in PATH_SETTINGS and value and parsed_override(argument) is not None:
        return argument
    return f"{key}={hydra_quote(value)}"


def hydra_quote(value: str) -> str:
    """Text in Hydra's single quotes: backslashes count only before a quote, ``${`` would be an interpolation."""
    value = re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", value)
    return "'" + re.sub(r"(\\*)('|\Z)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), value) + "'"


@lru_cache(4096)  # each argument is parsed several times
def parsed_override(argument: str) -> Override | None:
    """An argument as Hydra reads it; None when it is not a setting."""
    try:
        return OverridesParser.create().parse_override(argument)
    except HydraException:
        return None


def setting_names(overrides: Sequence[str]) -> list[str]:
    return [str(override.key_or_group) for override in OverridesParser.create().parse_overrides(list(overrides))]
