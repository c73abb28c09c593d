"""A trie of texts as arrays, level by level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dllm.constraints.languages.trees import IntArray


@dataclass(frozen=True, eq=False)
class Trie:
    """The beginnings of all texts: N nodes; node 0 is the empty text."""

    # where each level begins, and the end: beginnings of d bytes are bounds[d] to bounds[d + 1]
    bounds: tuple[int, ...]
    parent: IntArray  # [N] the node without the last byte
    byte: NDArray[np.uint8]  # [N] the last byte
    node: IntArray  # [V] the node of each id's text (-1: it has none)

    @staticmethod
    def of(texts: Sequence[bytes | None]) -> Trie:
        """The trie of ``texts`` by id; equal texts share a node."""
        known = {number: text for number, text in enumerate(texts) if text is not None}
        order = sorted(known, key=known.__getitem__)
        lengths = np.array([len(known[number]) for number in order], np.int64)
        data, begin = np.frombuffer(b"".join(known[number] for number in order), np.uint8), np.cumsum(lengths) - lengths
        bounds, parents, last = [0, 1], [np.zeros(1, np.int32)], [np.zeros(1, np.uint8)]
        node, alive = np.zeros(len(order), np.int32), np.flatnonzero(lengths)
        while len(alive):
            parent, byte = node[alive], data[begin[alive] + len(bounds) - 2]
            new = np.ones(len(alive), bool)  # sorted texts with the same beginning are side by side
            new[1:] = (parent[1:] != parent[:-1]) | (byte[1:] != byte[:-1])
            node[alive] = bounds[-1] - 1 + np.cumsum(new)
            parents, last = [*parents, parent[new]], [*last, byte[new]]
            bounds.append(bounds[-1] + int(new.sum()))
            alive = alive[lengths[alive] > len(bounds) - 2]
        by_id = np.full(len(texts), -1, np.int32)
        by_id[order] = node
        return Trie(tuple(bounds), np.concatenate(parents), np.concatenate(last), by_id)
