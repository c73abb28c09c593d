"""Automata over tokens: what each token of a vocabulary does to each state of an automaton over bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dllm.constraints.edges import NEVER, Indices, TokenEdges
from dllm.constraints.effects import NOWHERE, Effects
from dllm.constraints.languages.limits import budget
from dllm.constraints.languages.trees import ByteAutomaton
from dllm.constraints.vocabulary import Vocabulary


@dataclass(frozen=True, eq=False)
class TokenAutomaton:
    """An automaton over the tokens of a vocabulary, with the states of ``automaton``: Q of them.

    Tokens that do the same to every state are one class, of which there are C; class 0 fits nowhere.
    classes [V] int32: the class of each id. source, symbol, target, each [T]: a token of class ``symbol`` leads from
    ``source`` to ``target``; in order of the classes, then of the sources.
    """

    automaton: ByteAutomaton
    classes: NDArray[np.int32]
    source: Indices
    symbol: Indices
    target: Indices

    @property
    def accepting(self) -> NDArray[np.bool_]:
        return self.automaton.accepting

    @property
    def states(self) -> int:
        return len(self.accepting)

    @cached_property
    def size(self) -> int:
        """C: the number of classes."""
        return int(self.symbol.max(initial=0)) + 1

    @cached_property
    def first(self) -> list[int]:
        """Where the moves of each class begin, and the end [C + 1]."""
        return np.searchsorted(self.symbol, np.arange(self.size + 1)).tolist()

    @cached_property
    def edges(self) -> TokenEdges:
        return TokenEdges.of(self.source, self.symbol, self.target, self.states, self.size)

    @cached_property
    def left(self) -> NDArray[np.int64]:
        """The fewest tokens from each state [Q] to acceptance; ``edges.NEVER`` where there is no way."""
        return self.edges.distance(self.accepting)

    @cached_property
    def longest(self) -> int:
        """The most that ``left`` is for a state with a way to acceptance."""
        return int(self.left[self.left < NEVER].max(initial=0))

    def begun(self, text: bytes) -> int | None:
        """The state that a beginning leads to. None: no text begins so."""
        state = 0 if self.states else -1
        for byte in text:
            state = int(self.automaton.moves[state, byte]) if state >= 0 else -1
        return None if state < 0 else state


def token_automaton(automaton: ByteAutomaton, vocabulary: Vocabulary) -> TokenAutomaton:
    """Compile ``automaton`` for a vocabulary. Raises UserError beyond the limits of ``limits.within``."""
    effects, node = Effects(automaton.moves, budget()), vocabulary.trie.node
    by_token = np.where(node >= 0, effects.of_nodes(vocabulary.trie)[node], NOWHERE)
    used, classes = np.unique(np.append(by_token, NOWHERE), return_inverse=True)
    source = [effects.origins[effect] for effect in used]
    symbol = np.repeat(np.arange(len(used)), [len(origins) for origins in source])
    target = np.concatenate([effects.targets[effect] for effect in used])
    moves = (part.astype(np.intp) for part in (np.concatenate(source), symbol, target))
    return TokenAutomaton(automaton, classes.reshape(-1)[:-1].astype(np.int32), *moves)
