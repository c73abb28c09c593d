"""What ``compare=`` names: the same run with another choice of one group."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from dllm.common.errors import UserError, nearest
from dllm.compose.naming import CHOICES, typed_name
from dllm.compose.parts import choice_text, choices, composed, plain_config

COMPARED_GROUPS = ("sampler", "blocks", "cache", "eos", "length")
BROUGHT_CHOICE = re.compile(r"override /(\w+): (\w+)")  # what a choice's file says of other groups


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
    if name not in (known := choices(group)):
        others = [f"{one}={name}" for one in COMPARED_GROUPS if name in choices(one)]
        hint = f" Write {others[0]}." if others and not equals else nearest(name, known)
        raise UserError(f"compare={entry!r}: {group} must be one of {', '.join(known)}.{hint}")
    return group, name


def compared_config(config: Mapping[str, Any], entry: str, given: Collection[str]) -> dict[str, Any]:
    """The configuration with the choice of an entry, and with what that choice brings along. given: the settings that
    the user set, which a choice does not override."""
    group, name = group_and_choice(entry)
    users, former = {one.partition(".")[0] for one in given}, typed_name(config, group)
    texts = [choice_text(group, one) for one in (name, former) if one in choices(group)]
    others = {other for text in texts for other, _ in BROUGHT_CHOICE.findall(text)} & {*COMPARED_GROUPS} - users
    made = composed([f"{group}={name}"])
    changed = {one: plain_config(made[one]) for one in {group} | others}
    names = {one: name if one == group else typed_name(changed, one) for one in changed}
    typed = {
        place: word for place, word in (config.get(CHOICES) or {}).items() if place.partition(".")[0] not in changed
    }
    return {**config, **changed, CHOICES: {**typed, **names}}


def is_chosen(config: Mapping[str, Any], entry: str) -> bool:
    """Whether the configuration has the choice of an entry already."""
    group, name = group_and_choice(entry)
    return typed_name(config, group) == name
