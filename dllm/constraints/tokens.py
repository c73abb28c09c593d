"""Automata over tokens: what each token of a vocabulary does to each state of an automaton over bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dllm.constraints.edges import Edges
from dllm.constraints.effects import NOWHERE, Effects, Numbers
from dllm.constraints.languages.trees import ByteAutomaton
from dllm.constraints.vocabulary import Vocabulary
from dllm.errors import TooLarge


@dataclass(frozen=True, eq=False)
class TokenAutomaton:
    """An automaton over the tokens of a vocabulary, with the states of ``automaton``: Q of them.

    Tokens that do the same to every state are one class, of which there are C; class 0 fits nowhere.
    classes [V] int32: the class of each id. delta [Q, C] int32: where a class leads, -1: nowhere.
    """

    automaton: ByteAutomaton
    classes: NDArray[np.int32]
    delta: NDArray[np.int32]

    @property
    def accepting(self) -> NDArray[np.bool_]:
        return self.automaton.accepting

    @cached_property
    def edges(self) -> Edges:
        return Edges.of(self.delta)

    @cached_property
    def left(self) -> NDArray[np.int64]:
        """The fewest tokens from each state [Q] to acceptance; ``edges.NEVER`` where there is no way."""
        return self.edges.distance(self.accepting)

    def begun(self, text: bytes) -> int | None:
        """The state that a beginning leads to. None: no text begins so."""
        state = 0 if len(self.accepting) else -1
        for byte in text:
            state = int(self.automaton.moves[state, byte]) if state >= 0 else -1
        return None if state < 0 else state


def token_automaton(automaton: ByteAutomaton, vocabulary: Vocabulary, seconds: float = 10) -> TokenAutomaton:
    """Compile ``automaton`` for a vocabulary. Raises TooLarge where that takes more than ``seconds``, or more memory
    than a server can give."""
    on_time = _clock(seconds, len(automaton.accepting))
    effects, node = Effects(automaton.moves, on_time), vocabulary.trie.node
    by_node = effects.of_nodes(vocabulary.trie)
    by_token = np.where(node >= 0, by_node[node], NOWHERE)
    used, classes = np.unique(np.append(by_token, NOWHERE), return_inverse=True)
    delta = _delta(effects, used, len(automaton.accepting), on_time)
    return TokenAutomaton(automaton, classes[:-1].astype(np.int32), delta)


def _delta(effects: Effects, used: Numbers, states: int, on_time: Callable[[], None]) -> NDArray[np.int32]:
    delta = np.full((states, len(used)), -1, np.int32)
    for number, effect in enumerate(used):
        delta[effects.origins[effect], number] = effects.targets[effect]
    on_time()
    return delta


def _clock(seconds: float, states: int) -> Callable[[], None]:
    end = time.monotonic() + seconds

    def on_time() -> None:
        if time.monotonic() > end:
            raise TooLarge(
                f"the constraint took more than {seconds:g} s to compile ({states} states). Lower constraint.depth, or "
                "write it more simply."
            )

    return on_time
