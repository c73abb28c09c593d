"""A part of the user's own that is chosen by its class: ``sampler=my_samplers.Mine``, without a YAML file."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

from dllm.common.errors import Refusal
from dllm.compose.choice_files import without_markup
from dllm.compose.config_choices import add_class
from dllm.compose.parts import arguments_of, class_of, takes_part

_CHOICE = re.compile(r"(sampler|blocks|cache|eos|sampler[/.]inner)(\._target_)?=(.*)", re.DOTALL)
_CLASS = re.compile(r"(?!dllm\.)[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)


def with_own_classes(overrides: Sequence[str]) -> list[str]:
    """The overrides, once every MODULE.CLASS among them is a choice of its group, with the options of the class.

    ``sampler._target_=MODULE.CLASS`` then means ``sampler=MODULE.CLASS``, which brings no options of another sampler
    along. Other processes do not know these choices: under a launcher of Hydra's, nothing changes. Raises UserError
    for a class that is not there, or of another kind.
    """
    if any(text.startswith("hydra/launcher=") for text in overrides):
        return list(overrides)
    groups = [text.partition("=")[0] for text in overrides]
    texts = [_with_class(text, groups) for text in overrides]
    changed = [text for text, now in zip(overrides, texts, strict=True) if text != now]
    added = tuple(f"+{text.partition('._target_=')[0]}." for text in changed)
    return [text[1:] if added and text.startswith(added) else text for text in texts]  # the option is there now


def _with_class(text: str, groups: Sequence[str]) -> str:
    match = _CHOICE.fullmatch(text)
    if match is None:
        return text
    group, by_target, value = match[1].replace(".", "/"), match[2] is not None, match[3]
    names = [name.strip().strip("'\"") for name in value.split(",")]
    classes = [name for name in names if _CLASS.fullmatch(name)]
    if not classes or (by_target and group in groups) or (match[1] == "sampler.inner" and not by_target):
        return text
    for name in classes:
        _store(group, name, by_target)
    return f"{group}={value}" if by_target else text


def _store(group: str, name: str, by_target: bool) -> None:
    """Make the class a choice of its group."""
    place = group.replace("/", ".")
    try:
        kind = class_of(place, name)
    except Refusal as error:
        raise (error if by_target else error.about(group)) from None
    arguments = arguments_of(kind)
    node: dict[str, Any] = {"_target_": name, **{key: _default(argument) for key, argument in arguments.items()}}
    if "inner" in arguments and takes_part(arguments["inner"]):  # as the file of a wrapper has it
        node = {"defaults": [{"inner": "confidence"}, "_self_"], **{k: v for k, v in node.items() if k != "inner"}}
    add_class(group.partition("/")[0], name, node, without_markup((vars(kind).get("__doc__") or "").split("\n")[0]))


def _default(argument: inspect.Parameter) -> Any:
    """An argument's default as the configuration has it. None: it has none, or one that is not data."""
    value = argument.default
    return list(value) if isinstance(value, tuple) else value if isinstance(value, bool | int | float | str) else None
