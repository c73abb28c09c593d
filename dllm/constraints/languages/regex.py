"""Regular expressions in Python's syntax and meaning as trees: ``re``'s own parser reads, its engine says what a class
holds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]  # private: one test for each construct
from typing import Any

from dllm.common.errors import Refusal, first_line, verbatim
from dllm.constraints.languages.trees import Alt, Cat, Language, Rep, Tree
from dllm.constraints.languages.utf8 import (
    ALL_CHARACTERS,
    LAST,
    Ranges,
    characters,
    complement,
    every_character,
    matched_ranges,
)

ParsedItem = tuple[Any, Any]
KNOWN_FLAGS = re.IGNORECASE | re.DOTALL | re.UNICODE
NOT_REGULAR = "which is no regular language here. Write the alternatives out."
CACHE_ENTRIES = 100  # of a class that is kept for the next pattern
REFUSED_PARTS = {
    "ASSERT": f"looks ahead or behind, {NOT_REGULAR}",
    "ASSERT_NOT": f"looks ahead or behind, {NOT_REGULAR}",
    "GROUPREF": f"refers back to a group, {NOT_REGULAR}",
    "GROUPREF_EXISTS": f"refers back to a group, {NOT_REGULAR}",
    "ATOMIC_GROUP": f"has an atomic part, {NOT_REGULAR}",
    "POSSESSIVE_REPEAT": f"has a possessive part, {NOT_REGULAR}",
    "AT": "has an anchor inside. Only ^ and $ are known, at the two ends.",
    "FLAG": "sets a flag; only (?s) and (?i) are known. Write the cases out.",
}


def regex_language(pattern: str) -> Language:
    """The texts of ``re.fullmatch``. Raises UserError for what is no regular expression, or no regular language."""
    where = f"{{constraint.pattern:name}}={verbatim(shown_pattern(pattern))}"
    return Language({"start": regex_tree(pattern, where, anchored=True)})


def shown_pattern(pattern: str) -> str:
    """The pattern as refusals quote it, at most some 80 characters."""
    return repr(pattern if len(pattern) <= 80 else f"{pattern[:80]}...")


def regex_tree(pattern: str, where: str, anchored: bool = False, flags: int = 0) -> Tree:
    """A pattern's tree. where: names it in refusals. anchored: as in ``fullmatch``, anchors at the two ends
    have no effect; else there may be none. Raises UserError."""
    try:
        items = _parser.parse(pattern, flags)
    except (re.error, OverflowError, TypeError) as error:
        raise Refusal(f"{where} is no regular expression: {verbatim(first_line(error))}.") from None
    except RecursionError:
        raise Refusal(f"{where} is nested too deeply. Write it with fewer groups in each other.") from None
    if items.state.flags & ~KNOWN_FLAGS:
        raise Refusal(f"{where} {REFUSED_PARTS['FLAG']}")
    return Reader(where, items.state.flags).sequence(list(items), anchored, anchored)


class Reader:
    """Makes trees of what ``re`` has parsed under ``flags``."""

    def __init__(self, where: str, flags: int) -> None:
        self.where, self.flags = where, flags

    def sequence(self, items: Sequence[ParsedItem], front: bool, back: bool) -> Tree:
        """Items one after the other. front, back: this end may have anchors."""
        items = list(items)
        while items and front and _is_anchor(items[0], "AT_BEGINNING"):
            items = items[1:]
        while items and back and _is_anchor(items[-1], "AT_END"):
            items = items[:-1]
        last = len(items) - 1
        return Cat(
            tuple(self.item(item, front and number == 0, back and number == last) for number, item in enumerate(items))
        )

    def item(self, item: ParsedItem, front: bool, back: bool) -> Tree:
        kind, value = item
        match str(kind):
            case "LITERAL" if not self.flags & re.IGNORECASE:
                return characters(((value, value),))
            case "LITERAL" | "NOT_LITERAL" | "IN":
                return characters(item_ranges(kind, tuple(value) if isinstance(value, list) else value, self.flags))
            case "ANY":
                return characters(ALL_CHARACTERS if self.flags & re.DOTALL else ((0, 9), (11, LAST)))
            case "BRANCH":
                return Alt(tuple(self.sequence(case, front, back) for case in value[1]))
            case "SUBPATTERN":
                if value[1] or value[2]:
                    raise Refusal(f"{self.where} {REFUSED_PARTS['FLAG']}")
                return self.sequence(value[3], front, back)
            case "MAX_REPEAT" | "MIN_REPEAT":
                low, high, part = value
                tree = self.sequence(part, False, False)
                return Rep(tree, int(low), None if high is _constants.MAXREPEAT else int(high))
        raise Refusal(f"{self.where} {REFUSED_PARTS.get(str(kind), 'has a part that is not known here.')}")


def _is_anchor(item: ParsedItem, name: str) -> bool:
    return str(item[0]) == "AT" and str(item[1]) in (name, f"{name}_STRING")


def item_ranges(kind: Any, value: Any, flags: int) -> Ranges:
    """The code points that one parsed item matches. Where cases or categories matter ``re`` itself is asked, so that
    nothing is read a second way: it scans all 1.1 million characters, 5 to 30 ms; for an ASCII letter only those that
    any such letter stands for."""
    if not flags & re.IGNORECASE and (plain := _plain(kind, value)) is not None:
        return plain
    short = not isinstance(value, tuple) or len(value) <= CACHE_ENTRIES
    return _scan(kind, value, flags) if short else _scan.__wrapped__(kind, value, flags)


@lru_cache(maxsize=256)  # at 20 kB at most
def _scan(kind: Any, value: Any, flags: int) -> Ranges:
    if kind is _constants.LITERAL and value < 0x80:
        signs = set(filter(_engine(kind, value, flags).match, [*_letter_variants(), chr(value)]))
        return tuple((ord(sign), ord(sign)) for sign in signs)
    return matched_ranges(_engine(kind, value, flags))


def _plain(kind: Any, value: Any) -> Ranges | None:
    """The code points of an item that names them one by one or by ranges; None: it has a category."""
    entries = value if kind is _constants.IN else ((_constants.LITERAL, value),)
    signs = {_constants.LITERAL: lambda sign: (sign, sign), _constants.RANGE: tuple}
    is_negated = kind is _constants.NOT_LITERAL or entries[0][0] is _constants.NEGATE
    entries = entries[entries[0][0] is _constants.NEGATE :]
    if any(entry not in signs for entry, _ in entries):
        return None
    ranges: Ranges = tuple(signs[entry](sign) for entry, sign in entries)
    return complement(ranges) if is_negated else ranges


def _engine(kind: Any, value: Any, flags: int) -> re.Pattern[str]:
    """One or more of the item, compiled by ``re``."""
    state = _parser.State()
    state.flags = flags
    item = _parser.SubPattern(state, [(kind, list(value) if isinstance(value, tuple) else value)])
    many = (_constants.MAX_REPEAT, (1, _constants.MAXREPEAT, item))
    return _compiler.compile(_parser.SubPattern(state, [many]), flags)  # type: ignore[no-any-return]


@lru_cache(maxsize=1)
def _letter_variants() -> str:
    """What stands for an ASCII letter where cases do not matter: those letters, the long s, the sign of kelvin, ..."""
    return "".join(re.findall("(?i)[a-z]", every_character()))
