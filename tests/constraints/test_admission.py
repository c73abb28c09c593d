"""A turn in which a rule takes back and commits at once, against brute force over the words of small languages."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from dllm.parts import (
    MASK,
    CompiledConstraint,
    ConstrainedRow,
    Decided,
    Regex,
    RowSets,
    TokenLanguage,
    Vocabulary,
    admit,
    automaton_of,
    token_automaton,
)

LENGTH, LETTERS = 4, "abcd"
ID = {letter: number for number, letter in enumerate(LETTERS)}
VOCABULARY = Vocabulary(tuple(letter.encode() for letter in LETTERS))
VIEW: Any = SimpleNamespace(scores=SimpleNamespace(repropose=None), open=torch.zeros(1, LENGTH, dtype=torch.bool))


def fits(words: Sequence[str], cells: Sequence[str | None]) -> bool:
    """Whether a word has these letters at the decided cells."""
    return any(all(cell in (None, letter) for cell, letter in zip(cells, word, strict=True)) for word in words)


def wanted(
    words: Sequence[str], cells: list[str | None], commits: dict[int, tuple[str, float]], remasked: Sequence[int]
) -> tuple[dict[int, str], list[int]]:
    """Commits and columns taken back, by the rule's words: all of the step, or commits to masks alone, the surest
    first."""
    letters = {column: letter for column, (letter, _) in commits.items()}
    if fits(words, [letters.get(at, None if at in remasked else cell) for at, cell in enumerate(cells)]):
        return letters, list(remasked)
    kept: dict[int, str] = {}
    for column in sorted(commits, key=lambda column: (-commits[column][1], column)):
        tried = {**kept, column: letters[column]}
        if cells[column] is None and fits(words, [tried.get(at, cell) for at, cell in enumerate(cells)]):
            kept = tried
    return kept, []


def test_a_turn_that_loses_a_commit_takes_nothing_back() -> None:
    met = Counter[bool]()
    for seed in range(60):
        dice = random.Random(seed)
        words = ["".join(dice.choices(LETTERS, k=LENGTH)) for _ in range(5)]
        tokens_of = token_automaton(automaton_of(Regex("|".join(words))), VOCABULARY)
        compiled = CompiledConstraint(TokenLanguage(tokens_of, ()), "regex", False, False, False)
        word = dice.choice(words)
        cells = [letter if dice.random() < 0.6 else None for letter in word]
        decided = [at for at, cell in enumerate(cells) if cell is not None]
        remasked = sorted(dice.sample(decided, dice.randint(0, len(decided))))
        free = [at for at, cell in enumerate(cells) if cell is None or at in remasked]
        commits = {at: (dice.choice(LETTERS), dice.random()) for at in free if dice.random() < 0.7}
        kept, back = wanted(words, cells, commits, remasked)
        if not kept or not commits:  # a turn always commits: then the surest proposal, which alone fits
            continue
        row = ConstrainedRow(
            compiled, 0, [RowSets(compiled.language, [MASK if c is None else ID[c] for c in cells], 0)]
        )
        mask = {name: np.zeros(LENGTH, bool) for name in ("judged", "forced", "edit", "other", "waits")}
        commit, remask = (np.isin(np.arange(LENGTH), [*columns]) for columns in (commits, remasked))
        tokens = np.array([ID[commits[at][0]] if at in commits else 0 for at in range(LENGTH)])
        sure = np.array([commits[at][1] if at in commits else np.nan for at in range(LENGTH)])
        step = Decided(
            0, commit, tokens, sure, commit.copy(), mask["forced"], remask, mask["edit"], mask["other"], mask["waits"]
        )
        whole = admit([row], step, VIEW)
        assert {at: tokens[at] for at in np.flatnonzero(step.commit)} == {at: ID[one] for at, one in kept.items()}
        assert np.flatnonzero(step.remask).tolist() == back and whole == (len(kept) == len(commits))
        met[whole or not remasked] += 1
    assert met[False] >= 8, met
