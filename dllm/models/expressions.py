"""Regular expressions of files that come from others, matched in bounded time.

``re`` tries one way after another, and ``(a+)+$`` has 2^n of them on n letters. Here all ways are followed at once: a
set of positions goes through the expression, item by item. The set is a number, with bit i for position i. Only
whether an expression matches is asked, so lazy repeats are as greedy ones.
"""

from __future__ import annotations

import re
from functools import lru_cache
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]  # private; dllm.constraints reads them, too
from typing import Any

from dllm.errors import UserError
from dllm.models.keys import printed

LONGEST_EXPRESSION, DEEPEST_GROUP = 1000, 20  # characters of an expression or a text, and groups in each other
MOST_STEPS = 20_000  # items gone through for one text, some 20 ms; what checkpoints have takes some 100
RULE = (f"a regular expression of at most {LONGEST_EXPRESSION} characters and {DEEPEST_GROUP} groups in each other, "
        "without flags, atomic groups and references to groups")  # fmt: skip
# Where these match depends on no other item.
_AT_ONE_PLACE = {_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN, _constants.AT}
_ASSERTS = {_constants.ASSERT, _constants.ASSERT_NOT}
_NESTED = {_constants.BRANCH, _constants.SUBPATTERN, _constants.MAX_REPEAT, _constants.MIN_REPEAT, *_ASSERTS}


class Expression:
    """A regular expression as Python's ``re`` reads it. Raises UserError for one outside ``RULE``."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        try:
            parsed = _parser.parse(pattern if len(pattern) <= LONGEST_EXPRESSION else "(")
        except (re.error, OverflowError, RecursionError):
            raise UserError(f"{printed(pattern)} is not {RULE}.") from None
        if parsed.state.flags != re.UNICODE.value or not _followed(parsed, DEEPEST_GROUP):
            raise UserError(f"{printed(pattern)} is not {RULE}.")
        self._items, self._compiled = parsed, dict[int, re.Pattern[str]]()

    def matches(self, text: str) -> bool:
        """Whether ``re.match`` finds it. Raises UserError where that takes more than ``MOST_STEPS``."""
        if len(text) > LONGEST_EXPRESSION:
            raise UserError(
                f"{printed(text)} has more than {LONGEST_EXPRESSION} characters, and is matched with expressions."
            )
        return bool(_Walk(self, text).after(self._items, 1))

    def places(self, item: tuple[Any, Any], text: str) -> int:
        """Where ``re`` finds an item of one character or none."""
        if id(item) not in self._compiled:
            self._compiled[id(item)] = _compiler.compile(_parser.SubPattern(self._items.state, [item]))
        return sum(1 << found.start() for found in self._compiled[id(item)].finditer(text))


@lru_cache(maxsize=4096)
def expression(pattern: str) -> Expression:
    """The regular expression, made once. Raises UserError for one outside ``RULE``."""
    return Expression(pattern)


def _followed(items: Any, depth: int) -> bool:
    """Whether a ``_Walk`` follows all items."""
    for kind, value in items:
        if kind not in _AT_ONE_PLACE | _NESTED or depth < 0:
            return False
        if kind is _constants.SUBPATTERN and (value[1] or value[2]):  # flags inside a group
            return False
        if kind in _ASSERTS and value[0] < 0 and len(set(value[1].getwidth())) > 1:
            return False
        inside = () if kind in _AT_ONE_PLACE else value[1] if kind is _constants.BRANCH else value[-1:]
        if not all(_followed(one, depth - 1) for one in inside):
            return False
    return True


class _Walk:
    """The way of one expression through one text."""

    def __init__(self, whole: Expression, text: str) -> None:
        self.whole, self.text, self.steps = whole, text, 0
        self.places: dict[int, int] = {}  # of items at one place

    def after(self, items: Any, at: int) -> int:
        """The positions after ``items``, the first of which begins at one of the positions ``at``."""
        self.steps += 1 + len(items)
        if self.steps > MOST_STEPS:
            raise UserError(f"regular expression {printed(self.whole.pattern)} takes more than {MOST_STEPS:,} steps on "
                            f"{printed(self.text)}. Write it with fewer repeats inside each other.")  # fmt: skip
        for item in items:
            if at:
                at = self._one(item, at) if item[0] in _AT_ONE_PLACE else self._nested(item[0], item[1], at)
        return at

    def _one(self, item: tuple[Any, Any], at: int) -> int:
        if id(item) not in self.places:
            self.places[id(item)] = self.whole.places(item, self.text)
        found = at & self.places[id(item)]
        return found if item[0] is _constants.AT else found << 1

    def _nested(self, kind: Any, value: Any, at: int) -> int:
        if kind is _constants.SUBPATTERN:
            return self.after(value[-1], at)
        if kind is _constants.BRANCH:
            found = 0
            for items in value[1]:
                found |= self.after(items, at)
            return found
        if kind in _ASSERTS:
            wanted, (side, items) = kind is _constants.ASSERT, value
            each = [1 << place for place in range(at.bit_length()) if at >> place & 1]
            return sum(one for one in each if self._holds(side, items, one) == wanted)
        low, high, items = value
        return self._repeated(low, high, items, at)

    def _holds(self, side: int, items: Any, one: int) -> bool:
        """Whether what is ahead of a position (side 1), or before it (-1), is so."""
        if side > 0:
            return bool(self.after(items, one))
        begin = one >> items.getwidth()[0]
        return bool(self.after(items, begin) & one)

    def _repeated(self, low: int, high: int, items: Any, at: int) -> int:
        for _ in range(low):
            if not at:
                return 0
            at = self.after(items, at)
        found = new = at
        for _ in range(high - low):  # what was found after fewer repeats need not be followed again
            new = self.after(items, new) & ~found
            if not new:
                break
            found |= new
        return found
