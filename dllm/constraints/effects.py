"""What texts do to the states of an automaton, each different effect once.

An effect is the list of pairs (state, state that the text leads to), which ``steps`` writes. However many texts there
are, few effects differ: a thousand or so for the 150,000 tokens of a vocabulary, since inside a string all words are
alike, and elsewhere nearly all lead nowhere. So a trie of texts is walked with one number per node, and only new pairs
of (effect, byte) cost more than a look-up.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dllm.constraints.languages.limits import Budget
from dllm.constraints.languages.trees import ByteAutomaton
from dllm.constraints.steps import Pairs, steps_of
from dllm.constraints.trie import Trie
from dllm.errors import UserError

Numbers = NDArray[np.int64]
NOWHERE, IDENTITY = 0, 1  # the effects of a text that fits nowhere, and of the empty text
MOVED_AT_ONCE = 1 << 20  # pairs moved between two looks at the clock: about 0.05 s
FOUND_AT_ONCE = 1 << 14  # the same for effects found
LARGEST = 1 << 24  # pairs of all effects, and what is known of them, in numbers: 100 to 300 MB


class StateMaps:
    """The effects met so far, numbered; effect e leads from the states ``origins[e]`` to ``targets[e]``."""

    def __init__(self, automaton: ByteAutomaton, budget: Budget) -> None:
        """budget: its clock is looked at often."""
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
            found = self._known.get(total)
            if found is None:
                found = self._add(total, origins[first : first + count].copy(), targets[first : first + count].copy())
            self._next[effects[at], byte_classes[at]] = found

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
            raise UserError(
                f"the constraint needs too much memory for this vocabulary ({self._states} states). Write it more "
                "simply."
            )
        if number == len(self._next):
            self._next = np.concatenate([self._next, np.full_like(self._next, -1)])
        return number
