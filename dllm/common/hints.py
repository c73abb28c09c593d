"""What a word of the table means here, written in the words of the command line, of Python, or of a request."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from inspect import Parameter, signature
from operator import and_
from typing import Any

from dllm.common.errors import COMMAND_LINE, PYTHON, Refusal, Set, UserError, Wording, nearest
from dllm.common.hint_table import INSTEAD, INSTEAD_IN_REQUESTS, OTHER_CHOICES, SERVERS_OWN, SETTINGS

Meant = Set | str  # what to write here, or a sentence with placeholders where there is no such setting
OptionsOf = Callable[[str], Mapping[str, Mapping[str, object]]]  # the options of each choice of a group
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}
_PARTS = ("sampler", "blocks", "cache", "eos", "length", "constraint")  # what Decoder takes
# Settings of model= that are load's.
_LOADING = ("path", "device", "dtype", "mask_id", "quantize", "quantize_head", "activations", "adapter")
_SHOWN, _LONGEST = 60, 200  # characters of a value in a sentence, and of a request's field
_JOINED = {word.replace("_", ""): word for word in (*INSTEAD, *SETTINGS)}


def meaning(word: str, value: Any, has: Callable[[str], bool], words: Wording = COMMAND_LINE) -> Meant | None:
    """What a word from elsewhere means here; None: unknown. value: as given; None: a flag without one. has: whether the
    choices made have an option. words: of whoever wrote it."""
    word = as_listed(word)
    if word in INSTEAD:
        return INSTEAD_IN_REQUESTS.get(word, INSTEAD[word]) if words.form == "json" else INSTEAD[word]
    entry = SETTINGS.get(word)
    if entry is None:
        return None
    if isinstance(entry, Mapping):
        entry = entry.get("true" if value is None else str(value).lower(), entry[""])
    elif isinstance(entry, tuple):
        entry = next((one for one in entry if has(one.partition("=")[0])), entry[-1])
    return _settings((key, _filled(key, pattern, value)) for key, pattern in _pairs(entry))


def other_choice(group: str, value: str) -> Set | None:
    """What to write for a choice by its name elsewhere; None: unknown."""
    listed = OTHER_CHOICES.get(group, {}).get(as_listed(value))
    return None if listed is None else _settings(_pairs(listed))


def as_advice(meant: Meant, words: Wording = COMMAND_LINE, chosen: Mapping[str, str] | None = None) -> str:
    """``write sampler=static sampler.steps=16``, the same in other words, or the sentence. chosen: the names of the
    parts that a program has chosen, by their groups."""
    if isinstance(meant, str):
        own = words.form == "json" and any(words.field(name) is None for name in Refusal(meant).places if name)
        return SERVERS_OWN if own else words.filled(meant, {})
    if words.form == "keywords":
        return f"write {', '.join(_in_python(meant.all, chosen or {}))}"
    if words.form == "json":
        text = json.dumps(_body(meant.all, words), ensure_ascii=False, default=str)[1:-1]
        return f"write {text if len(text) <= _LONGEST else f'{text[:_LONGEST]}...'}" if text else SERVERS_OWN
    return f"write {' '.join(f'{key}={typed(value)}' for key, value in meant.all.items())}"


def refuse_unknown(
    called: str,
    function: Callable[..., object],
    unknown: Mapping[str, object],
    more: Sequence[str] = (),
    chosen: Mapping[str, str] | None = None,
    options_of: OptionsOf | None = None,
) -> None:
    """Raise UserError for keywords that a function does not have. called: its name for people. more: names that it has
    beside its own. chosen: the names of the parts chosen, by their groups, whose options people give to the whole
    (``Decoder(model, threshold=0.5)``)."""
    if not unknown:
        return
    name, value = next(iter(unknown.items()))
    chosen = chosen or {}
    there = {group: {} if options_of is None else options_of(group) for group in chosen}

    def has(key: str) -> bool:
        group, _, option = key.partition(".")
        return option in there.get(group, {}).get(chosen.get(group, ""), {})

    own = next((Set(f"{group}.{name}", value) for group in chosen if has(f"{group}.{name}")), None)
    meant = own or meaning(name, value, has, PYTHON) or _owned(name, value, there)
    if meant is not None:
        raise UserError(f"{called} has no argument {name!r}: {as_advice(meant, PYTHON, chosen)}.")
    kinds = signature(function).parameters.items()
    names = [key for key, parameter in kinds if key != "self" and parameter.kind is not Parameter.VAR_KEYWORD]
    names += more
    raise UserError(f"{called} has no argument {name!r}; it has {', '.join(names)}.{nearest(as_listed(name), names)}")


def _owned(name: str, value: object, there: Mapping[str, Mapping[str, Mapping[str, object]]]) -> Set | None:
    """An option of a part that was not chosen."""
    owners = [
        (group, choice) for group, choices in there.items() for choice, options in choices.items() if name in options
    ]
    return Set(*owners[0]) & Set(f"{owners[0][0]}.{name}", value) if owners else None


def as_listed(word: str) -> str:
    """A word as the table has it: ``--Max-New-Tokens`` and ``maxNewTokens`` are ``max_new_tokens``."""
    word = word.lstrip("-").replace("-", "_").lower()
    return word if word in SETTINGS or word in INSTEAD else _JOINED.get(word.replace("_", ""), word)


def typed(value: Any) -> str:
    """A value as the command line takes it, shortened."""
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _pairs(entry: str) -> list[tuple[str, str]]:
    return [(key, pattern) for key, equals, pattern in (one.partition("=") for one in entry.split(" ")) if equals]


def _settings(pairs: Iterable[tuple[str, Any]]) -> Set:
    return reduce(and_, (Set(*pair) for pair in pairs))


def _filled(key: str, pattern: str, value: Any) -> Any:
    value = "VALUE" if value is None else value
    if pattern != "{}":
        return pattern.replace("{}", str(value)) if "{}" in pattern else {"true": True}.get(pattern, pattern)
    if key == "model.dtype":
        name = str(value).removeprefix("torch.")
        return _DTYPES.get(name, name)
    return value


def _body(settings: Mapping[str, Any], words: Wording) -> dict[str, Any]:
    """The fields of a request that say it: a part with options, or a form, is an object."""
    body: dict[str, Any] = {}
    for place, value in settings.items():
        if words.field(place) is None:
            continue
        *path, last = words.name(place).split(".")
        node = body
        for step in path:
            held = node.setdefault(step, {})
            if not isinstance(held, dict):  # what the setting before it chose
                held = node[step] = {"type" if place.partition(".")[0] in words.typed else "name": held}
            node = held
        node[last] = value
    return body


def _in_python(settings: Mapping[str, Any], chosen: Mapping[str, str]) -> list[str]:
    """Each setting as the argument that it is, of Decoder, of its call, or of ``load``."""
    out, parts = [], {key.partition(".")[0] for key in settings} & {*_PARTS}
    for group in sorted(parts):
        options = {key.partition(".")[2]: value for key, value in settings.items() if key.startswith(f"{group}.")}
        name = settings.get(group, chosen.get(group, "NAME"))
        given = "".join(f", {key}={value!r}" for key, value in options.items())
        out.append(f'{group}=part("{group}", "{name}"{given})' if options else f'{group}="{name}"')
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
