"""The subset construction: a nondeterministic automaton as a deterministic one, a level of new sets at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dllm.constraints.languages.arrays import Long, heads, mixed_hashes, numbered_values, pointers, spread_ranges
from dllm.constraints.languages.graph import Graph
from dllm.constraints.languages.limits import Budget
from dllm.constraints.languages.minimal import minimal_table
from dllm.constraints.languages.trees import BoolArray, IntArray

# Entries that one piece of work may write: some 8 bytes each, in about six arrays at once.
CHUNK = 2_000_000


@dataclass(frozen=True)
class StateTable:
    """A minimal deterministic automaton over classes of symbols."""

    moves: IntArray  # [S, K] the state that each class of symbols leads to (-1: none)
    accepting: BoolArray  # [S] a word may end here
    classes: Long  # [symbols] the class of each (-1: in no arc)

    def over(self, symbols: slice) -> IntArray:
        """[S, symbols] the moves by each of the symbols."""
        table = np.append(self.moves, np.full((len(self.moves), 1), -1, np.int32), axis=1)
        return table[:, self.classes[symbols]]


@dataclass(frozen=True)
class Sparse:
    """``values`` of each owner, at begins[owner] to begins[owner + 1] - 1."""

    begins: Long  # [owners + 1] where the values of each owner begin
    values: Long  # of all owners, one after the other

    @classmethod
    def of(cls, owners: Long, values: Long, count: int) -> Sparse:
        order = np.argsort(owners, kind="stable")
        return cls(pointers(owners[order], count), values[order])

    def lengths(self, owners: Long) -> Long:
        return self.begins[owners + 1] - self.begins[owners]

    def at(self, owners: Long) -> tuple[Long, Long]:
        """The values of all ``owners`` in a row, and of each the index in ``owners`` that it comes from."""
        index, which = spread_ranges(self.begins[owners], self.lengths(owners))
        return self.values[index], which


def classes_of(arcs: Long, symbols: int) -> tuple[Long, Long]:
    """Symbols that all arcs read alike: the class [symbols] of each, -1 in none, in order; and where runs begin."""
    pairs = mixed_hashes(mixed_hashes(arcs[:, 0]) + arcs[:, 3].astype(np.uint64))
    marks = np.zeros(symbols + 1, np.uint64)
    np.add.at(marks, arcs[:, 1], pairs)
    np.subtract.at(marks, arcs[:, 2] + 1, pairs)
    marks = np.cumsum(marks[:-1], dtype=np.uint64)
    number = np.full(symbols, -1)
    number[marks > 0] = numbered_values(marks[marks > 0])[1]
    return number, heads(number)


def by_class(arcs: Long, number: Long, runs: Long, clock: Budget) -> Long:
    """Arcs [A, 3] source, class, target, of arcs [A, 4] over symbols, whose classes come in ``runs``."""
    first = np.searchsorted(runs, arcs[:, 1], "right") - 1
    last = np.searchsorted(runs, arcs[:, 2], "right") - 1
    clock.nondeterministic(int((last - first + 1).sum()) // 40)
    index, owner = spread_ranges(first, last - first + 1)
    out = np.stack([arcs[owner, 0], number[runs[index]], arcs[owner, 3]], axis=1)
    order = np.lexsort((out[:, 2], out[:, 1], out[:, 0]))
    out = out[order]
    new = np.ones(len(out), bool)
    new[1:] = (out[1:] != out[:-1]).any(axis=1)
    return out[new]


def reach(steps: Long, useful: BoolArray, clock: Budget) -> Sparse:
    """The useful states that steps lead to from each state, itself included. Paths double in length each time."""
    size = len(useful)
    pairs = np.unique(np.append(steps[:, 0] * size + steps[:, 1], np.arange(size) * (size + 1)))
    new = pairs
    while len(new):
        ahead = Sparse(pointers(pairs // size, size), pairs % size)
        clock.time(size)
        clock.nondeterministic(int(ahead.lengths(new % size).sum()) // 40)
        target, which = ahead.at(new % size)
        ahead_pairs = np.unique(new[which] // size * size + target)
        new = np.setdiff1d(ahead_pairs, pairs, assume_unique=True)
        pairs = np.union1d(pairs, new)
    pairs = pairs[useful[pairs % size]]
    return Sparse(pointers(pairs // size, size), pairs % size)


def subset_table(graph: Graph, start: int, final: Long, symbols: int) -> StateTable:
    """The minimal automaton of a graph from ``start`` to the states ``final``. Raises UserError beyond a limit."""
    size, number, runs = graph.size, *classes_of(graph.arcs, symbols)
    arcs = by_class(graph.arcs, number, runs, graph.budget)
    accepts = np.zeros(size, bool)
    accepts[final] = True
    useful = accepts.copy()
    useful[arcs[:, 0]] = True
    width = max(1, int(number.max(initial=0)) + 1)
    work = Subsets(
        Sparse(pointers(arcs[:, 0], size), arcs[:, 1] * size + arcs[:, 2]),
        reach(graph.steps, useful, graph.budget),
        accepts,
        width,
        graph.budget,
    )
    return StateTable(*minimal_table(*work.moves(start)), number)


class Subsets:
    """Sets of states found so far, by their hash alone, so that only the newest level is in memory. arcs: of each state
    class * size + target; reach: as above; accepts [size]."""

    def __init__(self, arcs: Sparse, reach: Sparse, accepts: BoolArray, width: int, clock: Budget) -> None:
        self.arcs, self.reach, self.accepts, self.width, self.clock = arcs, reach, accepts, width, clock
        self.size, self.marks = len(accepts), mixed_hashes(np.arange(len(accepts)))
        self.numbers: dict[int, int] = {}

    def moves(self, start: int) -> tuple[IntArray, BoolArray]:
        """Moves [S, K] and accepting [S]; the first set is that of ``start``."""
        members = self.reach.at(np.array([start]))[0]
        begins = np.array([0, len(members)])
        self.numbers[int(self.marks[members].sum(dtype=np.uint64))] = 0
        rows, accepting = [], []
        while len(begins) > 1:
            flags = np.append(self.accepts[members], False)
            full = np.diff(begins) > 0
            accepting.append(np.logical_or.reduceat(flags, begins[:-1]) & full)
            row, begins, members = self._level(begins, members)
            rows.append(row)
        return np.concatenate(rows), np.concatenate(accepting)

    def _level(self, begins: Long, members: Long) -> tuple[IntArray, Long, Long]:
        """The moves of a level's sets, and the sets they lead to that are new."""
        counts = np.concatenate(([0], np.cumsum(self.arcs.lengths(members))))[begins]
        table = np.full((len(begins) - 1, self.width), -1, np.int32)
        lengths, members_of, first = [], [], 0
        while first < len(table):
            behind = max(first + 1, int(np.searchsorted(counts, counts[first] + CHUNK, "right")) - 1)
            owners = np.repeat(np.arange(first, behind), np.diff(begins[first : behind + 1]))
            for length, new in self._pieces(table, owners, members[begins[first] : begins[behind]]):
                lengths.append(length)
                members_of.append(new)
            self.clock.nondeterministic(sum(map(len, members_of)) // 80)
            first = behind
        none = np.empty(0, np.int64)
        return (
            table,
            np.concatenate(([0], np.cumsum(np.concatenate([none, *lengths])))),
            np.concatenate([none, *members_of]),
        )

    def _pieces(self, table: IntArray, owners: Long, members: Long) -> list[tuple[Long, Long]]:
        """Write the moves of the sets ``owners`` into the table; of each piece of work the new sets' sizes, members."""
        code, which = self.arcs.at(members)
        keys = np.unique(owners[which] * (self.width * self.size) + code)
        groups, target = np.divmod(keys, self.size)
        sizes = np.concatenate(([0], np.cumsum(self.reach.lengths(target))))
        begins, out, first = np.append(heads(groups), len(groups)), [], 0
        while first < len(begins) - 1:
            limit = sizes[begins[first]] + CHUNK
            behind = max(first + 1, int(np.searchsorted(sizes[begins], limit, "right")) - 1)
            piece = slice(begins[first], begins[behind])
            out.append(self._sets(table, groups[piece], target[piece]))
            first = behind
        return out

    def _sets(self, table: IntArray, groups: Long, targets: Long) -> tuple[Long, Long]:
        """Number the sets that each group (set, class) leads to; the sizes and members of the new ones."""
        state, which = self.reach.at(targets)
        keys = np.unique(groups[which] * self.size + state)
        group, state = np.divmod(keys, self.size)
        begins = heads(group)
        first, number = numbered_values(np.add.reduceat(self.marks[state], begins) if len(begins) else self.marks[:0])
        before = len(self.numbers)
        hashes = np.add.reduceat(self.marks[state], begins)[first].tolist() if len(begins) else []
        ids = np.array([self.numbers.setdefault(mark, len(self.numbers)) for mark in hashes], np.int64)
        self.clock.unmerged(len(self.numbers))
        table[np.divmod(group[begins], self.width)] = ids[number]
        lengths = np.diff(np.append(begins, len(group)))
        new = first[ids >= before]
        return lengths[new], state[spread_ranges(begins[new], lengths[new])[0]]
