"""Texts to try on an automaton: words drawn from it, and every short text of an alphabet."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from dllm.parts import ByteAutomaton

Distances = NDArray[np.int64]


def drawn_words(automaton: ByteAutomaton, draw: random.Random, count: int, length: int) -> list[str]:
    """Random words: of each some ``length`` bytes at random, then the shortest way to the end. Without words: none."""
    away = _distances(automaton)
    return [_drawn(automaton, away, draw, length).decode() for _ in range(count if len(away) else 0)]


def _drawn(automaton: ByteAutomaton, away: Distances, draw: random.Random, length: int) -> bytes:
    state, word = 0, bytearray()
    while not (automaton.accepting[state] and (len(word) >= length or draw.random() < 0.2)):
        on = np.flatnonzero(automaton.moves[state] >= 0)
        if len(on) == 0:
            break
        if len(word) >= length:
            targets = away[automaton.moves[state, on]]
            on = on[targets == targets.min()]
        # By neighbours first: else most bytes are those of long characters.
        groups = np.split(on, np.flatnonzero(np.diff(on) > 1) + 1)
        word.append(int(draw.choice(draw.choice(groups).tolist())))
        state = int(automaton.moves[state, word[-1]])
    return bytes(word)


def _distances(automaton: ByteAutomaton) -> Distances:
    """[S] bytes to the nearest accepting state, by relaxation."""
    away = np.where(automaton.accepting, 0, 1 << 30)
    while True:
        nearer = np.append(away, 1 << 30)[automaton.moves].min(axis=1) + 1
        new = np.minimum(away, nearer)
        if (new == away).all():
            return away
        away = new


def texts_over(alphabet: Iterable[str], length: int) -> Iterator[str]:
    """Every text of at most ``length`` pieces of the alphabet."""
    pieces = list(alphabet)
    for size in range(length + 1):
        yield from map("".join, product(pieces, repeat=size))
