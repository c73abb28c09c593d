"""wino: generous commits, and shadows that see everything but the token they judge."""

from __future__ import annotations

import torch
from harness import Combination, forward_of, model, requests, turns

from dllm.parts import (
    WINO,
    Canvas,
    FullLength,
    NoCache,
    NoCacheMemory,
    Parts,
    Sampling,
    Shadow,
    Visible,
    Whole,
    denoise,
)


def by_hand(tokens: torch.Tensor, columns: list[int]) -> torch.Tensor:
    """Log-probability of the token at each column from a mask there, where one mask for every column stands beside the
    canvas, and each sees all of them, and of the canvas everything but its own column."""
    network, length = model("tiny-llada"), tokens.shape[1]
    rows = torch.cat([tokens, torch.full((1, len(columns)), 60)], 1)
    positions = torch.cat([torch.arange(length), torch.tensor(columns, dtype=torch.int64)])[None]
    visible = torch.zeros(1, rows.shape[1], rows.shape[1], dtype=torch.bool)
    visible[:, :, :length] = True
    visible[:, length:, length:] = True
    for extra, column in enumerate(columns):
        visible[0, length + extra, column] = False
    with torch.inference_mode():
        hidden, _ = network(rows, positions, NoCacheMemory(Visible(visible)))
        logs = network.head(hidden[0, length:]).log_softmax(-1)
    return logs[torch.arange(len(columns)), tokens[0, columns]]


def test_shadows_see_one_another_and_everything_but_the_token_they_judge() -> None:
    checked = 0
    for turn in turns(Combination("wino", "fixed"), requests()):
        canvas, shadow = turn.canvas, turn.view.scores.of(Shadow())
        for row in range(len(canvas.row_id)):
            real = canvas.valid[row]
            columns = (turn.view.blocks.in_block[row] & real).nonzero()[:, 0]
            expected = by_hand(canvas.tokens[row : row + 1, real], columns.tolist())
            committed = ~canvas.given[row, columns] & ~canvas.masked[row, columns]
            assert torch.allclose(shadow[row, columns][committed], expected[committed], atol=1e-9)
            checked += int(committed.sum())
    assert checked > 20


def test_shadows_change_nothing_for_the_other_rows() -> None:
    network = model("tiny-llada")
    for turn in turns(Combination("wino", "whole"), requests()[:1]):
        with torch.inference_mode():
            logits = network.head(network.encode(turn.canvas.tokens))
        logits[..., 60] = -torch.inf
        expected = logits.softmax(-1).amax(-1)[turn.view.open]
        assert torch.allclose(turn.view.scores.confidence[turn.view.open], expected, atol=1e-9)


def test_the_bar_itself_is_no_doubt() -> None:
    """In every turn with commits to judge: a bar at the least of their probabilities undoes none, the next one that."""
    rule, judged = WINO(threshold=0.2, back_threshold=0.99), 0
    parts = Parts(rule, Whole(), NoCache(), FullLength())
    for turn in denoise(Canvas.of(requests(), 61), forward_of(model("tiny-llada"), parts, Sampling()), parts):
        view, committed = turn.view, turn.view.blocks.in_block & turn.view.canvas.revisable
        least = view.scores.of(Shadow()).exp().masked_fill(~committed, 2.0).amin(1)
        state = {"threshold": torch.zeros_like(least), "before": torch.full_like(view.canvas.start, 30)}
        for bar, undone in ((least, False), (torch.nextafter(least, torch.ones_like(least)), True)):
            step = rule.step(view, state | {"back_threshold": bar})
            can = committed.any(1) & (step.commit.sum(1) > 1)
            assert step.remask is not None and step.remask.any(1).tolist() == (can & undone).tolist()
            judged += int(can.sum())
    assert judged > 4


def test_what_is_undone_is_doubtful_and_less_than_the_turn_before_committed() -> None:
    network, undone, behind = model("tiny-llada"), 0, 0
    parts = Parts(WINO(threshold=0.2, back_threshold=0.99), Whole(), NoCache(), FullLength())
    canvas = Canvas.of(requests(), 61)
    last, balance = {int(row): 30 for row in canvas.row_id}, {int(row): 0 for row in canvas.row_id}
    for turn in denoise(canvas, forward_of(network, parts, Sampling()), parts):
        step = turn.step
        assert (turn.view.scores.of(Shadow())[step.remask].exp() < 0.99).all()
        for row, commits, remasks in zip(
            turn.canvas.row_id.tolist(), step.commit.sum(1).tolist(), step.remask.sum(1).tolist(), strict=True
        ):
            assert remasks < last[row] and (commits > 1 or remasks == 0)
            last[row], balance[row] = commits, balance[row] + commits - remasks
            undone, behind = undone + remasks, behind + (remasks >= commits)
        turns_had = int(turn.view.blocks.forwards.max())
        assert min(balance[row] for row in turn.canvas.row_id.tolist()) >= turns_had
    assert undone > 0 and behind > 0  # a turn may mask more than it commits


def test_query_tokens_count_a_shadow_for_every_column_of_the_block() -> None:
    for turn in turns(Combination("wino", "fixed"), requests()[:1]):
        shadows = int((turn.view.blocks.in_block & turn.canvas.valid).sum())
        assert int(turn.cost.queries) == len(requests()[0].tokens) + shadows
