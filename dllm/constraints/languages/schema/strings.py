"""Strings under lengths, patterns and formats, and the names of members: products over UTF-8, escaped at the end."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, reduce

import numpy as np

from dllm.constraints.languages.json import character
from dllm.constraints.languages.minimal import minimised
from dllm.constraints.languages.products import difference, intersection
from dllm.constraints.languages.regex import End, regex_tree
from dllm.constraints.languages.schema.facts import Texts
from dllm.constraints.languages.schema.formats import FORMATS
from dllm.constraints.languages.schema.patterns import Patterns, pattern_automaton, writable
from dllm.constraints.languages.schema.places import refused
from dllm.constraints.languages.trees import Alt, Automaton, ByteAutomaton, Cat, Rep, Tree
from dllm.constraints.languages.utf8 import ALL_CHARACTERS, LAST, characters, literal_text

SHORT_ESCAPES = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x5C: "\\"}
PLAIN = ((0x20, 0x21), (0x23, 0x5B), (0x5D, LAST))


def strings(said: Texts, excluded: Iterable[str], patterns: Patterns, strict: bool) -> Tree:
    """A string with its quotes. Where only its length is said any escapes are allowed. Raises UserError."""
    left_out = tuple(excluded)
    if not (said.patterns or said.formats or left_out):
        inner: Tree = Rep(character(), said.low, said.high)
    else:
        inner = Automaton(json_escaped(contents(said, left_out, patterns, strict)))
    return Cat((literal_text('"'), inner, literal_text('"')))


def contents(said: Texts, excluded: Iterable[str], patterns: Patterns, strict: bool) -> ByteAutomaton:
    """The texts of a string as UTF-8. Raises UserError."""
    parts = [patterns.searched(pattern, place) for place, pattern in said.patterns]
    for place, name in said.formats:
        if name in FORMATS:
            parts.append(_format(name))
        elif strict:
            raise refused(place, f"the format {name!r} is not supported, only {', '.join(FORMATS)}. With strict=false "
                                 "other formats are passed over.")  # fmt: skip
    if said.low or said.high is not None or not parts:
        parts.append(pattern_automaton(Rep(characters(ALL_CHARACTERS), said.low, said.high)))
    return but(reduce(intersection, parts), excluded)


@cache
def _format(name: str) -> ByteAutomaton:
    return pattern_automaton(regex_tree(FORMATS[name], f"the format {name!r}", End.CLOSED))


@cache
def _plain_names() -> ByteAutomaton:
    return pattern_automaton(Rep(characters(PLAIN)))


def but(automaton: ByteAutomaton, excluded: Iterable[str]) -> ByteAutomaton:
    """Without these texts."""
    cases = tuple(literal_text(text) for text in excluded if writable(text))
    return difference(automaton, pattern_automaton(Alt(cases))) if cases else automaton


def names(patterns: Iterable[ByteAutomaton], apart: Iterable[ByteAutomaton], listed: Iterable[str]) -> Tree:
    """A name with its quotes, never escaped: under all ``patterns``, under none of ``apart``, and not ``listed``."""
    plain: Tree = Rep(characters(PLAIN))
    inside, outside, known = tuple(patterns), tuple(apart), tuple(listed)
    if inside or outside or known:
        found = but(reduce(difference, outside, reduce(intersection, inside, _plain_names())), known)
        plain = Automaton(found) if len(found.moves) else Alt()
    return Cat((literal_text('"'), plain, literal_text('"')))


def json_escaped(automaton: ByteAutomaton) -> ByteAutomaton:
    """The same texts as JSON writes them in a string, escaped only where they must be.

    A byte that may not stand there leads away from ``\\`` instead: by its letter, or by ``u00`` and two digits. So each
    state has six more: after ``\\``, ``\\u``, ``\\u0``, ``\\u00``, ``\\u000`` and ``\\u001``.
    """
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
    return ByteAutomaton(*minimised(moves.reshape(-1, 256), accepting))


