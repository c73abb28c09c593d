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
from dllm.compose.parts import arguments_of, choice_of, choice_text, choices, class_of, options_of_choices
from dllm.compose.trusted import is_known

CHOICES = "choices"
_LONG = 40  # characters of a value that a label shows whole
Config = Mapping[str, Any]


def typed_choices(config: Config, chosen: Mapping[str, Any], given: Collection[str]) -> dict[str, str]:
    """The typed name of each part, by its place. chosen: Hydra's choices, by group. given: the settings that the user
    set. A part whose class was set by hand has no such name."""
    places = {group.rpartition("@")[2].replace("/", "."): name for group, name in chosen.items()}
    return {
        place: str(name)
        for place, name in places.items()
        if name is not None and isinstance(part_at(config, place), Mapping) and f"{place}._target_" not in given
    }


def brought(config: Config, given: Collection[str]) -> list[str]:
    """Choices that a chosen part brings along and the user did not make: ``cache=elastic brings blocks=whole``."""
    typed = config.get(CHOICES) or {}
    texts = {
        f"{group}={name}": choice_text(group, name)
        for group, name in typed.items()
        if "." not in group and name in choices(group)
    }
    return [
        f"{one} brings {other}={choice}"
        for one, text in texts.items()
        for other, choice in re.findall(r"override /(\w+): (\w+)", text)
        if other not in given and typed.get(other) == choice
    ]


def part_at(config: Config, place: str) -> Any:
    """What is at a dotted place; None where nothing does."""
    found: Any = config
    for name in place.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def typed_name(config: Config, place: str) -> str:
    """The name of the part at ``place``, such as ``cache`` or ``sampler.inner``: as typed, else by its class."""
    group, part = place.partition(".")[0], part_at(config, place) or {}
    typed, known = (config.get(CHOICES) or {}).get(place), options_of_choices(group)
    if isinstance(typed, str) and (typed not in known or known[typed].get("_target_") == part.get("_target_")):
        return str(typed)
    return choice_of(group, part)


def own_options(config: Config, place: str) -> dict[str, Any]:
    """The options of the part at ``place`` whose values are not those of its choice, or of its class where that is no
    choice of ours. Parts inside it are left out."""
    part = part_at(config, place) or {}
    usual = _usual(place.partition(".")[0], typed_name(config, place), part.get("_target_"))
    return {
        key: value
        for key, value in part.items()
        if not key.startswith("_") and not _is_part(value) and (key not in usual or usual[key] != value)
    }


def _usual(group: str, name: str, target: Any) -> Mapping[str, Any]:
    known = options_of_choices(group)
    if name in known:
        return known[name]
    if not is_known(target):  # the file may be somebody else's: every option is shown
        return {}
    try:
        return {key: argument.default for key, argument in arguments_of(class_of(group, target)).items()}
    except UserError:  # a user's module that is not here: every option is shown
        return {}


def part_words(config: Config, place: str, shown: Callable[[str], bool] = lambda key: True) -> str:
    """A part as ``prophet(localleap(radius=2), skip=3)``: its name, the parts inside it, its own options.

    shown: whether an option of its own is said, by its dotted key. A part inside it is left out where it is the one
    that comes with it, with no option of its own.
    """
    name, listed = typed_name(config, place), []
    for key, value in (part_at(config, place) or {}).items():
        words = part_words(config, f"{place}.{key}", shown) if _is_part(value) else ""
        if words and words != inner_default(place.partition(".")[0], name, key):
            listed.append(words)
    own = own_options(config, place).items()
    listed += [f"{key}={value_text(value)}" for key, value in own if shown(f"{place}.{key}")]
    return f"{name}({', '.join(listed)})" if listed else name


def inner_default(group: str, name: str, key: str) -> str | None:
    """The name of the part that a choice of ours has inside."""
    entries = options_of_choices(group).get(name, {}).get("defaults", ())
    return next((entry[key] for entry in entries if isinstance(entry, Mapping) and key in entry), None)


def _is_part(value: Any) -> bool:
    return isinstance(value, Mapping) and "_target_" in value


def places_of(config: Config, place: str) -> Iterator[str]:
    """A part's place, then those of the parts inside it."""
    yield place
    for key, value in (part_at(config, place) or {}).items():
        if _is_part(value):
            yield from places_of(config, f"{place}.{key}")


def value_text(value: Any) -> str:
    """A value about as it is typed. A long one is cut, with a digest, so that no two values look alike."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONG else f"{text[: _LONG - 10]}...{digest(text.encode())[:6]}"
