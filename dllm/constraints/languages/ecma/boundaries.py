r"""Where ``^``, ``$``, ``\b`` and ``\B`` hold: marks in a text, which is kept if each mark is right."""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import numpy as np

from dllm.constraints.languages.ecma.classes import ASCII_WORD
from dllm.constraints.languages.marks import unmarked
from dllm.constraints.languages.products import intersection
from dllm.constraints.languages.trees import ByteAutomaton

# Bytes that no text holds.
ASSERTION_MARKS = {"^": 0xFC, "$": 0xFD, "b": 0xFE, "B": 0xFF}
_BEHIND = ("the front", "a word", "no word")  # what is before a place
_AHEAD = ("anything", "the end", "a word", "no word")  # what must be after it; the end is not a word


def where_they_hold(marked: ByteAutomaton) -> ByteAutomaton:
    """The texts with a marking that is a word of ``marked`` and right, without their marks."""
    return unmarked(intersection(marked, _right()), min(ASSERTION_MARKS.values()))


@lru_cache(maxsize=1)
def _right() -> ByteAutomaton:
    """All texts with marks that hold. A state is what is before, and what must follow."""
    states = list(product(_BEHIND, _AHEAD))
    word = {point for first, last in ASCII_WORD for point in range(first, last + 1)}
    moves = np.full((len(states), 256), -1, np.int32)
    for number, (behind, ahead) in enumerate(states):
        for byte in range(min(ASSERTION_MARKS.values())):
            reads = "a word" if byte in word else "no word"
            if ahead in ("anything", reads):
                moves[number, byte] = states.index((reads, "anything"))
        for sign, mark in ASSERTION_MARKS.items():
            asked = _asked(sign, behind, ahead)
            if asked is not None:
                moves[number, mark] = states.index((behind, asked))
    return ByteAutomaton(moves, np.array([ahead != "a word" for _, ahead in states]))


def _asked(sign: str, behind: str, ahead: str) -> str | None:
    """What must follow where ``sign`` is added to what must follow already; None: it does not hold."""
    if sign == "^":
        return ahead if behind == "the front" else None
    if sign == "$":
        return None if ahead == "a word" else "the end"
    new = "no word" if (behind == "a word") == (sign == "b") else "a word"
    if ahead in ("anything", new):
        return new
    return ahead if (ahead, new) == ("the end", "no word") else None
