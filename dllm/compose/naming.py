"""What the parts of a resolved configuration are called: by the names that were typed, with the options of their own.

The command line keeps the typed names under ``choices``, by place: ``{"cache": "dpad", "sampler.inner": "localleap"}``.
A configuration without them, as of Python or of an older version, is named after the choices that hold its classes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from dllm.common.digest import digest
from dllm.common.errors import UserError
from dllm.compose.config_choices import choice_of, choice_text, choices, options_of_choices
from dllm.compose.parts import arguments_of, class_of, is_part
from dllm.compose.trusted import is_known

CHOICES = "choices"
_LONG = 40  # characters of a value that a label shows whole
Config = Mapping[str, Any]


def typed_choices(config: Config, hydra_choices: Mapping[str, Any], settings: Collection[str]) -> dict[str, str]:
    """The name that was typed for each part, by its place; none for a part whose class was set by hand. hydra_choices:
    Hydra's choices, by group. settings: those that the user set."""
    places = {group.rpartition("@")[2].replace("/", "."): name for group, name in hydra_choices.items()}
    return {
        place: str(name)
        for place, name in places.items()
        if name is not None and isinstance(part_at(config, place), Mapping) and f"{place}._target_" not in settings
    }


def implied_choices(config: Config, settings: Collection[str]) -> list[str]:
    """Choices that a chosen part brings along and the user did not make: ``cache=elastic brings blocks=whole``."""
    names = config.get(CHOICES) or {}
    texts = {
        f"{group}={name}": choice_text(group, name)
        for group, name in names.items()
        if "." not in group and name in choices(group)
    }
    return [
        f"{source} brings {other}={choice}"
        for source, text in texts.items()
        for other, choice in re.findall(r"override /(\w+): (\w+)", text)
        if other not in settings and names.get(other) == choice
    ]


def part_at(config: Config, place: str) -> Any:
    """What is at a dotted place; None where nothing does."""
    part: Any = config
    for name in place.split("."):
        part = part.get(name) if isinstance(part, Mapping) else None
    return part


def typed_name(config: Config, place: str) -> str:
    """The name of the part at ``place``, such as ``cache`` or ``sampler.inner``: as typed, else by its class."""
    group, part = place.partition(".")[0], part_at(config, place) or {}
    name, options = (config.get(CHOICES) or {}).get(place), options_of_choices(group)
    if isinstance(name, str) and (name not in options or options[name].get("_target_") == part.get("_target_")):
        return str(name)
    return choice_of(group, part)


def own_options(config: Config, place: str) -> dict[str, Any]:
    """The options of the part at ``place`` whose values are not those of its choice, or of its class where that is no
    choice of ours. Parts inside it are left out."""
    part = part_at(config, place) or {}
    usual = _usual(place.partition(".")[0], typed_name(config, place), part.get("_target_"))
    return {
        key: value
        for key, value in part.items()
        if not key.startswith("_") and not is_part(value) and (key not in usual or usual[key] != value)
    }


def _usual(group: str, name: str, target: Any) -> Mapping[str, Any]:
    options = options_of_choices(group)
    if name in options:
        return options[name]
    if not is_known(target):  # the file may be somebody else's: every option is shown
        return {}
    try:
        return {key: argument.default for key, argument in arguments_of(class_of(group, target)).items()}
    except UserError:  # a user's module that is not here: every option is shown
        return {}


def part_words(config: Config, place: str, is_shown: Callable[[str], bool] = lambda key: True) -> str:
    """A part as ``prophet(localleap(radius=2), skip=3)``: its name, the parts inside it, its own options.

    is_shown: whether to show an option, by its dotted key. A part inside it is left out where it is the default one,
    with default options.
    """
    name, words_inside = typed_name(config, place), []
    for key, value in (part_at(config, place) or {}).items():
        words = part_words(config, f"{place}.{key}", is_shown) if is_part(value) else ""
        if words and words != inner_default(place.partition(".")[0], name, key):
            words_inside.append(words)
    options = own_options(config, place).items()
    words_inside += [f"{key}={value_text(value)}" for key, value in options if is_shown(f"{place}.{key}")]
    return f"{name}({', '.join(words_inside)})" if words_inside else name


def inner_default(group: str, name: str, key: str) -> str | None:
    """The name of the part that a choice of ours has inside."""
    entries = options_of_choices(group).get(name, {}).get("defaults", ())
    return next((entry[key] for entry in entries if isinstance(entry, Mapping) and key in entry), None)


def places_of(config: Config, place: str) -> Iterator[str]:
    """A part's place, then those of the parts inside it."""
    yield place
    for key, value in (part_at(config, place) or {}).items():
        if is_part(value):
            yield from places_of(config, f"{place}.{key}")


def value_text(value: Any) -> str:
    """A value about as it is typed. A long one is cut, with a digest, so that no two values look alike."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONG else f"{text[: _LONG - 10]}...{digest(text.encode())[:6]}"
