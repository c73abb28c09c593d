"""What is proposed under a constraint, against every filling of tiny rows: the best filling together, and draws that
look at the likeliest ids alone."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from constraints_decodes import class_maxima, turns_of
from harness import full
from small_languages import Case, random_case

from dllm.parts import AllLogits, ByColumn, Sampling, Turn, banned, gumbel, highest_of_classes

SEEDS = range(600 if full() else 60)


def drawn_case(draw: random.Random) -> tuple[Case, dict[str, Any]]:
    """A row that has a filling, and its decode: random logits for every turn, and ids for the mask and the end."""
    while True:
        case = random_case(draw)
        case = replace(case, texts=(*case.texts, None))
        if case.masks and any(case.fillings()):
            break
    count, ids = len(case.cells), len(case.texts)
    logits = [[[draw.gauss(0, 2) for _ in range(ids)] for _ in range(count)] for _ in range(count)]
    rule = draw.choice([{"name": "threshold", "threshold": 0.3}, {"name": "schedule", "per_step": draw.randint(1, 4)}])
    confidence = draw.choice(["model", "admissible"])
    return case, {
        "mask": ids - 1,
        "ends": case.ends,
        "rule": rule,
        "block_length": draw.choice([2, 8]),
        "logits": logits,
        "canvas": case.cells,
        "confidence": confidence,
    }


def before(case: Case, turn: Turn) -> Case:
    """The row as a turn found it."""
    tokens, masked = turn.canvas.tokens[0].tolist(), turn.canvas.masked[0].tolist()
    return replace(case, cells=tuple(-1 if hole else token for token, hole in zip(tokens, masked, strict=True)))


@pytest.mark.parametrize("seed", SEEDS)
def test_joint_proposals_are_the_best_filling_and_no_commit_is_refused(seed: int) -> None:
    draw = random.Random(seed)
    case, decode = drawn_case(draw)
    sampling = Sampling(temperature=draw.choice([0.0, 0.9]))
    for number, turn in enumerate(turns_of({**decode, "joint": True}, case.row(), sampling, seed)):
        now, scores = before(case, turn), turn.view.scores
        scored = [at for at in now.masks if scores.scored[0, at]]
        values = np.array(decode["logits"][min(number, len(decode["logits"]) - 1)])
        if sampling.temperature:
            columns, ids = torch.arange(len(case.cells))[:, None], torch.arange(len(case.texts))
            values = values / sampling.temperature + gumbel(seed, columns, number, ids).numpy()
        best = max(now.fillings(), key=lambda ids: sum(values[at, ids[at]] for at in scored))
        assert [int(scores.token[0, at]) for at in scored] == [best[at] for at in scored]
        assert not turn.marks.refused.any() and not turn.marks.replaced.any()


def nucleus(logits: Sequence[float], top_p: float | None, top_k: int | None) -> set[int]:
    """The likeliest ids whose larger ones have not yet ``top_p`` of the mass together, of these the ``top_k`` first."""
    order = sorted((at for at, value in enumerate(logits) if value > -math.inf), key=lambda at: -logits[at])
    mass = sum(math.exp(logits[at]) for at in order)
    kept, above = set(), 0.0
    for place, at in enumerate(order):
        if (top_p is None or above <= top_p * mass) and (top_k is None or place < top_k):
            kept.add(at)
        above += math.exp(logits[at])
    return kept


@pytest.mark.parametrize("seed", SEEDS)
def test_a_hot_cell_draws_from_the_likeliest_of_what_fits(seed: int) -> None:
    draw = random.Random(seed)
    case, decode = drawn_case(draw)
    heat, top_p, top_k = draw.choice([0.7, 1.5]), draw.choice([None, 0.5, 0.8]), draw.choice([None, 2, 3])
    for number, turn in enumerate(turns_of(decode, case.row(), Sampling(heat, top_p, top_k), seed)):
        now, scores = before(case, turn), turn.view.scores
        fillings = list(now.fillings())
        for at in (at for at in now.masks if scores.scored[0, at]):
            fits = {ids[at] for ids in fillings}
            logits = decode["logits"][min(number, len(decode["logits"]) - 1)][at]
            tempered = [value / heat if token in fits else -math.inf for token, value in enumerate(logits)]
            noise = {token: float(gumbel(seed, at, number, torch.tensor(token))) for token in fits}
            best = max(nucleus(tempered, top_p, top_k), key=lambda token: tempered[token] + noise[token])
            assert int(scores.token[0, at]) == best


@pytest.mark.parametrize("seed", range(20))
def test_the_maxima_of_classes_are_those_of_the_ids_in_each(seed: int) -> None:
    """Equal ones go to the lowest id."""
    draw = random.Random(seed)
    language = random_case(draw).language()
    scores = np.array([draw.choice([0.0, 1.0, -math.inf]) for _ in language.classes])
    classes = torch.tensor(language.classes).long()
    highest, ids = highest_of_classes(torch.tensor(scores)[None], classes, language.end + 1)
    expected = class_maxima(language, scores.tolist())
    assert highest[0].tolist() == expected[0].tolist()
    assert all(expected[0] == -np.inf) or (ids[0].numpy() == expected[1])[expected[0] > -np.inf].all()


def test_what_samplers_read_under_a_constraint_lacks_what_is_not_allowed() -> None:
    """Against a loop over rows, columns and ids; columns without a constraint stay whole."""
    draw, vocab = random.Random(2), 7
    columns = torch.tensor([[2, 3, 5], [1, 4, 6]])
    wanted = {(row, at): [draw.random() < 0.5 for _ in range(vocab)] for row, at in ((0, 2), (0, 5), (1, 4))}
    compiled = SimpleNamespace(
        language=object(), renormalised=False, ids=lambda allowed, device, vocab: torch.tensor(allowed)
    )
    cells = [
        SimpleNamespace(compiled=compiled, allowed=allowed, token=None, candidate=row, column=at)
        for (row, at), allowed in wanted.items()
    ]
    logits = torch.randn(2, 3, vocab)
    scores: Any = ReadScores(SimpleNamespace(vocab=vocab), {AllLogits(): ByColumn(logits, columns)})
    found = banned(scores, cells).readings[AllLogits()].values  # type: ignore[arg-type]
    for row in range(2):
        for place, at in enumerate(columns[row].tolist()):
            allowed = wanted.get((row, at), [True] * vocab)
            expected = [float(one) if ok else -math.inf for one, ok in zip(logits[row, place], allowed, strict=True)]
            assert found[row, place].tolist() == expected


@dataclass(frozen=True)
class ReadScores:
    """What is changed of scores: what was read, and how to read again."""

    repropose: Any
    readings: dict[Any, Any]
