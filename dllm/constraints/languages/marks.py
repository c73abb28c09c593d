"""Marks in texts: bytes that no text holds, put where something is to be checked, and taken out again."""

from __future__ import annotations

import numpy as np

from dllm.constraints.languages.graph import BYTE_SYMBOLS, Graph, runs
from dllm.constraints.languages.subsets import determinised
from dllm.constraints.languages.trees import ByteAutomaton


def unmarked(marked: ByteAutomaton, first: int) -> ByteAutomaton:
    """The words without their marks, the bytes from ``first`` on."""
    if not len(marked.moves):
        return marked
    graph = Graph()
    graph.copy(runs(marked.moves[:, :first]), len(marked.moves))
    source, mark = np.nonzero(marked.moves[:, first:] >= 0)
    for state, target in zip(source.tolist(), marked.moves[source, first + mark].tolist(), strict=True):
        graph.step(state, target)
    table = determinised(graph, 0, np.flatnonzero(marked.accepting), BYTE_SYMBOLS)
    graph.budget.states(len(table.moves))
    return ByteAutomaton(table.over(slice(0, BYTE_SYMBOLS)), table.accepting)
