"""Short commands beside NAME=VALUE, such as ``dllm run "PROMPT"``.

Each stands for settings, and takes any others after it. A word without ``=`` is the prompt of ``run``, the folder of
``check``, ``quantize`` and ``report``, and else the model.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from dllm.app.command_line.foreign_words import hub_models, of_model
from dllm.common.errors import UserError, nearest
from dllm.compose.config_choices import choices, config_groups

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(/[\w./-]+\.gguf)?(@[\w./-]+)?")
SETTING = re.compile(r"[+~]{0,2}[A-Za-z_][\w./@]*=")
HUBS = ("hf.co/", "huggingface.co/")  # how Ollama's users begin a name of the hub
# Flags of Hydra's whose value is the next word.
WITH_VALUE = ("--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn", "--cfg", "-c", "--package", "-p")


@dataclass(frozen=True)
class Command:
    usage: str  # what is typed after its name
    does: str  # what it does, in a line
    stands_for: tuple[str, ...]  # the settings that it stands for
    examples: tuple[tuple[str, str], ...]  # command lines, and what each does
    settings: tuple[str, ...]  # the settings that its help lists, by name or by how their names begin
    options: tuple[tuple[str, str], ...] = ()  # of its own, as NAME=DEFAULT, and what each means
    prefix: str = ""  # of its options among the settings; empty: the command reads them itself

    @property
    def option_names(self) -> set[str]:
        return {option.partition("=")[0] for option, _ in self.options}


TUNE = "tune=true"  # what ``dllm tune`` stands for
FILTER = "train=filter"  # what ``dllm train filter`` stands for
DECODING = ("gen_length", "sampling.temperature", "sampler.", "blocks.", "cache.")
COMMANDS = {
    "run": Command(
        '[MODEL] "PROMPT" [NAME=VALUE ...]',
        "decode a prompt; of a model alone: talk to it",
        (),
        (
            ("dllm run 'Latin square: A,B,C,D'", "with the small model that comes along"),
            ("dllm run llada-8b-instruct 'Why is the sky blue?' gen_length=256", "a large one"),
            ("dllm run 'Latin square: A,B,C,D' compare=[static,eb]", "beside other samplers"),
        ),
        (*DECODING, "samples", "seed", "stop", "compare", "trace", "live", "animate"),
    ),
    "chat": Command(
        "[MODEL] [NAME=VALUE ...]",
        "talk to a model in the terminal",
        ("chat=true",),
        (("dllm chat", "with the small model"), ("dllm chat llada-8b-instruct gen_length=256", "with a large one")),
        (*DECODING, "seed", "live"),
    ),
    "serve": Command(
        "[MODEL] [NAME=VALUE ...]",
        "answer HTTP requests: OpenAI's interface and a playground",
        ("task=serve",),
        (
            ("dllm serve", "the small model, on port 8000"),
            ("dllm serve llada-8b-instruct cache=dual", "a large one"),
            ("dllm serve host=0.0.0.0 task.api_key_file=FILE", "for other machines"),
        ),
        ("task.", "gen_length", "seed", "sampling.temperature"),
        (
            ("host=127.0.0.1", "address to listen on; 0.0.0.0: all of this machine's"),
            ("port=8000", "number of the port; 0: a free one"),
        ),
        "task.",
    ),
    "check": Command(
        "MODEL [gpu=GIB] [rows=N] [length=N]",
        "look into a checkpoint, or say what fits",
        ("task=check",),
        (
            ("dllm check FOLDER", "what it holds, and whether it can be used"),
            ("dllm check llada-8b-instruct gpu=24 rows=8 length=4096", "what of it fits a card of 24 GiB"),
            ("dllm check FOLDER model.tp=8", "and what each of eight ranks holds"),
        ),
        (
            "model.adapter",
            "model.draft_adapter",
            "model.mask_id",
            "model.attention_block",
            "model.rope",
            "model.family",
            "model.tp",
            "model.ep",
            "cache.",
            "gen_length",
        ),
        (
            ("gpu=null", "GiB of a card; null: this machine's memory, when rows or length are given"),
            ("rows=null", "answers decoded together; null: 1"),
            ("length=null", "columns of each, prompt and answer; null: 4096, or what the model takes"),
        ),
        "task.",
    ),
    "fits": Command(
        "[MODEL] [NAME=VALUE ...]",
        "say whether parts go together, and which others would",
        ("task=fits",),
        (
            ("dllm fits sampler=klass cache=dual", "with the small model"),
            ("dllm fits sdar-8b sampler=freedave cache=dual", "with a large one; nothing is loaded"),
        ),
        (*DECODING, "eos."),
    ),
    "quantize": Command(
        "FOLDER model.quantize=KIND quantize.to=FOLDER2",
        "store weights in fewer bits",
        ("task=quantize",),
        (
            ("dllm quantize FOLDER model.quantize=int4 quantize.to=FOLDER2", "five bits a weight"),
            ("dllm run model.path=FOLDER2 model.dtype=bfloat16", "decode with them"),
        ),
        ("model.quantize", "model.quantize_head", "quantize.to", "model.adapter"),
    ),
    "sweep": Command(
        "NAME=VALUE,VALUE ... task=NAME",
        "score every combination of settings",
        ("-m",),
        (
            ("dllm sweep sampler=confidence,eb task=parallelbench name=mine", "two samplers on a benchmark"),
            ("dllm report runs/mine", "its tables and pictures"),
        ),
        ("name", "output", "grids", "batch_size", "gen_length"),
    ),
    "tune": Command(
        "[MODEL] task=NAME [NAME=VALUE ...]",
        "find the fastest setting that is good enough",
        (TUNE,),
        (
            ("dllm tune llada-8b-instruct prompts=FILE max_loss=0.05", "at most 5 % of the answers differ"),
            ("dllm tune task=parallelbench cost=forwards", "at most 1 % of the score is lost; fewest forwards"),
            ("dllm tune task=gsm8k sampler=eb,klass budget=20m", "a grid of your own, in 20 minutes"),
            ("dllm serve experiment=runs/NAME/tuned.yaml", "serve what was found"),
        ),
        ("name", "output", "seed", "gen_length", "batch_size"),
        (
            ("max_loss=0.01", "mean loss that a setting may have: of the score, or the share of answers that differ"),
            ("alpha=0.05", "how often the promise may fail"),
            ("cost=seconds", "what is to be small, per item: seconds, forwards or computed_tokens"),
            ("budget=null", "time that it may take, such as 90s, 20m, 2h; null: until it is done"),
            ("items=null", "how many items serve, drawn by the seed; null: all"),
            ("reference=null", "settings that quality is compared with, such as cache=dual; null: one token a forward"),
        ),
    ),
    "train": Command(
        "filter [MODEL] [NAME=VALUE ...]",
        "train the filter that sampler=learn2pd needs",
        (FILTER,),
        (
            ("dllm train filter model.path=FOLDER prompts=FILE", "saved beside the checkpoint, or in your cache"),
            ("dllm train filter mini-dream items=200", "200 prompts of the demo suite"),
            ("dllm run model.path=FOLDER sampler=learn2pd", "decode with it"),
        ),
        ("prompts", "gen_length", "batch_size", "seed", "blocks.block_length", "model.dtype", "model.device"),
        (
            ("items=null", "how many prompts serve, drawn by the seed; null: all"),
            ("epochs=4000", "full-batch steps of training; the paper's are 40,000"),
            ("out=null", "the file; null: where sampler=learn2pd finds it"),
        ),
    ),
    "report": Command(
        "FOLDER ...",
        "tables and pictures of sweeps",
        (),
        (
            ("dllm report runs/mine", "written to runs/mine/report"),
            ("dllm report runs/mine --baseline confidence", "differences against one method"),
        ),
        (),
    ),
    "diff": Command(
        "ONE OTHER",
        "where two decodes part, and what they cost: traces, or folders of runs",
        (),
        (
            ("dllm diff runs/a runs/b", "settings, the first forward that differs, score and forwards"),
            ("dllm diff runs/a/traces/1-0.json runs/b/traces/1-0.json", "what each knew there"),
        ),
        (),
    ),
    "doctor": Command(
        "",
        "say what of this installation works, and what to do about the rest",
        (),
        (("python -m dllm doctor", "works where nothing else does"),),
        (),
    ),
    "pull": Command(
        "NAME",
        "fetch a checkpoint of the hub, or go on with it",
        (),
        (
            ("dllm pull tiny-a2d", "by its word here"),
            ("dllm pull owner/name@v1", "by its name on the hub"),
            ("dllm pull hf.co/owner/name:Q4_K_M", "a GGUF file, as Ollama's users write it"),
        ),
        (),
    ),
    "list": Command("", "the checkpoints on this machine", (), (("dllm list", "names and sizes"),), ()),
}


WORD_COMMANDS = ("report", "diff", "doctor", "pull", "list")  # they take words alone, and have their own help


def with_command(arguments: Sequence[str]) -> list[str]:
    """The arguments without a command: what it stands for, and what its bare words set. Raises UserError for a word
    too many, or one that no model is."""
    if not arguments or arguments[0] not in COMMANDS or arguments[0] in WORD_COMMANDS:
        return list(arguments)
    name, rest = arguments[0], list(arguments[1:])
    is_bare = [
        not word.startswith("-") and not SETTING.match(word) and before not in WITH_VALUE
        for before, word in zip([name, *rest], rest, strict=False)
    ]
    bare = [word for word, alone in zip(rest, is_bare, strict=True) if alone]
    settings = [word for word, alone in zip(rest, is_bare, strict=True) if not alone]
    command = COMMANDS[name]
    settings = [command.prefix + word if is_option(word, command.option_names) else word for word in settings]
    return [*command.stands_for, *_set(name, bare), *settings]


def is_option(word: str, names: Container[str]) -> bool:
    """Whether a word sets one of a command's own options. A number does also where a group of parts has the name, as
    ``length`` has."""
    name, equals, value = word.partition("=")
    return bool(equals) and name in names and (name not in config_groups() or bool(re.match(r"[-+.\d]", value)))


def _set(name: str, bare: Sequence[str]) -> list[str]:
    """The settings that a command's words without ``=`` are."""
    words = list(bare)
    if name == "train" and words and words.pop(0) != "filter":
        raise UserError(f"dllm train trains a filter: write dllm train {COMMANDS[name].usage}.")
    if name == "run" and len(words) == 1 and (words[0].casefold() in choices("model") or words[0].startswith(HUBS)):
        return ["chat=true", *_model(name, words[0])]
    prompt = [f"prompt={words.pop()}"] if name == "run" and words else []
    if len(words) > (name != "sweep"):
        usual = f"dllm {name} {COMMANDS[name].usage}"
        raise UserError(f"{words[0]!r} is not a setting: write {usual}; dllm {name} --help has examples.")
    return [*(setting for word in words for setting in _model(name, word)), *prompt]


def _model(name: str, word: str) -> list[str]:
    """A model by its name here, its name on the hub, or its folder."""
    if name == "quantize" or (name == "check" and word.casefold() not in {*choices("model"), *hub_models()}):
        return [f"model.path={word}"]
    for prefix in HUBS:
        if word.startswith(prefix):
            return [f"model.path={word.removeprefix(prefix)}"]
    hubs = hub_models()
    if word.casefold() in choices("model"):
        return [f"model={word.casefold()}"]
    if word.casefold() in hubs:
        return [f"model={hubs[word.casefold()]}"]
    place = Path(word).expanduser()
    # as ``dllm.models.formats.gguf_file.is_gguf`` has it, whose import takes seconds
    if place.is_dir() or (place.suffix.lower() == ".gguf" and place.is_file()) or HUB_NAME.fullmatch(word):
        return [f"model.path={word}"]
    way_out = f"Name a folder, a .gguf file, or one of {', '.join(choices('model'))}"
    prompt_hint = f"; a prompt is written dllm run {word!r}" if re.search(r"\s", word) else ""
    near = of_model(word) or ""
    hint = f" Did you mean {near.removeprefix('write model=')!r}?" if near else nearest(word, choices("model"))
    raise UserError(f"{word!r} is not a model. {way_out}{prompt_hint}.{hint}")
