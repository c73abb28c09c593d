"""Parts that count their rounds: in a counter each, or as states of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dllm.constraints.languages.limits import budget
from dllm.constraints.languages.minimal import minimal_table
from dllm.constraints.languages.trees import (
    COUNT_BITS,
    Automaton,
    BoolArray,
    ByteAutomaton,
    Bytes,
    Cat,
    Counted,
    Counters,
    IntArray,
    Language,
    Tree,
    inner_trees,
)

WIDTH = 256  # of a table over bytes


def unroll(part: Counted) -> Tree:
    """The same texts with states for each count. Raises UserError beyond the limits."""
    rounds, width = part.rounds, len(part.rounds.moves)
    budget().unmerged(width * (part.high + 1))
    count = np.arange(part.high + 1)[:, None, None] + rounds.counts
    moves = np.where((rounds.moves >= 0) & (count <= part.high), rounds.moves + width * count, -1)
    accepting = rounds.ends & (np.arange(part.high + 1) >= part.low)[:, None]
    inner = minimal_table(moves.reshape(-1, WIDTH).astype(np.int32), accepting.reshape(-1))
    return Cat((Bytes(((part.opens,) * 2,)), Automaton(ByteAutomaton(*inner)), Bytes(((part.closes,) * 2,))))


def counted_kinds(language: Language) -> list[Counted]:
    """The different parts of a language that count, those with the most counts first."""
    kinds: dict[Counted, None] = {}
    trees: set[int] = set()
    waiting: list[Tree] = list(language.rules.values())
    while waiting:
        tree = waiting.pop()
        if id(tree) in trees:
            continue
        trees.add(id(tree))
        waiting.extend(inner_trees(tree))
        if isinstance(tree, Counted):
            kinds[tree] = None
    return sorted(kinds, key=lambda part: -part.high * len(part.rounds.moves))


def unclear_kinds(moves: IntArray, kinds: Sequence[Counted]) -> set[Counted]:
    """Those of whose beginning something else may begin in the same state. moves [S, bytes and kinds]."""
    unclear_ones: set[Counted] = set()
    by_opening: dict[int, list[int]] = {}
    for number, kind in enumerate(kinds):
        by_opening.setdefault(kind.opens, []).append(number)
    for byte, numbers in by_opening.items():
        begins = moves[:, [byte, *(WIDTH + number for number in numbers)]] >= 0
        unclear = begins[begins.sum(axis=1) > 1].any(axis=0)[1:]
        unclear_ones |= {kinds[number] for number, several in zip(numbers, unclear, strict=True) if several}
    return unclear_ones


def with_counters(moves: IntArray, accepting: BoolArray, kinds: Sequence[Counted]) -> ByteAutomaton:
    """The automaton of moves [S, bytes and kinds] in which each part of a kind has states of its own, with a counter,
    for each state that it leads to."""
    tables, plain = [moves[:, :WIDTH].copy()], len(moves)
    source, number = np.nonzero(moves[:, WIDTH : WIDTH + len(kinds)] >= 0)
    parts: dict[tuple[int, int], int] = {}
    arcs = source.tolist(), number.tolist(), moves[source, WIDTH + number].tolist()
    for state, kind, target in zip(*arcs, strict=True):
        if (kind, target) not in parts:
            parts[kind, target] = sum(map(len, tables))
            tables.append(_part(kinds[kind], parts[kind, target], target))
        tables[0][state, kinds[kind].opens] = parts[kind, target]
    if not parts:
        return ByteAutomaton(tables[0], accepting)
    owners = [kinds[kind] for kind, _ in parts]
    sizes = [plain, *(len(part.rounds.moves) for part in owners)]
    budget().states(sum(sizes))
    if sum(sizes) >= 1 << COUNT_BITS:
        raise budget().too_large()
    budget().counts(sum(len(part.rounds.moves) * (part.high + 1) for part in owners))
    homes, lows, highs = range(len(owners)), [part.low for part in owners], [part.high for part in owners]
    home, low, high = (np.repeat(np.array(each, np.int32), sizes) for each in ([-1, *homes], [0, *lows], [0, *highs]))
    counts = np.concatenate([np.zeros((plain, WIDTH), bool), *(part.rounds.counts for part in owners)])
    counters = Counters(home, low, high, counts)
    ends = np.append(accepting, np.zeros(sum(sizes) - plain, bool))
    return ByteAutomaton(np.concatenate(tables), ends, counters)


def _part(part: Counted, first: int, target: int) -> IntArray:
    """A part's moves, with states from ``first`` on, closed into ``target``."""
    moves = np.where(part.rounds.moves >= 0, part.rounds.moves + first, -1).astype(np.int32)
    moves[part.rounds.ends, part.closes] = target
    return moves
