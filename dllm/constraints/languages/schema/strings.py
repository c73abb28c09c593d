"""Strings under lengths, patterns and formats, and the names of members: products over UTF-8, escaped at the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache, reduce
from typing import TypeGuard

import numpy as np

from dllm.common.coerce import unwritable
from dllm.constraints.languages.json import character
from dllm.constraints.languages.minimal import minimal_table
from dllm.constraints.languages.products import difference, intersection
from dllm.constraints.languages.regex import regex_tree
from dllm.constraints.languages.schema.facts import Texts
from dllm.constraints.languages.schema.patterns import Patterns, pattern_automaton
from dllm.constraints.languages.schema.places import refusal_at
from dllm.constraints.languages.trees import COUNT_BITS, Alt, Automaton, ByteAutomaton, Cat, Counted, Rep, Rounds, Tree
from dllm.constraints.languages.utf8 import ALL_CHARACTERS, LAST, characters, literal_text

SHORT_ESCAPES = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x5C: "\\"}
COUNTER_LENGTH = 64  # from this maxLength on a counter counts; below, states take no more room
MARK = 0xFF  # no text holds this byte
PLAIN = ((0x20, 0x21), (0x23, 0x5B), (0x5D, LAST))


def strings(texts: Texts, exclusions: Iterable[str], patterns: Patterns, strict: bool) -> Tree:
    """A string with its quotes. Where only its length is said any escapes are allowed. Raises UserError."""
    left_out = tuple(exclusions)
    tree = _counter_tree(texts, left_out, patterns, strict) if counts(texts.high) else None
    if tree is not None:
        return tree
    if not (texts.patterns or texts.formats or left_out):
        inner: Tree = Rep(character(), texts.low, texts.high)
    else:
        inner = Automaton(json_escaped(contents(texts, left_out, patterns, strict)))
    return Cat((literal_text('"'), inner, literal_text('"')))


def contents(texts: Texts, exclusions: Iterable[str], patterns: Patterns, strict: bool) -> ByteAutomaton:
    """The texts of a string as UTF-8. Raises UserError."""
    parts = [patterns.automaton(pattern, place) for place, pattern in texts.patterns]
    for place, name in texts.formats:
        if name in FORMATS:
            parts.append(_format(name))
        elif strict:
            raise refusal_at(
                place,
                f"the format {name!r} is not supported, only {', '.join(FORMATS)}. With strict=false "
                "other formats are passed over.",
            )
    if texts.low or texts.high is not None or not parts:
        parts.append(pattern_automaton(Rep(characters(ALL_CHARACTERS), texts.low, texts.high)))
    return excluding(reduce(intersection, parts), exclusions)


def counts(high: int | None) -> TypeGuard[int]:
    """Whether a counter counts up to this."""
    return high is not None and COUNTER_LENGTH <= high < 1 << COUNT_BITS


def _counter_tree(texts: Texts, left_out: tuple[str, ...], patterns: Patterns, strict: bool) -> Tree | None:
    """A string whose characters a counter counts; None where its lengths are to be kept in states."""
    assert texts.high is not None
    low = texts.low if texts.low >= COUNTER_LENGTH else 0  # fewer are states of the content
    free = replace(texts, low=texts.low - low, high=None)
    if not (texts.patterns or texts.formats or left_out):
        return Counted(0x22, _plain_rounds(), texts.low, texts.high, 0x22) if texts.low <= texts.high else Alt()
    inner = contents(free, left_out, patterns, strict)
    shortest = _shortest(inner)
    if shortest is None or shortest > texts.high:
        return Alt()
    if shortest < low:  # which other lengths a pattern has is not known
        return None
    return Counted(0x22, _rounds(inner), low, texts.high, 0x22)


def _shortest(automaton: ByteAutomaton) -> int | None:
    """The fewest characters of a text, None without one."""
    front, old, count = {0} if len(automaton.moves) else set[int](), set[int](), 0
    while front:
        if automaton.accepting[list(front)].any():
            return count
        old |= front
        front, count = {new for state in front for new in _behind(automaton, state)} - old, count + 1
    return None


def _behind(automaton: ByteAutomaton, state: int) -> set[int]:
    """The states after one character."""
    whole, targets = set[int](), set(automaton.moves[state].tolist()) - {-1}
    while targets:
        inside = {s for s in targets if (automaton.moves[s, 0x80:0xC0] >= 0).any()}
        whole |= targets - inside
        targets = {new for s in inside for new in automaton.moves[s].tolist()} - {-1}
    return whole


@cache
def _plain_rounds() -> Rounds:
    """A round is one character in any spelling."""
    automaton = pattern_automaton(Rep(character()))
    return Rounds(automaton.moves, (automaton.moves >= 0) & automaton.accepting[:, None], automaton.accepting)


def _rounds(automaton: ByteAutomaton) -> Rounds:
    """Texts as JSON writes them; each character is a round. A mark keeps the states between two apart."""
    between = ~(automaton.moves[:, 0x80:0xC0] >= 0).any(axis=1)
    moves = automaton.moves.copy()
    moves[between, MARK] = np.flatnonzero(between)
    table = json_escaped(ByteAutomaton(moves, automaton.accepting))
    between, moves = table.moves[:, MARK] >= 0, table.moves.copy()
    moves[:, MARK] = -1
    return Rounds(moves, (moves >= 0) & between[:, None], table.accepting)


@cache
def _format(name: str) -> ByteAutomaton:
    return pattern_automaton(regex_tree(FORMATS[name], f"the format {name!r}", anchored=True))


@cache
def _plain_names() -> ByteAutomaton:
    return pattern_automaton(Rep(characters(PLAIN)))


def excluding(automaton: ByteAutomaton, exclusions: Iterable[str]) -> ByteAutomaton:
    """Without these texts."""
    cases = tuple(literal_text(text) for text in exclusions if unwritable(text) is None)
    return difference(automaton, pattern_automaton(Alt(cases))) if cases else automaton


def names(patterns: Iterable[ByteAutomaton], apart: Iterable[ByteAutomaton], exclusions: Iterable[str]) -> Tree:
    """A name with its quotes, never escaped: under all ``patterns``, none of ``apart``, and not in ``exclusions``."""
    plain: Tree = Rep(characters(PLAIN))
    inside, outside, taken_names = tuple(patterns), tuple(apart), tuple(exclusions)
    if inside or outside or taken_names:
        free = excluding(reduce(difference, outside, reduce(intersection, inside, _plain_names())), taken_names)
        plain = Automaton(free) if len(free.moves) else Alt()
    return Cat((literal_text('"'), plain, literal_text('"')))


def json_escaped(automaton: ByteAutomaton) -> ByteAutomaton:
    """The same texts as JSON writes them in a string, escaped only where they must be: by ``\\`` and a letter, or
    ``\\u00`` and two digits. So each state has six more: after ``\\``, ``\\u``, ``\\u0``, ``\\u00``, ``\\u000`` and
    ``\\u001``."""
    count = len(automaton.moves)
    moves = np.full((7, count, 256), -1, np.int32)
    moves[0] = automaton.moves
    places = np.arange(count)
    for byte in (*range(0x20), 0x22, 0x5C):
        target = automaton.moves[:, byte]
        moves[0, :, byte] = -1
        if byte in SHORT_ESCAPES:
            moves[1, :, ord(SHORT_ESCAPES[byte])] = target
        else:
            moves[5 + byte // 16, :, ord(f"{byte % 16:x}")] = target
    moves[0, :, 0x5C] = count + places
    for layer, sign in ((1, "u"), (2, "0"), (3, "0"), (4, "0")):
        moves[layer, :, ord(sign)] = (layer + 1) * count + places
    moves[4, :, ord("1")] = 6 * count + places
    accepting = np.concatenate([automaton.accepting, np.zeros(6 * count, bool)])
    return ByteAutomaton(*minimal_table(moves.reshape(-1, 256), accepting))


_YEAR = r"(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_LONG = r"(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
_DAY = rf"(?:{_LONG}|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
_DATE = rf"(?:{_YEAR}-{_DAY}|{_LEAP}-02-29)"
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](?:\.[0-9]+)?(?:Z|[+-]{_CLOCK})"
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL = r"[A-Za-z0-9]+(?:-+[A-Za-z0-9]+)*"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"

# Dates are those of the calendar, from year 1; no leap seconds. Addresses as in mail headers, without quotes.
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "ipv4": rf"{_OCTET}(?:\.{_OCTET}){{3}}",
    "email": rf"{_ATOM}(?:\.{_ATOM})*@{_LABEL}(?:\.{_LABEL})*",
}
