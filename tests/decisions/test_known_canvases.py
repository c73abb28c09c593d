"""Slots that a model does not predict, or whose text behind it does not see: what is refused, against the network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from dllm import Decoder, UserError
from dllm.parts import Fixed, Model, ReadCanvas, ReadQuery, Renoise, Turn, load, read_canvases, refuse_unknown_canvases
from tests.support.harness import DATA, full

PROMPT = (51, 25, 3, 17, 9, 40, 22, 7)
KINDS = ("tiny-nbdiff", "tiny-wedlm", "tiny-diffcoder", "tiny-llada", "tiny-a2d-bd3lm", "tiny-fastdllm-v2")


def query(model: Model, cells: tuple[int | None, ...], at: int) -> ReadQuery:
    """What stands ``at`` a masked column behind the prompt."""
    tokens = (*PROMPT, *(model.ids.placeholder if cell is None else cell for cell in cells))
    masked = frozenset(len(PROMPT) + number for number, cell in enumerate(cells) if cell is None)
    return ReadQuery(ReadCanvas(tokens, masked, len(PROMPT)), ((len(PROMPT) + at, tuple(range(64))),))


def known(model: Model, *queries: ReadQuery) -> bool:
    try:
        refuse_unknown_canvases(model.config, queries)
    except UserError:
        return False
    return True


@pytest.mark.parametrize("name", KINDS if full() else KINDS[:4])
def test_text_behind_a_slot_is_refused_where_it_changes_nothing(name: str) -> None:
    model = load(DATA / "models" / name, dtype="float64", mask_id=60)
    told = set()
    for behind in (0, 1, 2, 5, 9, 33):  # columns between the slot and the token that changes
        given = (4, None, *([5] * behind))
        first, other = (query(model, (*given, token), 1) for token in (6, 7))
        moved = read_canvases(model, [first])[0].log_p != read_canvases(model, [other])[0].log_p
        assert known(model, first) == moved, behind
        told.add(moved)
    block = model.config.attention.block
    assert told == ({True} if block is None else {True, False})


@pytest.mark.parametrize("name", ["tiny-nbdiff", "tiny-diffcoder", "tiny-fastdllm-v2"])
def test_a_slot_is_refused_while_a_block_before_it_is_masked(name: str) -> None:
    model = load(DATA / "models" / name, dtype="float64", mask_id=60)
    block = model.config.attention.block
    assert block is not None
    early, late = (None, *[5] * block, 4, None), (4, *[5] * block, 4, None)
    assert not known(model, query(model, early, len(early) - 1)) and known(model, query(model, late, len(late) - 1))
    assert known(model, query(model, (4, None, None), 1))
    if model.config.attention.alone(torch.zeros(1, 1, dtype=torch.bool), torch.zeros(1)) is not None:
        assert not known(model, query(model, (None, None), 1)), "a block's first position is decided alone"
        assert known(model, query(model, (None, None), 0))


def test_a_model_of_noise_is_read_as_its_first_forward_reads_it() -> None:
    """DiffusionGemma: undecided columns show the noise of seed 0. The likeliest tokens are those of a decode's first
    forward, and log-probabilities are the network's."""
    model = load(DATA / "models" / "dg_dev", dtype="float64")
    seen: list[Any] = []

    def look(turn: Turn) -> None:
        if not seen:
            canvas, scores = turn.view.canvas, turn.view.scores
            seen.append((canvas.tokens.clone(), canvas.masked.clone(), scores.statistics["likeliest"][0].tolist()))

    Decoder(model, Renoise(), Fixed(8), gen_length=8)(list(PROMPT), observe=look)
    tokens, masked, likeliest = seen[0]
    cells = (None,) * 8
    asked = query(model, cells, 0)
    asked = replace(asked, targets=tuple((len(PROMPT) + at, tuple(range(64))) for at in range(8)))
    found = read_canvases(model, [asked])[0]
    assert list(found.top) == likeliest[len(PROMPT) :] and known(model, asked)
    with torch.inference_mode():
        hidden = model.transformer.encode(tokens, None, masked, torch.tensor([len(PROMPT)]))[0, len(PROMPT) :]
        expected = model.transformer.logits(hidden).double().log_softmax(-1)
    assert torch.allclose(torch.tensor(found.log_p, dtype=torch.float64), expected, atol=1e-9)
