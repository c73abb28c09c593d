"""What published programs do by accident, as options of a replay: a class in the place of a shipped part.

A mapping lays in what its method's program does. A case may say it itself: ``"accident": []`` is the shipped parts
alone, ``"accident": ["AllSlow"]`` that one. Stand-ins are schedules of other programs that are offered nowhere here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any, TypeVar

Kind = TypeVar("Kind", bound=type)
ACCIDENTS: dict[str, tuple[type, str]] = {}  # by the class's name: the class, and what the published program does
STAND_INS: set[type] = set()


@dataclass
class Replayed:
    """What a replay may lay in (None: all that a mapping says), and what it has."""

    allowed: frozenset[str] | None = None
    used: set[str] = field(default_factory=set)
    parts: set[type] = field(default_factory=set)  # shipped classes


_NOW = [Replayed()]


def accident(says: str) -> Callable[[Kind], Kind]:
    """Enters a class that does what a published program does by accident."""

    def entered(kind: Kind) -> Kind:
        ACCIDENTS[kind.__name__] = kind, says
        return kind

    return entered


def stand_in(kind: Kind) -> Kind:
    """Enters a class for which there is no shipped part."""
    STAND_INS.add(kind)
    return kind


@contextmanager
def replaying(allowed: Sequence[str] | None = None) -> Iterator[Replayed]:
    """A replay in which these accidents alone are laid in (None: those of the replay around it)."""
    around = _NOW[-1]
    now = Replayed(around.allowed if allowed is None else frozenset(allowed))
    _NOW.append(now)
    try:
        yield now
    finally:
        _NOW.pop()
        around.used |= now.used
        around.parts |= now.parts


def shipped(kind: type) -> type:
    """The class of this project behind one of the tests."""
    return next(one for one in kind.__mro__ if one.__module__.startswith("dllm."))


def permitted_class(kind: type) -> type:
    now, name = _NOW[-1], kind.__name__
    now.parts.add(shipped(kind))
    if kind in STAND_INS:
        now.used.add(name)
    if name not in ACCIDENTS or ACCIDENTS[name][0] is not kind:
        return kind
    if now.allowed is not None and name not in now.allowed:
        return shipped(kind)
    now.used.add(name)
    return kind


def permitted(part: Any) -> Any:
    """The part, or the shipped one in its place, also inside a wrapper."""
    kind, inner = permitted_class(type(part)), getattr(part, "inner", None)
    within = inner if inner is None else permitted(inner)
    if kind is type(part) and within is inner:
        return part
    other = copy(part)
    if within is not inner:
        other.inner = within
    other.__class__ = kind
    return other


def named(case: Any) -> list[str]:
    """The accidents that a case names."""
    words = case.get("accident", [])
    return [str(one) for one in words] if isinstance(words, list) else [str(words)]
