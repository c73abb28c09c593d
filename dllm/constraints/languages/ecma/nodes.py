"""What a pattern of ECMA-262 says, once it is read."""

from __future__ import annotations

from dataclasses import dataclass

from dllm.constraints.languages.utf8 import Ranges


@dataclass(frozen=True)
class Signs:
    """One character with a code point in one of ``ranges``; half a surrogate pair is in no text."""

    ranges: Ranges  # of code points, each (first, last)


@dataclass(frozen=True)
class Sequence:
    """The parts one after the other."""

    parts: tuple[Pattern, ...]  # in their order


@dataclass(frozen=True)
class Either:
    """One of the cases."""

    cases: tuple[Pattern, ...]  # in their order, which does not change the language


@dataclass(frozen=True)
class Repeat:
    """``low`` to ``high`` repetitions, None: any number. Greedy or lazy, the language is the same."""

    part: Pattern  # what is repeated
    low: int  # the fewest repetitions
    high: int | None  # the most; None: any number


@dataclass(frozen=True)
class Assertion:
    """``^``, ``$``, ``b`` or ``B``: it reads nothing, and holds at some places of a text."""

    sign: str  # ``^``, ``$``, ``b`` or ``B``


Pattern = Signs | Sequence | Either | Repeat | Assertion
