"""Terminals that may not run into each other: ``letx`` is not ``let x``. Marks around them say where they meet."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dllm.constraints.languages.automaton_of import to_automaton
from dllm.constraints.languages.graph import BYTE_SYMBOLS, Graph, runs
from dllm.constraints.languages.limits import CompileLimits, within_limits
from dllm.constraints.languages.products import difference, intersection
from dllm.constraints.languages.regex import regex_tree
from dllm.constraints.languages.subsets import subset_table
from dllm.constraints.languages.trees import Alt, ByteAutomaton, Bytes, Cat, Language, Rep
from dllm.constraints.languages.utf8 import ALL_CHARACTERS, characters

# Two bytes that no text holds.
WORD_ENDS, WORD_BEGINS = Bytes(((0xFE, 0xFE),)), Bytes(((0xFF, 0xFF),))
FIRST_MARK = 0xFE


def without_marks(markings: ByteAutomaton) -> ByteAutomaton:
    """The words, without their marks, in which no word character is on both sides of two marks in a row."""
    return erase_marks(intersection(markings, _apart()), FIRST_MARK)


@lru_cache(maxsize=1)
def _apart() -> ByteAutomaton:
    """All marked texts but those where a terminal that ends in a word character meets one that begins with such."""
    word = regex_tree(r"\w", "")
    anything = Rep(Alt((characters(ALL_CHARACTERS), WORD_ENDS, WORD_BEGINS)))
    together = Cat((anything, word, WORD_ENDS, WORD_BEGINS, word, anything))
    with within_limits(CompileLimits()):  # no part of what a constraint may take
        return difference(to_automaton(Language({"start": anything})), to_automaton(Language({"start": together})))


def erase_marks(markings: ByteAutomaton, first: int) -> ByteAutomaton:
    """The words without their marks, the bytes from ``first`` on."""
    if not len(markings.moves):
        return markings
    graph = Graph()
    graph.copy(runs(markings.moves[:, :first]), len(markings.moves))
    source, mark = np.nonzero(markings.moves[:, first:] >= 0)
    for state, target in zip(source.tolist(), markings.moves[source, first + mark].tolist(), strict=True):
        graph.step(state, target)
    table = subset_table(graph, 0, np.flatnonzero(markings.accepting), BYTE_SYMBOLS)
    graph.budget.states(len(table.moves))
    return ByteAutomaton(table.over(slice(0, BYTE_SYMBOLS)), table.accepting)
