"""Regular expressions of files that come from others, matched by ``re`` where that is sure to end soon.

``re`` tries one way after another, and ``(a+)+$`` has 2^n of them on n letters. So an expression is refused where
what is repeated can match in several ways, and where too many ways are left on a text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import comb
from re import _constants, _parser  # type: ignore[attr-defined]  # private; dllm.constraints reads them, too
from typing import Any

from dllm.common.errors import UserError
from dllm.models.keys import printed

LONGEST_EXPRESSION, MOST_FIXED = 1000, 1000  # characters of an expression, and repeats that it may demand
MOST_WAYS = 1 << 22  # to match a text, tried in 0.05 s; four repeats in a row have 136,000 on a name of 40 letters
RULE = (
    f"a regular expression of at most {LONGEST_EXPRESSION} characters, without repeats or choices inside a repeat, "
    "flags, atomic groups and references to groups"
)
_PLACES = {_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN, _constants.AT}
_REPEATS = {_constants.MAX_REPEAT, _constants.MIN_REPEAT}


@dataclass(frozen=True)
class Expression:
    """A regular expression."""

    compiled: re.Pattern[str]  # as ``re`` has it
    choices: int  # ways to match a text, if each repeat were done a fixed number of times
    repeats: int  # in a row, whose number is not fixed

    def matches(self, text: str) -> bool:
        """Whether ``re.match`` finds it. Raises UserError where that may try more than ``MOST_WAYS``."""
        if self.choices * comb(len(text) + self.repeats, self.repeats) > MOST_WAYS:
            raise UserError(
                f"regular expression {printed(self.compiled.pattern)} may match {printed(text)} in more "
                f"than {MOST_WAYS:,} ways. Write it with fewer repeats."
            )
        return self.compiled.match(text) is not None


@lru_cache(maxsize=4096)
def expression(pattern: str) -> Expression:
    """The regular expression, compiled once. Raises UserError for one outside ``RULE``."""
    try:
        parsed = _parser.parse(pattern if len(pattern) <= LONGEST_EXPRESSION else "(")
        if parsed.state.flags != re.UNICODE.value:
            raise ValueError("flags")
        return Expression(re.compile(pattern), *_ways(parsed))
    except (re.error, ValueError, OverflowError, RecursionError):
        raise UserError(f"{printed(pattern)} is not {RULE}.") from None


def _ways(items: Any, repeated: bool = False) -> tuple[int, int]:
    """Choices and repeats of items in a row. Raises ValueError for an item outside ``RULE``."""
    choices, repeats = 1, 0
    for kind, value in items:
        if kind in _PLACES:
            continue
        if kind in _REPEATS and not repeated and value[1] > 1 and value[0] <= MOST_FIXED:
            _ways(value[2], True)
            ways = (1, int(value[0] != value[1]))
        elif kind in _REPEATS and not repeated and value[1] <= 1:
            ways = _added([_ways([]), _ways(value[2])])
        elif kind is _constants.SUBPATTERN and not value[1] and not value[2]:
            ways = _ways(value[3], repeated)
        elif kind is _constants.BRANCH and not repeated:
            ways = (1, 0) if _exclusive(value[1]) else _added([_ways(branch) for branch in value[1]])
        elif kind in (_constants.ASSERT, _constants.ASSERT_NOT) and not repeated:
            ways = _ways(value[1])
        else:
            raise ValueError(kind)
        choices, repeats = choices * ways[0], repeats + ways[1]
    return choices, repeats


def _added(alternatives: list[tuple[int, int]]) -> tuple[int, int]:
    return sum(choices for choices, _ in alternatives), max(repeats for _, repeats in alternatives)


def _exclusive(alternatives: Any) -> bool:
    """Whether they are words, and no two of them begin the same text."""
    if any(kind is not _constants.LITERAL for items in alternatives for kind, _ in items):
        return False
    words = sorted([value for _, value in items] for items in alternatives)
    return all(second[: len(first)] != first for first, second in pairwise(words))
