"""Numbers between whole bounds, as texts without exponent."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dllm.constraints.languages.automaton_of import compiled
from dllm.constraints.languages.json import DIGIT
from dllm.constraints.languages.limits import budget
from dllm.constraints.languages.products import intersection
from dllm.constraints.languages.schema.values import ZEROS
from dllm.constraints.languages.trees import Alt, Automaton, ByteAutomaton, Bytes, Cat, Language, Rep, Tree
from dllm.constraints.languages.utf8 import literal_text

NONZERO = Bytes(((0x31, 0x39),))
WHOLE_FRACTION = Cat((literal_text(".0"), ZEROS))
TRUE_FRACTION = Cat((literal_text("."), ZEROS, NONZERO, Rep(DIGIT)))


@dataclass(frozen=True)
class Range:
    """The numbers between two bounds."""

    low: int | None = None  # the least number; None: no bound
    high: int | None = None  # the largest number; None: no bound
    over: bool = False  # without the bound itself
    under: bool = False  # without the bound itself
    multiple: int | None = None  # numbers are multiples of this; None: of any

    def above(self, low: int, strict: bool) -> Range:
        """Those above a bound."""
        if self.low is not None and (self.low, self.over) >= (low, strict):
            return self
        return replace(self, low=low, over=strict)

    def below(self, high: int, strict: bool) -> Range:
        """Those below a bound."""
        if self.high is not None and (-self.high, self.under) >= (-high, strict):
            return self
        return replace(self, high=high, under=strict)

    @property
    def least(self) -> int | None:
        """The least whole number."""
        return None if self.low is None else self.low + self.over

    @property
    def most(self) -> int | None:
        """The largest whole number."""
        return None if self.high is None else self.high - self.under

    def holds(self, kind: str) -> bool:
        """Whether there is a number of this kind, integer or fraction."""
        if kind == "fraction":
            return self.multiple is None and (self.low is None or self.high is None or self.low < self.high)
        if self.least is None or self.most is None:
            return True
        step = self.multiple or 1
        return -(-self.least // step) * step <= self.most


def naturals(low: int, high: int | None) -> Tree:
    """Whole numbers from ``low`` >= 0 to ``high``, without leading zeros."""
    if high is not None and high < low:
        return Alt()
    first = str(low)
    if high is None:
        return Alt((_between(first, "9" * len(first)), Cat((NONZERO, Rep(DIGIT, len(first))))))
    last = str(high)
    if len(first) == len(last):
        return _between(first, last)
    middle = Cat((NONZERO, Rep(DIGIT, len(first), len(last) - 2))) if len(last) > len(first) + 1 else Alt()
    return Alt((_between(first, "9" * len(first)), middle, _between("1" + "0" * (len(last) - 1), last)))


def _between(low: str, high: str) -> Tree:
    """Texts of digits of one length, in order between these."""
    if not low:
        return Cat()
    if set(low) == {"0"} and set(high) == {"9"}:
        return Rep(DIGIT, len(low), len(low))
    if low[0] == high[0]:
        return Cat((literal_text(low[0]), _between(low[1:], high[1:])))
    rest = len(low) - 1
    inner = (ord(low[0]) + 1, ord(high[0]) - 1)
    middle = Cat((Bytes((inner,)), Rep(DIGIT, rest, rest))) if inner[0] <= inner[1] else Alt()
    return Alt((Cat((literal_text(low[0]), _between(low[1:], "9" * rest))), middle,
                Cat((literal_text(high[0]), _between("0" * rest, high[1:])))))  # fmt: skip


def integers(within: Range) -> Tree:
    """Whole numbers in a range, without fraction; -0 where 0 is one."""
    low, high = within.least, within.most
    positive = naturals(max(low or 0, 0), high) if high is None or high >= 0 else Alt()
    negative = naturals(max(-(high or 0), 0) if high is not None else 0, None if low is None else -low)
    found = Alt((positive, Cat((literal_text("-"), negative)))) if low is None or low <= 0 else positive
    if within.multiple is None or within.multiple == 1:
        return found
    return Automaton(intersection(multiples(within.multiple), compiled(Language({"start": found}))))


def multiples(step: int) -> ByteAutomaton:
    """Whole numbers that ``step`` divides: after the sign and the zero, a state for each remainder."""
    budget().states(step)
    moves = np.full((3 + step, 256), -1, np.int32)
    digits = np.arange(10)
    moves[0, 0x2D] = 1
    moves[:2, 0x31:0x3A] = 3 + digits[1:] % step
    moves[:2, 0x30] = 2
    moves[3:, 0x30:0x3A] = 3 + (10 * np.arange(step)[:, None] + digits) % step
    accepting = np.zeros(3 + step, bool)
    accepting[2:4] = True
    return ByteAutomaton(moves, accepting)


def numbers(within: Range, kinds: frozenset[str]) -> Tree:
    """Numbers in a range, of kinds integer and fraction; where both are allowed 1.0 is one. Multiples have no point."""
    if within.multiple is not None:
        return integers(within) if "integer" in kinds else Alt()
    if kinds == {"integer"}:
        return integers(within)
    low, high = within.low, within.high
    cases = []
    if high is None or high >= 0:
        zero = low is None or low < 0
        least = 0 if zero or low is None else low
        cases.append(_magnitudes(least, high, within.over and not zero, within.under, kinds))
    if low is None or low <= 0:
        zero = high is None or high > 0
        below = 0 if zero or high is None else -high
        above = None if low is None else -low
        cases.append(Cat((literal_text("-"), _magnitudes(below, above, within.under and not zero, within.over, kinds))))
    return Alt(tuple(cases))


def _magnitudes(low: int, high: int | None, over: bool, under: bool, kinds: frozenset[str]) -> Tree:
    """Numbers from ``low`` >= 0 without sign: those between two whole numbers, and the whole ones."""
    cases = [Cat((naturals(low, None if high is None else high - 1), TRUE_FRACTION))]
    if "integer" in kinds:
        whole = naturals(low + over, None if high is None else high - under)
        cases.append(Cat((whole, Rep(WHOLE_FRACTION, 0, 1))))
    return Alt(tuple(cases))
