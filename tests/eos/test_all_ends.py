"""Policies are told every id that ends a text, not the end of text alone."""

from __future__ import annotations

import pytest
import torch

from dllm import part
from dllm.parts import NOTHING_SHARED, Canvas, Fixed, Ids, Owner, Request, Scores, View

EOS, TURN, WORD = 61, 55, 7
ACTING = (
    "fill_after_block", "fill_at_once", "stop_at_eos", "stop_at_last_eos", "stop_front", "stop_opening",
    "truncate_at_eos",
)  # fmt: skip


def left_behind(name: str, ends: tuple[int, ...]) -> int:
    """Columns left to decide behind a first block of four that holds the end of a turn."""
    canvas = Canvas.of([Request.answer([3, 4], 12, 60)], 0)
    blocks = Fixed(4).start(canvas).after_forward()
    tokens = torch.full_like(canvas.tokens, WORD)
    tokens[0, 3] = TURN
    scores = Scores(*[blocks.in_block] * 4)
    view = View.of(canvas, scores, blocks, None, Owner.single(1, canvas.start.device), NOTHING_SHARED)
    step = view.step(blocks.in_block, tokens=tokens)
    after = canvas.commit(step.commit, tokens)
    cut = part("eos", name).resolved(Ids(60, EOS, ends)).cut(after, view, step, ends, blocks.full(after, step.owner))
    return int(cut.undecided.sum())


@pytest.mark.parametrize("name", ACTING)
def test_a_row_ends_with_any_of_them(name: str) -> None:
    assert left_behind(name, (EOS, TURN)) == 0 and left_behind(name, (EOS,)) == 8


def test_the_end_of_text_is_the_one_that_fills() -> None:
    assert Ids(60, EOS, (TURN, EOS)).ends == (EOS, TURN)
