"""Words, flags and sentences that people bring from other programs: what to write instead, with the value they gave.

Each function returns what follows ``X is not a setting here: ``, such as ``write sampler.threshold=0.5``, or None where
what was meant cannot be known.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from dllm.common.errors import Set
from dllm.common.hints import as_advice, as_listed, meaning, other_choice, typed
from dllm.compose.config_choices import choices, config_groups, options_of_choices
from dllm.compose.parts import composed
from dllm.record.folders import flatten

SEARCHED = ("task", "model", "sampler", "blocks", "cache", "eos", "length", "constraint", "engine")  # in this order
UNSETTABLE = ("task.name", "task.run", "model.name")  # what the files of choices say, and no user sets
MOST_OWNERS = 4


def setting_values(config: DictConfig) -> dict[str, Any]:
    """Everything that can be set, by its dotted name, with its value as it is written."""
    ours = OmegaConf.masked_copy(config, [name for name in map(str, config) if name != "hydra"])
    values = flatten(cast(dict[str, Any], OmegaConf.to_container(ours, resolve=False)))
    return {name: value for name, value in values.items() if not name.rpartition(".")[2].startswith("_")}


def of_setting(word: str, value: str | None, settings: Mapping[str, Any]) -> str | None:
    """What sets what ``word`` sets elsewhere. value: as typed; None: a flag without one. settings: what can be set
    beside the choices, with their values."""
    group, _, name = as_listed(word).rpartition(".")
    if as_listed(word) in settings or as_listed(word) in config_groups():
        return f"write {as_listed(word)}={_advised_value(as_listed(word), value, settings)}"
    advice = meaning(name, value, settings.__contains__)
    if group:
        inside = isinstance(advice, Set) and all(key.startswith(f"{group}.") for key in advice.all)
        return as_advice(advice) if advice is not None and inside else None
    keys = [key for key in settings if key.endswith(f".{name}") and key not in UNSETTABLE]
    if keys and (advice is None or isinstance(advice, str) or keys != [*advice.all]):
        return f"write {' or '.join(f'{key}={_advised_value(key, value, settings)}' for key in keys)}"
    return _owned(name, value) if advice is None else as_advice(advice)


def _advised_value(key: str, value: str | None, settings: Mapping[str, Any]) -> str:
    """The value of a flag that had none: what switches it on, or a word that stands for one."""
    if value is not None:
        return typed(value)
    return "NAME" if key in config_groups() else "true" if str(settings.get(key)).lower() == "false" else "VALUE"


def _owned(name: str, value: str | None) -> str | None:
    """An option of a choice that was not made."""
    for group in SEARCHED:
        owners = [choice for choice, options in options_of_choices(group).items() if name in options]
        if owners and f"{group}.{name}" not in UNSETTABLE:
            best = Set(group, owners[0]) & Set(f"{group}.{name}", "VALUE" if value is None else value)
            others = "..." if len(owners) > MOST_OWNERS else f"{group}={f' or {group}='.join(owners[1:])}"
            return as_advice(best) + (f", or {others} with it" if len(owners) > 1 else "")
    return None


def of_flag(flag: str, following: Sequence[str], settings: Mapping[str, Any]) -> tuple[str, str | None]:
    """``--port 8001`` as it was typed, and what to write for it. following: the words after the flag."""
    word, equals, value = flag.partition("=")
    argument = following[0] if following and not equals and _is_value(following[0]) else value if equals else None
    text = flag if equals or argument is None else f"{flag} {typed(argument)}"
    return text, of_setting(word, argument, settings)


def _is_value(word: str) -> bool:
    return bool(re.fullmatch(r"-?\d.*", word)) or not (word.startswith("-") or re.match(r"[\w./@+~]+=", word))


def of_bare_word(word: str, settings: Mapping[str, Any]) -> str | None:
    """What was meant by a word without ``=``: a prompt, a choice, a model, a file, or a setting's name."""
    if re.search(r"\s", word.strip()):
        return prompt_of(word)
    matches = [f"{group}={name}" for group in SEARCHED for name in choices(group) if name == word.casefold()]
    if matches:
        return f"write {' or '.join(matches)}"
    if Path(word).is_file():
        return f"write prompts={word}" if word.endswith((".jsonl", ".json")) else None
    if (advice := of_model(word)) is not None:
        return advice
    return of_setting(word, None, settings) if re.fullmatch(r"[\w.-]+", word) else None


def prompt_of(text: str) -> str:
    """A sentence as the prompt that it was meant to be."""
    escaped = typed(text).encode("unicode_escape").decode().replace("'", r"\'")
    quoted = shlex.quote(typed(text)) if text.isprintable() else f"$'{escaped}'"
    return f"a prompt is written prompt={quoted}"


def hub_models() -> dict[str, str]:
    """The choices of ``model`` by their ids on the hub, in small letters."""
    models = options_of_choices("model").items()
    return {str(options["path"]).casefold(): name for name, options in models if "path" in options}


def of_model(value: str) -> str | None:
    """A checkpoint given by folder, hub id, or its name in another case."""
    models, hubs = choices("model"), hub_models()
    if value.casefold() in hubs:
        return f"write model={hubs[value.casefold()]}"
    names = {hub.rpartition("/")[2]: name for hub, name in hubs.items()} | {name.casefold(): name for name in models}
    entry = names.get(value.rstrip("/").rpartition("/")[2].casefold())
    if "/" in value or Path(value).is_dir():
        return f"write {f'model={entry} ' if entry else ''}model.path={value}"
    return f"write model={entry}" if entry else None


def of_choice(group: str, value: str) -> str | None:
    """The choice of ours that a word of elsewhere is: ``low_confidence`` for a sampler, a folder for a model."""
    if group == "model" and (advice := of_model(value)) is not None:
        return advice
    if (other := other_choice(group, value)) is not None:
        return as_advice(other)
    same = [name for name in choices(group) if as_listed(name) == as_listed(value)]
    return f"write {group}={same[0]}" if same else None


def values_beside(arguments: Sequence[str]) -> dict[str, Any]:
    """What can be set beside the choices of a command line that exist."""
    pairs = [(text, *text.partition("=")[::2]) for text in arguments]
    return setting_values(
        composed([text for text, group, name in pairs if group in SEARCHED and name in choices(group)])
    )
