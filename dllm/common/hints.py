"""What a word of the table means here, written for the command line, for Python, and for a request to the server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dllm.common.errors import UserError, nearest
from dllm.common.hint_table import INSTEAD, INSTEAD_IN_REQUESTS, OTHER_CHOICES, SERVERS_OWN, SETTINGS

OptionsOf = Callable[[str], Mapping[str, Mapping[str, object]]]  # the options of each choice of a group
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}
# A field of a server's request, by the setting of the command line that it is.
_FIELDS = {"gen_length": "max_tokens", "samples": "n", "seed": "seed", "stop": "stop", "prompt": "prompt",
          "sampling.temperature": "temperature", "sampling.top_p": "top_p", "sampling.top_k": "top_k",
          "sampling.min_tokens": "min_tokens", "sampling.forbid_eos": "ignore_eos"}  # fmt: skip
_PARTS = ("sampler", "blocks", "cache", "eos", "length")  # what a request may choose, and what Decoder takes
# Settings of model= that are load's.
_LOADING = ("path", "device", "dtype", "mask_id", "quantize", "quantize_head", "activations", "adapter")
_SHOWN, _LONGEST = 60, 200  # characters of a value in a sentence, and of a request's field
_JOINED = {word.replace("_", ""): word for word in (*INSTEAD, *SETTINGS)}
# What a response_format calls the option of a constraint.
_FORMS = {"regex": "pattern", "grammar": "grammar", "choice": "options"}


@dataclass(frozen=True)
class Meaning:
    """What a word means here."""

    settings: tuple[tuple[str, Any], ...] = ()  # names and values as the command line has them
    instead: str = ""  # a sentence where there is no such setting
    in_requests: str = ""  # the same for a request, if that is another

    def command_line(self) -> str:
        """``write sampler=static sampler.steps=16``, or the sentence."""
        return self.instead or f"write {' '.join(f'{key}={typed(value)}' for key, value in self.settings)}"

    def python(self, choices: Mapping[str, str]) -> str:
        """What to give to whom in Python. choices: the names of the parts chosen by now, by their groups."""
        return self.instead or f"write {', '.join(_in_python(dict(self.settings), choices))}"

    def request(self) -> str:
        """The field of a request that says it."""
        body = {name: value for key, value in self.settings for name in [_FIELDS.get(key)] if name is not None}
        if options := _diffusion(dict(self.settings)):
            body["diffusion"] = options
        if form := _form(dict(self.settings)):
            body["response_format"] = form
        if self.instead or not body:
            return self.in_requests or self.instead or SERVERS_OWN
        text = json.dumps(body, ensure_ascii=False, default=str)[1:-1]
        return f"write {text}" if len(text) <= _LONGEST else f"write {text[:_LONGEST]}..."


def meaning(word: str, value: Any, has: Callable[[str], bool]) -> Meaning | None:
    """What a word from elsewhere means here; None: unknown. value: as given; None: a flag without one. has:
    whether the choices made have an option."""
    word = as_listed(word)
    if word in INSTEAD:
        return Meaning((), INSTEAD[word], INSTEAD_IN_REQUESTS.get(word, ""))
    entry = SETTINGS.get(word)
    if entry is None:
        return None
    if isinstance(entry, Mapping):
        entry = entry.get("true" if value is None else str(value).lower(), entry[""])
    elif isinstance(entry, tuple):
        entry = next((setting for setting in entry if has(setting.partition("=")[0])), entry[-1])
    pairs = (setting.partition("=") for setting in entry.split(" ") if "=" in setting)
    return Meaning(tuple((key, _filled(key, pattern, value)) for key, _, pattern in pairs))


def other_choice(group: str, value: str) -> str | None:
    """What to write for a choice by its name elsewhere; None: unknown."""
    listed = OTHER_CHOICES.get(group, {}).get(as_listed(value))
    return None if listed is None else f"write {listed}"


def unknown_argument(
    called: str, name: str, value: object, known: Iterable[str], chosen: Mapping[str, str] | None = None,
    options_of: OptionsOf | None = None,
) -> UserError:  # fmt: skip
    """The error for ``called(name=value)``. known: its arguments. chosen: the names of the parts chosen, by their
    groups, whose options people give to the whole (``Decoder(model, threshold=0.5)``)."""
    chosen, names = chosen or {}, list(known)
    there = {group: {} if options_of is None else options_of(group) for group in chosen}

    def has(key: str) -> bool:
        group, _, option = key.partition(".")
        return option in there.get(group, {}).get(chosen.get(group, ""), {})

    hint = next((Meaning(((f"{group}.{name}", value),)) for group in chosen if has(f"{group}.{name}")), None)
    hint = hint or meaning(name, value, has) or _owned(name, value, there)
    if hint is not None:
        return UserError(f"{called} has no argument {name!r}: {hint.python(chosen)}.")
    return UserError(f"{called} has no argument {name!r}; it has {', '.join(names)}.{nearest(as_listed(name), names)}")


def _owned(name: str, value: object, there: Mapping[str, Mapping[str, Mapping[str, object]]]) -> Meaning | None:
    """An option of a part that was not chosen."""
    for group, choices in there.items():
        for choice, options in choices.items():
            if name in options:
                return Meaning(((group, choice), (f"{group}.{name}", value)))
    return None


def as_listed(word: str) -> str:
    """A word as the table has it: ``--Max-New-Tokens`` and ``maxNewTokens`` are ``max_new_tokens``."""
    word = word.lstrip("-").replace("-", "_").lower()
    return word if word in SETTINGS or word in INSTEAD else _JOINED.get(word.replace("_", ""), word)


def typed(value: Any) -> str:
    """A value as the command line takes it, shortened."""
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _filled(key: str, pattern: str, value: Any) -> Any:
    value = "VALUE" if value is None else value
    if pattern != "{}":
        return pattern.replace("{}", str(value)) if "{}" in pattern else {"true": True}.get(pattern, pattern)
    if key == "model.dtype":
        name = str(value).removeprefix("torch.")
        return _DTYPES.get(name, name)
    return value


def _diffusion(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a request's field ``diffusion`` holds, in its form."""
    parts: dict[str, Any] = {}
    for key, value in settings.items():
        group, _, option = key.partition(".")
        if group in _PARTS:
            parts.setdefault(group, {})[option or "name"] = value
    guidance = settings.get("sampling.guidance")
    alone = {group: part["name"] if part.keys() == {"name"} else part for group, part in parts.items()}
    return alone if guidance is None else {**alone, "guidance": guidance}


def _form(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a request's field ``response_format`` holds, in its form."""
    kind = settings.get("constraint")
    options = [value for key, value in settings.items() if key.startswith("constraint.")]
    if kind == "json_schema":
        return {"type": kind, "json_schema": {"schema": options[0]}}
    return {} if kind is None else {"type": kind, _FORMS[kind]: options[0]}


def _in_python(settings: dict[str, Any], choices: Mapping[str, str]) -> list[str]:
    """Each setting as the argument that it is, of Decoder, of its call, or of ``load``."""
    out, parts = [], {key.partition(".")[0] for key in settings} & {*_PARTS, "constraint"}
    for group in sorted(parts):
        options = {key.partition(".")[2]: value for key, value in settings.items() if key.startswith(f"{group}.")}
        name = settings.get(group, choices.get(group, "NAME"))
        arguments = "".join(f", {key}={value!r}" for key, value in options.items())
        out.append(f'{group}=part("{group}", "{name}"{arguments})' if options else f'{group}="{name}"')
    for key, value in settings.items():
        group, _, option = key.partition(".")
        if key in ("seed", "samples", "trace"):
            out.append(f"decoder(PROMPT, {key}={value!r})")
        elif key == "model.path" or key == "model":
            out.append(f"load({value!r})")
        elif group == "model" and option in _LOADING:
            out.append(f"load(PATH, {option}={value!r})")
        elif group == "sampling" or key in ("gen_length", "batch_size", "stop", "runtime"):
            out.append(f"{option or key}={value!r}")
        elif group not in parts:
            out.append(f"python run.py {key}={typed(value)}, for it is a setting of the command line")
    return out
