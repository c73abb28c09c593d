"""wino: generous commits, and shadows that see everything but the token they judge."""

from __future__ import annotations

import pytest
import torch
from harness import Combination, forward_of, model, requests, turns

from dllm import UserError
from dllm.blocks.whole import Whole
from dllm.cache.none import NoCache
from dllm.canvas import Canvas
from dllm.denoise import denoise
from dllm.eos.keep import Keep
from dllm.models.attention import Visible
from dllm.models.memory import Fresh
from dllm.samplers.wino import WINO
from dllm.setting import Sampling, Setting


def by_hand(tokens: torch.Tensor, columns: list[int]) -> torch.Tensor:
    """Log-probability of the token at each column from one mask row that sees everything else but that token."""
    network, length = model("tiny-llada"), tokens.shape[1]
    rows = torch.cat([tokens, torch.full((1, len(columns)), 60)], 1)
    positions = torch.cat([torch.arange(length), torch.tensor(columns, dtype=torch.int64)])[None]
    visible = torch.zeros(1, rows.shape[1], rows.shape[1], dtype=torch.bool)
    visible[:, :, :length] = True
    for extra, column in enumerate(columns):
        visible[0, length + extra, column] = False
        visible[0, length + extra, length + extra] = True
    with torch.inference_mode():
        hidden, _ = network(rows, positions, Fresh(Visible(visible)))
        logs = network.head(hidden[0, length:]).log_softmax(-1)
    return logs[torch.arange(len(columns)), tokens[0, columns]]


def test_a_shadow_sees_everything_but_the_token_it_judges() -> None:
    checked = 0
    for turn in turns(Combination("wino", "fixed"), requests()):
        canvas, shadow = turn.canvas, turn.view.scores.stat("shadow")
        for row in range(len(canvas.request)):
            real = canvas.valid[row]
            decided = real & ~canvas.given[row] & ~canvas.masked[row]
            committed = (turn.view.blocks.in_block[row] & decided).nonzero()[:, 0]
            columns = committed.tolist()
            expected = by_hand(canvas.tokens[row : row + 1, real], columns)
            assert torch.allclose(shadow[row, committed], expected, atol=1e-9)
            checked += len(columns)
    assert checked > 20


def test_shadows_change_nothing_for_the_other_rows() -> None:
    network = model("tiny-llada")
    for turn in turns(Combination("wino", "whole"), requests()[:1]):
        with torch.inference_mode():
            logits = network.head(network.encode(turn.canvas.tokens))
        logits[..., 60] = -torch.inf
        expected = logits.softmax(-1).amax(-1)[turn.view.open]
        assert torch.allclose(turn.view.scores.confidence[turn.view.open], expected, atol=1e-9)


def test_no_more_is_undone_than_was_committed_less_one_and_only_what_is_doubtful() -> None:
    network, undone = model("tiny-llada"), 0
    parts = (WINO(threshold=0.2, back_threshold=0.99), Whole(), NoCache(), Keep())
    canvas = Canvas.of(requests(), 61)
    for turn in denoise(canvas, forward_of(network, parts, Sampling()), parts[0], parts[1], parts[3]):
        assert turn.step.remask is not None
        assert (turn.step.remask.sum(1) < turn.step.commit.sum(1).clamp(min=1)).all()
        assert (turn.view.scores.stat("shadow")[turn.step.remask].exp() < 0.99).all()
        undone += int(turn.step.remask.sum())
    assert undone > 0


def test_query_tokens_count_the_shadows() -> None:
    for turn in turns(Combination("wino", "fixed"), requests()[:1]):
        canvas = turn.canvas
        shadows = int((turn.view.blocks.in_block & ~canvas.masked & ~canvas.given).sum())
        assert int(turn.cost.queries) == len(requests()[0].tokens) + shadows


def test_a_model_that_predicts_from_the_position_before_is_refused() -> None:
    with pytest.raises(UserError, match="saber"):
        WINO().check(Setting(model("tiny-dream").config, Whole(), 8))
