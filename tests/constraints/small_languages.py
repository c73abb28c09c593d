"""Tiny languages, vocabularies and rows, and what is true of them by trying every filling."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from dllm.parts import MASK, ByteAutomaton, RowSets, TokenLanguage, Vocabulary, token_automaton

Ids = tuple[int, ...]


def random_automaton(draw: random.Random, states: int, alphabet: bytes = b"abc") -> ByteAutomaton:
    moves = np.full((states, 256), -1, np.int32)
    for state in range(states):
        for byte in alphabet:
            moves[state, byte] = draw.choice([-1, *range(states)])
    return ByteAutomaton(moves, np.array([draw.random() < 0.4 for _ in range(states)]))


def accepts(automaton: ByteAutomaton, text: bytes) -> bool:
    state = 0
    for byte in text:
        state = int(automaton.moves[state, byte])
        if state < 0:
            return False
    return bool(automaton.accepting[state])


@dataclass(frozen=True)
class Case:
    """A row under a constraint, with nothing but what defines it."""

    automaton: ByteAutomaton
    texts: tuple[bytes | None, ...]
    ends: Ids
    gaps: int
    begun: bytes
    cells: Ids
    least: int = 0

    def row(self) -> RowSets:
        return RowSets(self.language(), self.cells, self.gaps, self.begun, self.least)

    def language(self) -> TokenLanguage:
        return TokenLanguage(token_automaton(self.automaton, Vocabulary(self.texts)), self.ends)

    def written(self, ids: Sequence[int]) -> bytes | None:
        """The text of a filling; None: it has none."""
        text, ended = self.begun, False
        for at, number in enumerate(ids):
            if number in self.ends and at < self.least:
                return None
            ended = ended or (number in self.ends and at >= self.gaps)
            if number in self.ends:
                continue
            piece = self.texts[number]
            if ended or piece is None:
                return None
            text += piece
        return text

    def fillings(self, given: Mapping[int, int] | None = None) -> Iterator[Ids]:
        """All ids for the row, ``given`` ones written in, that make it a word."""
        given, everything = given or {}, range(len(self.texts))
        cells = [given.get(at, number) for at, number in enumerate(self.cells)]
        for ids in product(*(everything if number == MASK else [number] for number in cells)):
            text = self.written(ids)
            if text is not None and accepts(self.automaton, text):
                yield ids

    @property
    def masks(self) -> list[int]:
        return [at for at, number in enumerate(self.cells) if number == MASK]


def random_case(draw: random.Random, size: int = 4) -> Case:
    """A row of up to ``size`` cells over a vocabulary of at most eight ids, in any of the kinds."""
    spellings = [bytes(draw.choices(b"abc", k=draw.randint(1, 3))) for _ in range(draw.randint(2, 5))]
    special = draw.randint(1, 3)
    texts = (*spellings, *[None] * special)
    order = draw.sample(range(len(texts)), len(texts))
    shuffled = tuple(texts[at] for at in order)
    silent = [at for at, text in enumerate(shuffled) if text is None]
    ends = tuple(draw.sample(silent, draw.randint(0, min(2, special))))
    cells = [MASK if draw.random() < 0.7 else draw.randrange(len(texts)) for _ in range(draw.randint(1, size))]
    given = [at for at, number in enumerate(cells) if number != MASK]
    gaps = given[-1] if given and draw.random() < 0.5 else 0
    begun = bytes(draw.choices(b"abc", k=draw.choice([0, 0, 1, 2])))
    automaton, least = random_automaton(draw, draw.randint(1, 5)), draw.choice([0, 0, draw.randint(1, size)])
    return Case(automaton, shuffled, ends, gaps, begun, tuple(cells), least)
