"""Patterns of ECMA-262 as trees of the texts in which they are found."""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import numpy as np

from dllm.common.errors import Refusal
from dllm.constraints.languages.automaton_of import to_automaton
from dllm.constraints.languages.ecma.classes import ASCII_WORD
from dllm.constraints.languages.ecma.parser import ASSERTION_MARKS, FIRST_ASSERTION, Parser
from dllm.constraints.languages.products import intersection
from dllm.constraints.languages.terminals import erase_marks
from dllm.constraints.languages.trees import Alt, Automaton, ByteAutomaton, Cat, Language, Rep, Tree, inner_trees
from dllm.constraints.languages.utf8 import ALL_CHARACTERS, characters

_ANYTHING = Rep(characters(ALL_CHARACTERS))


def search_tree(pattern: str, where: str) -> Tree:
    """The texts in which a pattern is found. where: names it in refusals. Raises UserError."""
    try:
        root = Parser(pattern, where).read()
        cases = [_case_tree(case) for case in (root.cases if isinstance(root, Alt) else (root,))]
        if any(inner is None for inner in cases):
            texts = Cat((_ANYTHING, root, _ANYTHING))
            markings = to_automaton(Language({"start": texts}))
            return Automaton(erase_marks(intersection(markings, _right()), FIRST_ASSERTION))
        return Alt(tuple(tree for tree in cases if tree is not None))
    except RecursionError:
        raise Refusal(f"{where} is nested too deeply. Write it with fewer groups in each other.") from None


def _case_tree(case: Tree) -> Tree | None:
    """A case with any text at its ends, unless ``^`` and ``$`` keep it out; None: assertions are elsewhere too."""
    parts = list(case.parts if isinstance(case, Cat) else (case,))
    begins = ends = False
    while parts and parts[0] == ASSERTION_MARKS["^"]:
        parts, begins = parts[1:], True
    while parts and parts[-1] == ASSERTION_MARKS["$"]:
        parts, ends = parts[:-1], True
    if any(map(_asserts, parts)):
        return None
    return Cat((Cat() if begins else _ANYTHING, *parts, Cat() if ends else _ANYTHING))


def _asserts(tree: Tree) -> bool:
    return tree in ASSERTION_MARKS.values() or any(map(_asserts, inner_trees(tree)))


_BEHIND = ("the front", "a word", "no word")  # what is before a place
_AHEAD = ("anything", "the end", "a word", "no word")  # what must be after it; the end is not a word


@lru_cache(maxsize=1)
def _right() -> ByteAutomaton:
    """All texts with marks that hold. A state is what is before, and what must follow."""
    states = list(product(_BEHIND, _AHEAD))
    word = {point for first, last in ASCII_WORD for point in range(first, last + 1)}
    moves = np.full((len(states), 256), -1, np.int32)
    for number, (behind, ahead) in enumerate(states):
        for byte in range(FIRST_ASSERTION):
            reads = "a word" if byte in word else "no word"
            if ahead in ("anything", reads):
                moves[number, byte] = states.index((reads, "anything"))
        for mark, sign in enumerate(ASSERTION_MARKS, FIRST_ASSERTION):
            ahead_now = _ahead_after(sign, behind, ahead)
            if ahead_now is not None:
                moves[number, mark] = states.index((behind, ahead_now))
    return ByteAutomaton(moves, np.array([ahead != "a word" for _, ahead in states]))


def _ahead_after(sign: str, behind: str, ahead: str) -> str | None:
    """What must follow where ``sign`` is added to what must follow already; None: it does not hold."""
    if sign == "^":
        return ahead if behind == "the front" else None
    if sign == "$":
        return None if ahead == "a word" else "the end"
    new = "no word" if (behind == "a word") == (sign == "b") else "a word"
    if ahead in ("anything", new):
        return new
    return ahead if (ahead, new) == ("the end", "no word") else None
