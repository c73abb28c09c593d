"""What ``compare=`` names: the same run with another choice of one group."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from dllm.common.errors import UserError, nearest
from dllm.compose.config_choices import choice_text, choices
from dllm.compose.naming import CHOICES, typed_name
from dllm.compose.parts import composed, plain_config

COMPARED_GROUPS = ("sampler", "blocks", "cache", "eos", "length")
OVERRIDE_LINE = re.compile(r"override /(\w+): (\w+)")  # what a choice's file says of other groups


def group_and_choice(entry: str) -> tuple[str, str]:
    """Of an entry of ``compare=``: ``GROUP=NAME``, or a sampler's name alone. Raises UserError for another group or
    name."""
    group, equals, name = entry.partition("=")
    if not equals:
        group, name = "sampler", entry
    if group not in COMPARED_GROUPS:
        raise UserError(
            f"compare={entry!r}: {group} cannot be compared. Use one of {', '.join(COMPARED_GROUPS)}, as in "
            "compare='[cache=none,cache=elastic]'."
        )
    if name not in (names := choices(group)):
        matches = [f"{group_of}={name}" for group_of in COMPARED_GROUPS if name in choices(group_of)]
        hint = f" Write {matches[0]}." if matches and not equals else nearest(name, names)
        raise UserError(f"compare={entry!r}: {group} must be one of {', '.join(names)}.{hint}")
    return group, name


def compared_config(config: Mapping[str, Any], entry: str, settings: Collection[str]) -> dict[str, Any]:
    """The configuration with the choice of an entry, and with what that choice implies. settings: those that the user
    set, which a choice does not override."""
    group, name = group_and_choice(entry)
    users, former = {key.partition(".")[0] for key in settings}, typed_name(config, group)
    texts = [choice_text(group, choice) for choice in (name, former) if choice in choices(group)]
    implied = {other for text in texts for other, _ in OVERRIDE_LINE.findall(text)} & {*COMPARED_GROUPS} - users
    defaults = composed([f"{group}={name}"])
    changed = {part: plain_config(defaults[part]) for part in {group} | implied}
    names = {part: name if part == group else typed_name(changed, part) for part in changed}
    names_before = {
        place: word for place, word in (config.get(CHOICES) or {}).items() if place.partition(".")[0] not in changed
    }
    return {**config, **changed, CHOICES: {**names_before, **names}}


def is_chosen(config: Mapping[str, Any], entry: str) -> bool:
    """Whether the configuration has the choice of an entry already."""
    group, name = group_and_choice(entry)
    return typed_name(config, group) == name
