"""A language as its minimal automaton: rules that call themselves are unrolled, ``depth`` calls deep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dllm.constraints.languages.arrays import Long
from dllm.constraints.languages.counting import counted_kinds, unclear_kinds, with_counters
from dllm.constraints.languages.graph import BYTE_SYMBOLS, CALLS, KIND_SYMBOLS, Graph, Wiring, runs
from dllm.constraints.languages.limits import budget
from dllm.constraints.languages.rules import circles, remaining
from dllm.constraints.languages.subsets import StateTable, subset_table
from dllm.constraints.languages.trees import ByteAutomaton, Counted, IntArray, Language, Tree


def to_automaton(language: Language) -> ByteAutomaton:
    """The minimal automaton of the words of ``language``. Raises UserError where ``within_limits`` does not suffice."""
    table = _table(language, {})
    return ByteAutomaton(table.over(slice(0, BYTE_SYMBOLS)), table.accepting)


def counting(language: Language) -> ByteAutomaton:
    """The automaton of the words of ``language``, in which parts that count do so, as far as one byte tells where such
    a part begins; within ``within_limits``. Raises UserError where the limits do not suffice."""
    kinds = counted_kinds(language)[:KIND_SYMBOLS]
    while True:
        table = _table(language, {kind: number for number, kind in enumerate(kinds)})
        unclear = unclear_kinds(table.over(slice(0, CALLS)), kinds)
        if not unclear:
            return with_counters(table.over(slice(0, CALLS)), table.accepting, kinds)
        kinds = [kind for kind in kinds if kind not in unclear]


def _table(language: Language, kinds: Mapping[Counted, int]) -> StateTable:
    """The minimal automaton over bytes and the parts of these ``kinds``."""
    clock, calls = budget(), remaining(language)
    numbers = {rule: number for number, rule in enumerate(calls)} if any(calls.values()) else {}
    tables = [table_of(language.rules, rule, numbers, kinds) for rule in calls]
    calling = numbers and len(tables[0].moves)
    table = Unrolling(tables, calls, language.depth).table() if calling else tables[0]
    clock.states(len(table.moves))
    return table


def table_of(
    rules: Mapping[str, Tree], rule: str, numbers: Mapping[str, int], kinds: Mapping[Counted, int]
) -> StateTable:
    """One rule's automaton over bytes, parts of ``kinds``, and calls of the rules with ``numbers``."""
    graph = Graph()
    start, final = graph.states(2), 1
    Wiring(graph, rules, numbers, kinds).between(rules[rule], start, final)
    return subset_table(graph, start, np.array([final]), CALLS + len(numbers))


@dataclass(frozen=True)
class CompiledRule:
    """A rule's automaton, ready to be copied."""

    table: StateTable  # its states and moves
    circle: int  # number of the circle of rules that it belongs to

    @cached_property
    def arcs(self) -> IntArray:
        return runs(self.table.over(slice(0, CALLS)))

    @cached_property
    def final(self) -> list[int]:
        return np.flatnonzero(self.table.accepting).tolist()

    @cached_property
    def calls(self) -> list[tuple[int, int, int, bool]]:
        moves, accepting = self.table.moves, self.table.accepting
        ends = accepting & (moves < 0).all(axis=1)
        source, rule = np.nonzero(self.table.over(slice(CALLS, None)) >= 0)
        target = moves[source, self.table.classes[CALLS + rule]]
        return list(zip(source.tolist(), rule.tolist(), target.tolist(), ends[target].tolist(), strict=True))


class Unrolling:
    """Every rule copied for each way to it: a stack of states to return to, none deeper than ``depth`` calls between
    rules of one circle. A call in last place returns where its caller would, so that right recursion needs no depth."""

    def __init__(self, tables: list[StateTable], calls: Mapping[str, set[str]], depth: int) -> None:
        circle = circles(calls)
        self.rules = [CompiledRule(table, circle[name]) for table, name in zip(tables, calls, strict=True)]
        self.depth, self.graph = depth, Graph()
        self._copies: dict[tuple[int, int, int], int] = {}  # (returns to, rule, calls in its circle): first state
        self._waiting: list[tuple[int, int, int]] = []

    def table(self) -> StateTable:
        """The minimal automaton over bytes."""
        end = self.graph.states(1)
        start = self._copy(end, 0, 0)
        while self._waiting:
            self.graph.budget.time(self.graph.size)
            self._expand(*self._waiting.pop())
        final: Long = np.array([end])
        return subset_table(self.graph, start, final, CALLS)

    def _copy(self, back: int, number: int, deep: int) -> int:
        """The first state of the copy of rule ``number`` that returns to the state ``back``."""
        key = (back, number, deep)
        if key not in self._copies:
            rule = self.rules[number]
            self._copies[key] = first = self.graph.copy(rule.arcs, len(rule.table.moves))
            self._waiting.append(key)
            for state in rule.final:
                self.graph.step(first + state, back)
        return self._copies[key]

    def _expand(self, back: int, number: int, deep: int) -> None:
        first, rule = self._copies[back, number, deep], self.rules[number]
        for source, callee, target, last in rule.calls:
            same = self.rules[callee].circle == rule.circle
            inner = deep + (not last) if same else 0
            if inner <= self.depth and len(self.rules[callee].table.moves):
                self.graph.step(first + source, self._copy(back if last else first + target, callee, inner))
