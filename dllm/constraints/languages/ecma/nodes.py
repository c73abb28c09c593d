"""What a pattern of ECMA-262 says, once it is read."""

from __future__ import annotations

from dataclasses import dataclass

from dllm.constraints.languages.utf8 import Ranges


@dataclass(frozen=True)
class Signs:
    """One character with a code point in one of ``ranges``; half a surrogate pair is in no text."""

    ranges: Ranges


@dataclass(frozen=True)
class Sequence:
    """The parts one after the other."""

    parts: tuple[Pattern, ...]


@dataclass(frozen=True)
class Either:
    """One of the cases."""

    cases: tuple[Pattern, ...]


@dataclass(frozen=True)
class Repeat:
    """``low`` to ``high`` repetitions, None: any number. Greedy or lazy, the language is the same."""

    part: Pattern
    low: int
    high: int | None


@dataclass(frozen=True)
class Assertion:
    """``^``, ``$``, ``b`` or ``B``: it reads nothing, and holds at some places of a text."""

    sign: str


Pattern = Signs | Sequence | Either | Repeat | Assertion
