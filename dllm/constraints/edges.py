"""The edges of a token automaton: from state to state, each with the classes of tokens that take it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dllm.constraints.languages.arrays import distances, heads, mixed_hashes, spread_ranges
from dllm.constraints.runs import Indices, Runs

NEVER = 1 << 40  # more tokens than any answer has


@dataclass(frozen=True, eq=False)
class TokenEdges:
    """E edges in order of their sources, and what takes them."""

    source: Indices  # [E] the place that an edge leaves
    target: Indices  # [E] the place that it enters
    label: Indices  # [E] edges taken by the same classes have the same; there are far fewer labels than edges
    pairs: tuple[Indices, Indices]  # (label, class), each [P], in order: the classes of every label

    @staticmethod
    def of(source: Indices, symbol: Indices, target: Indices, states: int, classes: int) -> TokenEdges:
        """The edges of moves, each [T]: from ``source`` to ``target`` by a token of class ``symbol``."""
        key = (source * states + target) * classes + symbol
        key.sort()
        ends, symbol = key // classes, key % classes
        first = heads(ends)
        number, ends = spread_ranges(first, np.diff(first, append=len(ends)))[1], ends[first]
        sums = np.add.reduceat(mixed_hashes(symbol), first) if len(first) else np.zeros(0, np.uint64)
        _, samples, label = np.unique(sums, return_index=True, return_inverse=True)
        shows = np.zeros(len(first), bool)
        shows[samples] = True
        from_sample = shows[number]
        pairs = label.reshape(-1)[number[from_sample]], symbol[from_sample]
        order = np.argsort(pairs[0], kind="stable")
        return TokenEdges(ends // states, ends % states, label.reshape(-1), (pairs[0][order], pairs[1][order]))

    def distance(self, ends: NDArray[np.bool_], runs: Runs) -> NDArray[np.int64]:
        """The fewest edges and runs from each state to one of ``ends`` [Q bool]; NEVER where none leads there."""
        order = np.argsort(self.target, kind="stable")
        source, begin = self.source[order], np.searchsorted(self.target[order], np.arange(len(ends) + 1))

        def before(places: Indices) -> Indices:
            sources = source[spread_ranges(begin[places], begin[places + 1] - begin[places])[0]]
            return np.append(sources, runs.before(places, len(ends))) if len(runs.source) else sources

        fewest = distances(ends, before)
        return np.where(fewest < 0, NEVER, fewest)
