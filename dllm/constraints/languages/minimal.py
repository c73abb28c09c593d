"""The smallest automaton of a deterministic one: states that lead nowhere go, states with the same future are one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dllm.constraints.languages.arrays import (
    ASIDE,
    Hashes,
    Long,
    distances,
    heads,
    mixed_hashes,
    numbered_values,
    pointers,
    spread_ranges,
    sums,
)
from dllm.constraints.languages.limits import budget
from dllm.constraints.languages.trees import BoolArray, IntArray


@dataclass(frozen=True)
class Edges:
    """Pairs of states with the classes that lead from one to the other as one hash, in order of their targets."""

    source: Long  # the state that the pair leaves
    weight: Hashes  # a sum over classes, so that edges into several states add up to that of a set
    begins: Long  # [S + 1] where the edges into each state begin

    @classmethod
    def of(cls, moves: IntArray) -> Edges:
        """moves [S, K]; chunks of rows keep the arrays small."""
        count, chunk = len(moves), max(1, 4_000_000 // max(1, moves.shape[1]))
        pairs, weights = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
        for first in range(0, count, chunk):
            row, symbol = np.nonzero(moves[first : first + chunk] >= 0)
            keys = moves[first + row, symbol] * np.int64(count) + (first + row)
            pair, weight = sums(keys, mixed_hashes(symbol))
            pairs.append(pair.astype(np.int64))
            weights.append(weight)
        pair, weight = np.concatenate(pairs), np.concatenate(weights)
        order = np.argsort(pair, kind="stable")
        target, source = np.divmod(pair[order], max(1, count))
        return cls(source, weight[order], pointers(target, count))

    def into(self, states: Long) -> tuple[Long, Long]:
        """The edges into ``states``, and of each the index in ``states`` of its target."""
        return spread_ranges(self.begins[states], self.begins[states + 1] - self.begins[states])


def blocks(edges: Edges, first: Long) -> Long:
    """The coarsest partition [S] finer than ``first`` in which equals lead to equals by every class. As Hopcroft's:
    when a block splits, all parts but the largest are queued again, here all of them at once."""
    block, clock = first.copy(), budget()
    sizes = np.bincount(block)
    active = np.ones(len(sizes), bool)
    while active.any():
        clock.time(len(sizes))
        states = np.flatnonzero(active[block])
        edge, owner = edges.into(states)
        home = mixed_hashes(block[states[owner]] + ASIDE) | np.uint64(1)
        states_before, marks = sums(edges.source[edge], edges.weight[edge] * home)
        block, sizes, active = _split(block, sizes, states_before.astype(np.int64), marks)
    return block


def _split(block: Long, sizes: Long, states: Long, marks: Hashes) -> tuple[Long, Long, BoolArray]:
    """Split the blocks of these states by their marks; the other states of a block are one part of it."""
    order = np.lexsort((marks, block[states]))
    states, marks, home = states[order], marks[order], block[states[order]]
    begins = np.union1d(heads(home), heads(marks))
    counts, homes = np.diff(np.append(begins, len(states))), home[begins]
    rest = sizes.copy()
    np.subtract.at(rest, homes, counts)
    # A block without other states keeps its number for its first part.
    stays = np.zeros(len(begins), bool)
    stays[heads(homes)] = True
    stays &= rest[homes] == 0
    fresh = np.cumsum(~stays) - 1 + len(sizes)
    part = np.where(stays, homes, fresh)
    block = block.copy()
    block[states] = np.repeat(part, counts)
    new_sizes = np.concatenate((rest, np.zeros(int((~stays).sum()), np.int64)))
    new_sizes[part] = counts
    return block, new_sizes, _again(homes, part, new_sizes, len(sizes))


def _again(homes: Long, part: Long, sizes: Long, old: int) -> BoolArray:
    """All parts of each split block, but one of the largest."""
    split = np.unique(homes[part >= old])
    family = np.full(len(sizes), -1)
    family[part], family[split] = homes, split
    parts = np.flatnonzero(np.isin(family, split))
    parts = parts[np.lexsort((-sizes[parts], family[parts]))]
    active = np.zeros(len(sizes), bool)
    active[parts] = True
    active[parts[heads(family[parts])]] = False
    return active


def minimal_table(moves: IntArray, accepting: BoolArray) -> tuple[IntArray, BoolArray]:
    """The minimal table of moves [S, K] from state 0, without states that lead nowhere. States are numbered by their
    first words, shortest first: equal languages give equal tables."""
    edges = Edges.of(moves)
    away = distances(accepting, lambda states: edges.source[edges.into(states)[0]])
    if not len(away) or away[0] < 0:
        return moves[:0], accepting[:0]
    alive = np.flatnonzero(away >= 0)
    place = np.append(np.full(len(moves), -1), -1)
    place[alive] = np.arange(len(alive))
    moves, accepting = place[moves[alive]].astype(np.int32), accepting[alive]
    _, start = np.unique(away[alive], return_inverse=True)
    first, number = numbered_values(blocks(Edges.of(moves), start.reshape(-1)))
    table = np.append(number, -1)[moves[first]]
    order, place = _breadth_first(table)
    return np.append(place, -1)[table[order]].astype(np.int32), accepting[first][order]


def _breadth_first(moves: Long) -> tuple[Long, Long]:
    """The states reached from state 0 in the order of their first words, and the place [S] of each in that order."""
    place, front, count = np.full(len(moves), -1), np.zeros(1, np.int64), 1
    place[0], order = 0, [front]
    while len(front):
        targets = moves[front].reshape(-1)
        targets = targets[targets >= 0]
        targets = targets[place[targets] < 0]
        front = targets[np.sort(np.unique(targets, return_index=True)[1])]
        place[front] = np.arange(count, count + len(front))
        count += len(front)
        order.append(front)
    return np.concatenate(order), place
