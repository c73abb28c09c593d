"""Automata over tokens: what each token of a vocabulary does to each state of an automaton over bytes.

An effect is the list of pairs (state, state that the text leads to), which ``steps`` writes. However many texts there
are, few effects differ: a thousand or so for the 150,000 tokens of a vocabulary, since inside a string all words are
alike, and elsewhere nearly all lead nowhere. So a trie of texts is walked with one number per node, and only new pairs
of (effect, byte) cost more than a look-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dllm.common.errors import Refusal
from dllm.constraints.edges import NEVER, TokenEdges
from dllm.constraints.languages.limits import Budget, budget
from dllm.constraints.languages.trees import ByteAutomaton
from dllm.constraints.runs import Indices, Runs
from dllm.constraints.steps import Pairs, counted_places, steps_of
from dllm.constraints.vocabulary import Trie, Vocabulary


@dataclass(frozen=True, eq=False)
class TokenAutomaton:
    """An automaton over the tokens of a vocabulary, with the states of ``automaton``. A state that counts has a place
    for each count, any other has one: Q places in all. Tokens that do the same everywhere are one class; there are C.
    Its T steps are in order of the classes, then of the sources."""

    automaton: ByteAutomaton  # over bytes, whose states it has
    classes: NDArray[np.int32]  # [V] the class of each id; class 0 fits nowhere
    source: Indices  # [T] the place before a token
    symbol: Indices  # [T] the token's class
    target: Indices  # [T] the place after it
    runs: Runs  # moves of many places at once

    @cached_property
    def accepting(self) -> NDArray[np.bool_]:
        """[Q]."""
        out = np.zeros(self.places, bool)
        out[begins(self.automaton)[np.flatnonzero(self.automaton.accepting)]] = True
        return out

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
    counters = automaton.counters
    return np.ones(len(automaton.moves), np.intp) if counters is None else counters.high.astype(np.intp) + 1


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


Numbers = NDArray[np.int64]
NOWHERE, IDENTITY = 0, 1  # the effects of a text that fits nowhere, and of the empty text
MOVED_AT_ONCE = 1 << 20  # pairs moved between two looks at the clock: about 0.05 s
FOUND_AT_ONCE = 1 << 14  # the same for effects found
LARGEST = 1 << 24  # pairs of all effects, and what is known of them, in numbers: 100 to 300 MB


class StateMaps:
    """The effects met so far, numbered; effect e leads from the states ``origins[e]`` to ``targets[e]``."""

    def __init__(self, automaton: ByteAutomaton, budget: Budget) -> None:
        """budget: its clock is read often."""
        self._steps, self.byte_class = steps_of(automaton)
        self._states, self._budget = len(automaton.moves), budget
        origins, targets = self._steps.all()
        self.origins, self.targets = [origins[:0], origins], [targets[:0], targets]
        width = int(self.byte_class.max()) + 1
        self._next = np.full((2, width), -1, np.int32)  # [effects, byte classes]: -1 where not yet known
        self._next[NOWHERE] = NOWHERE
        self._known = {0: NOWHERE, int(self._steps.sums(origins, targets).sum()): IDENTITY}
        self._pairs = len(origins)

    def of_nodes(self, trie: Trie) -> Numbers:
        """The effect of every node [N]."""
        effects = np.full(len(trie.parent), IDENTITY)
        for begin, end in zip(trie.bounds[1:], trie.bounds[2:], strict=False):
            effects[begin:end] = self.after(effects[trie.parent[begin:end]], self.byte_class[trie.byte[begin:end]])
        return effects

    def after(self, effects: Numbers, byte_classes: Numbers) -> Numbers:
        """The effects [m] of texts one byte longer."""
        width = self._next.shape[1]
        pairs = effects * width + byte_classes
        unknown = np.unique(pairs[self._next.reshape(-1)[pairs] < 0])
        while len(unknown):
            sizes = np.cumsum([len(self.origins[effect]) for effect in unknown // width])
            some = unknown[: min(FOUND_AT_ONCE, max(1, int(np.searchsorted(sizes, MOVED_AT_ONCE, side="right"))))]
            self._learn(some // width, some % width)
            unknown = unknown[len(some) :]
        return self._next.reshape(-1)[pairs]

    def _learn(self, effects: Numbers, byte_classes: Numbers) -> None:
        """Find what each of the effects is with one more byte, and note it."""
        self._budget.time(self._states)
        origins, targets, counts = self._moved(effects, byte_classes)
        begin = np.cumsum(counts) - counts
        sums = np.add.reduceat(np.append(self._steps.sums(origins, targets), np.uint64(0)), begin) * (counts > 0)
        for at, (total, first, count) in enumerate(zip(sums.tolist(), begin.tolist(), counts.tolist(), strict=True)):
            effect = self._known.get(total)
            if effect is None:
                effect = self._add(total, origins[first : first + count].copy(), targets[first : first + count].copy())
            self._next[effects[at], byte_classes[at]] = effect

    def _moved(self, effects: Numbers, byte_classes: Numbers) -> tuple[Pairs, Pairs, Numbers]:
        """The pairs of effects with one more byte, one effect after the other, and how many each has."""
        sizes = np.array([len(self.origins[effect]) for effect in effects])
        origins = np.concatenate([self.origins[effect] for effect in effects])
        targets = np.concatenate([self.targets[effect] for effect in effects])
        origins, targets = self._steps.after(origins, targets, np.repeat(byte_classes, sizes))
        lives = targets >= 0
        counts = np.add.reduceat(np.append(lives, False), np.cumsum(sizes) - sizes, dtype=np.int64) * (sizes > 0)
        return origins[lives], targets[lives], counts

    def _add(self, total: int, origins: Pairs, targets: Pairs) -> int:
        number = self._known[total] = len(self.origins)
        self.origins.append(origins)
        self.targets.append(targets)
        self._pairs += len(origins)
        if self._pairs + self._next.size > LARGEST:
            raise Refusal(
                f"the {{constraint:name}} needs too much memory for this vocabulary ({self._states} states). Write it "
                "more simply."
            )
        if number == len(self._next):
            self._next = np.concatenate([self._next, np.full_like(self._next, -1)])
        return number
