"""Automata over tokens: what each token of a vocabulary does to each state of an automaton over bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dllm.constraints.edges import NEVER, TokenEdges
from dllm.constraints.effects import NOWHERE, StateMaps
from dllm.constraints.languages.limits import budget
from dllm.constraints.languages.trees import ByteAutomaton
from dllm.constraints.runs import Indices, Runs
from dllm.constraints.steps import Pairs, counted_places
from dllm.constraints.vocabulary import Vocabulary


@dataclass(frozen=True, eq=False)
class TokenAutomaton:
    """An automaton over the tokens of a vocabulary, with the states of ``automaton``.

    A state that counts has a place for each count, any other has one: Q places in all. Tokens that do the same
    everywhere are one class; there are C. Its T steps are in order of the classes, then of the sources.
    """

    automaton: ByteAutomaton  # over bytes, whose states it has
    classes: NDArray[np.int32]  # [V] the class of each id; class 0 fits nowhere
    source: Indices  # [T] the place before a token
    symbol: Indices  # [T] the token's class
    target: Indices  # [T] the place after it
    runs: Runs  # moves of many places at once

    @cached_property
    def accepting(self) -> NDArray[np.bool_]:
        """[Q]."""
        found = np.zeros(self.places, bool)
        found[begins(self.automaton)[np.flatnonzero(self.automaton.accepting)]] = True
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays, at least."""
        steps = self.source.nbytes + self.symbol.nbytes + self.target.nbytes
        return int(self.automaton.moves.nbytes + self.classes.nbytes + steps)

    @property
    def states(self) -> int:
        return len(self.automaton.accepting)

    @cached_property
    def places(self) -> int:
        """Q."""
        return int(sizes(self.automaton).sum())

    @cached_property
    def size(self) -> int:
        """C: the number of classes."""
        return int(max(self.symbol.max(initial=0), self.runs.symbol.max(initial=0))) + 1

    @cached_property
    def first(self) -> list[int]:
        """Where the moves of each class begin, and the end [C + 1]."""
        return np.searchsorted(self.symbol, np.arange(self.size + 1)).tolist()

    @cached_property
    def edges(self) -> TokenEdges:
        return TokenEdges.of(self.source, self.symbol, self.target, self.places, self.size)

    @cached_property
    def flat(self) -> tuple[Indices, Indices, Indices]:
        """Source, class and target of every single move."""
        source, symbol, target = self.runs.flat()
        return np.append(self.source, source), np.append(self.symbol, symbol), np.append(self.target, target)

    @cached_property
    def left(self) -> NDArray[np.int64]:
        """The fewest tokens from each place [Q] to acceptance; ``edges.NEVER`` where there is no way."""
        return self.edges.distance(self.accepting, self.runs)

    @cached_property
    def longest(self) -> int:
        """The most that ``left`` is for a place with a way to acceptance."""
        return int(self.left[self.left < NEVER].max(initial=0))

    def begun(self, text: bytes) -> int | None:
        """The place that a beginning leads to. None: no text begins so."""
        state, count = self.automaton.place(text)
        return None if state < 0 else int(begins(self.automaton)[state]) + count


def sizes(automaton: ByteAutomaton) -> Indices:
    """The places [S] of each state."""
    told = automaton.counters
    return np.ones(len(automaton.moves), np.intp) if told is None else told.high.astype(np.intp) + 1


def begins(automaton: ByteAutomaton) -> Indices:
    """The first place [S] of each state."""
    many = sizes(automaton)
    return np.cumsum(many) - many


def token_automaton(automaton: ByteAutomaton, vocabulary: Vocabulary) -> TokenAutomaton:
    """Compile ``automaton`` for a vocabulary. Raises UserError beyond the limits of ``limits.within``."""
    effects, node = StateMaps(automaton, budget()), vocabulary.trie.node
    by_token = np.where(node >= 0, effects.of_nodes(vocabulary.trie)[node], NOWHERE)
    used, classes = np.unique(np.append(by_token, NOWHERE), return_inverse=True)
    origins = [effects.origins[effect] for effect in used]
    symbol = np.repeat(np.arange(len(used)), list(map(len, origins)))
    targets = np.concatenate([effects.targets[effect] for effect in used])
    moves = _moves(automaton, np.concatenate(origins), symbol, targets)
    return TokenAutomaton(automaton, classes.reshape(-1)[:-1].astype(np.int32), *moves)


def _moves(
    automaton: ByteAutomaton, origins: Pairs, symbol: Indices, targets: Pairs
) -> tuple[Indices, Indices, Indices, Runs]:
    """The moves that pairs say: those from one place, and those from several."""
    first, size = begins(automaton), sizes(automaton)
    counting = np.zeros(0, np.intp) if automaton.counters is None else np.flatnonzero(automaton.counters.home >= 0)
    source, target = origins.astype(np.intp), targets.astype(np.intp)
    length, adds = np.ones(len(source), np.intp), np.zeros(len(source), bool)
    if len(counting):
        source, length, target, adds = counted_places(origins, targets, first)
    alone, many = length == 1, np.flatnonzero(length > 1)
    runs = Runs(first[counting], size[counting], source, symbol, target, length, adds).of(many)
    return source[alone], symbol[alone], target[alone], runs
