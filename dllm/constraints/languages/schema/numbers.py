"""Numbers between bounds, as texts without exponent; bounds and multiples are exact, digit by digit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor, lcm

import numpy as np

from dllm.constraints.languages.automaton_of import to_automaton
from dllm.constraints.languages.json import DIGIT
from dllm.constraints.languages.limits import budget
from dllm.constraints.languages.products import intersection
from dllm.constraints.languages.trees import Alt, Automaton, ByteAutomaton, Bytes, Cat, Language, Rep, Tree
from dllm.constraints.languages.utf8 import literal_text

NONZERO = Bytes(((0x31, 0x39),))
ZERO = Bytes(((0x30, 0x30),))


def as_fraction(value: float) -> Fraction:
    """The number whose shortest decimal digits a schema shows: 0.1 is a tenth. Raises ValueError for anything else."""
    return Fraction(value) if isinstance(value, int) else Fraction(Decimal(repr(float(value))))


@dataclass(frozen=True)
class Range:
    """The numbers between two bounds."""

    low: Fraction | None = None  # the least number; None: no bound
    high: Fraction | None = None  # the largest number; None: no bound
    over: bool = False  # ``low`` itself is left out
    under: bool = False  # ``high`` itself is left out
    multiple: Fraction | None = None  # numbers are multiples of this; None: of any

    def above(self, low: Fraction, strict: bool) -> Range:
        """Those above a bound."""
        if self.low is not None and (self.low, self.over) >= (low, strict):
            return self
        return replace(self, low=low, over=strict)

    def below(self, high: Fraction, strict: bool) -> Range:
        """Those below a bound."""
        if self.high is not None and (-self.high, self.under) >= (-high, strict):
            return self
        return replace(self, high=high, under=strict)

    def among(self, multiple: Fraction) -> Range:
        """Those that are multiples of this, too."""
        return replace(self, multiple=_common(self.multiple or multiple, multiple))

    def steps(self, size: Fraction) -> tuple[int | None, int | None]:
        """The least and the largest whole number of steps of this size in the range; None: no bound."""
        low, high = (None if bound is None else bound / size for bound in (self.low, self.high))
        least = None if low is None else floor(low) + 1 if self.over else ceil(low)
        return least, None if high is None else ceil(high) - 1 if self.under else floor(high)

    def holds(self, kind: str) -> bool:
        """Whether there is a number of this kind, integer or fraction."""
        if kind == "fraction" and self.multiple is None:
            single = self.low == self.high and not (self.over or self.under)
            return self.low is None or self.high is None or self.low < self.high or (single and not _whole(self.low))
        size = self.multiple or Fraction(1)
        if kind == "fraction" and _whole(size):
            return False
        least, most = self.steps(size if kind == "fraction" else _common(size, Fraction(1)))
        if least is None or most is None or kind == "integer":
            return least is None or most is None or least <= most
        return any(not _whole(size * steps) for steps in range(least, min(most, least + 1) + 1))


def _whole(value: Fraction) -> bool:
    return value.denominator == 1


def _common(first: Fraction, other: Fraction) -> Fraction:
    """The least number that both divide."""
    return Fraction(
        lcm(first.numerator * other.denominator, other.numerator * first.denominator),
        first.denominator * other.denominator,
    )


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
    return Alt(
        (
            Cat((literal_text(low[0]), _between(low[1:], "9" * rest))),
            middle,
            Cat((literal_text(high[0]), _between("0" * rest, high[1:]))),
        )
    )


def integers(within: Range) -> Tree:
    """Whole numbers in a range, without fraction; -0 where 0 is one."""
    low, high = within.steps(Fraction(1))
    positive = naturals(max(low or 0, 0), high) if high is None or high >= 0 else Alt()
    negative = naturals(max(-(high or 0), 0) if high is not None else 0, None if low is None else -low)
    tree = Alt((positive, Cat((literal_text("-"), negative)))) if low is None or low <= 0 else positive
    step = within.multiple or Fraction(1)
    return tree if step.numerator == 1 else _multiples_in(tree, Fraction(step.numerator))


def _multiples_in(tree: Tree, step: Fraction) -> Tree:
    return Automaton(intersection(multiples(step), to_automaton(Language({"start": tree}))))


def multiples(step: Fraction) -> ByteAutomaton:
    """Numbers that ``step`` divides: after the sign and the zero, a state for each remainder, and after the point for
    each remainder and digit until all further digits are zero."""
    places = next(places for places in range(step.denominator) if 10**places % step.denominator == 0)
    divisor = int(step * 10**places)  # of the number's digits, that many of them after the point
    point = 3 + divisor
    count = point + (places + 1) * divisor * (places > 0)
    budget().states(count)
    moves = np.full((count, 256), -1, np.int32)
    accepting = np.zeros(count, bool)
    digits, remainders = np.arange(10), np.arange(divisor)
    after = (10 * remainders[:, None] + digits) % divisor
    moves[0, 0x2D] = 1
    moves[:2, 0x31:0x3A] = 3 + digits[1:] % divisor
    moves[:2, 0x30] = 2
    moves[3:point, 0x30:0x3A] = 3 + after
    accepting[2], accepting[3:point] = True, remainders * (10**places % divisor) % divisor == 0
    if places:
        moves[2, 0x2E], moves[3:point, 0x2E] = point, point + remainders
        for read in range(places):
            here = slice(point + read * divisor, point + (read + 1) * divisor)
            moves[here, 0x30:0x3A] = point + (read + 1) * divisor + after
            accepting[here] = (remainders * (10 ** (places - read) % divisor) % divisor == 0) & (read > 0)
        last = count - divisor
        moves[last, 0x30], accepting[last] = last, True
    return ByteAutomaton(moves, accepting)


def numbers(within: Range, kinds: frozenset[str]) -> Tree:
    """Numbers in a range, of these kinds; of both 1.0 is one. Multiples of a whole number have no point."""
    if kinds == {"integer"} or (within.multiple is not None and _whole(within.multiple)):
        return integers(within) if "integer" in kinds else Alt()
    low, high = within.low, within.high
    cases = []
    if high is None or high >= 0:
        zero = low is None or low < 0
        least = Fraction(0) if zero or low is None else low
        cases.append(_magnitudes(least, high, within.over and not zero, within.under, kinds))
    if low is None or low <= 0:
        zero = high is None or high > 0
        below = Fraction(0) if zero or high is None else -high
        above = None if low is None else -low
        cases.append(Cat((literal_text("-"), _magnitudes(below, above, within.under and not zero, within.over, kinds))))
    tree = Alt(tuple(cases))
    return tree if within.multiple is None else _multiples_in(tree, within.multiple)


def _magnitudes(low: Fraction, high: Fraction | None, over: bool, under: bool, kinds: frozenset[str]) -> Tree:
    """Numbers from ``low`` >= 0 to ``high`` without sign: those of the first whole part, of the last, and between."""
    first, begin = floor(low), _digits_behind(low)
    if high is None:
        return Alt(
            (
                _by_parts(first, first, begin, None, (over, False), kinds),
                _by_parts(first + 1, None, "", None, (False, False), kinds),
            )
        )
    last, end = floor(high), _digits_behind(high)
    if last <= first:
        return _by_parts(first, first, begin, end, (over, under), kinds) if last == first else Alt()
    return Alt(
        (
            _by_parts(first, first, begin, None, (over, False), kinds),
            _by_parts(first + 1, last - 1, "", None, (False, False), kinds),
            _by_parts(last, last, "", end, (False, under), kinds),
        )
    )


def _digits_behind(value: Fraction) -> str:
    """The digits after the point of a decimal number >= 0, without zeros at their end."""
    digits, rest = "", value - floor(value)
    while rest:
        rest *= 10
        digits, rest = f"{digits}{floor(rest)}", rest - floor(rest)
    return digits


def _by_parts(
    first: int, last: int | None, low: str, high: str | None, without: tuple[bool, bool], kinds: frozenset[str]
) -> Tree:
    """Whole parts from ``first`` to ``last``, and after their point digits in ``_behind``'s order; of kinds."""
    over, under = without[0] or ("integer" not in kinds and not low), without[1]
    point = Cat((literal_text("."), _behind(low, high, over, under)))
    alone = Cat() if _zero(low, high, over, under) else Alt()
    return Cat((naturals(first, last), Alt((alone, point))))


def _zero(low: str, high: str | None, over: bool, under: bool) -> bool:
    """Whether 0 is between two fractions."""
    return not low and not over and not (high == "" and under)


def _behind(low: str, high: str | None, over: bool, under: bool) -> Tree:
    """One digit or more whose number after a point is between those of ``low`` and ``high``; None: below 1."""
    if not low and high is None:
        return Cat((Rep(ZERO), NONZERO, Rep(DIGIT))) if over else Rep(DIGIT, 1)
    if not low and not high:
        return Alt() if over or under else Rep(ZERO, 1)
    least, most = int(low[:1] or 0), 9 if high is None else int(high[:1] or 0)
    above, below = low[1:], None if high is None else high[1:]
    if least == most and high is not None:
        return _led(least, above, below, over, under)
    cases = [_led(least, above, None, over, False)] if least < most or high is None else []
    if least + 1 <= most - (high is not None):
        cases.append(Cat((Bytes(((0x31 + least, 0x30 + most - (high is not None)),)), Rep(DIGIT))))
    if least < most and high is not None:
        cases.append(_led(most, "", below, False, under))
    return Alt(tuple(cases))


def _led(digit: int, low: str, high: str | None, over: bool, under: bool) -> Tree:
    """This digit, and what may follow it."""
    alone = Cat() if _zero(low, high, over, under) else Alt()
    return Cat((literal_text(str(digit)), Alt((alone, _behind(low, high, over, under)))))
