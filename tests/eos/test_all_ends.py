"""Policies are told every id that ends a text, not the end of text alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest
import torch

from dllm import part
from dllm.parts import NOTHING_SHARED, Canvas, Fixed, Ids, Owner, Request, Scores, View

EOS, TURN, WORD = 61, 55, 7
ACTING = (
    "fill_after_block",
    "fill_at_once",
    "stop_at_eos",
    "stop_at_last_eos",
    "stop_front",
    "stop_opening",
    "truncate_at_eos",
)


def before_and_after(name: str, ends: tuple[int, ...], written: Sequence[int] = (2, 3, 4, 5)) -> tuple[Canvas, Canvas]:
    """A row with ``written`` columns of its first block, 2 to 5, of which 3 ends a turn; what a policy makes of it."""
    canvas = Canvas.of([Request.answer([3, 4], 12, 60)], 0)
    blocks = Fixed(4).start(canvas).after_forward()
    tokens = torch.full_like(canvas.tokens, WORD)
    tokens[0, 3] = TURN
    scores = Scores(*[blocks.in_block] * 4)
    view = View.of(canvas, scores, blocks, None, Owner.single(1, canvas.start.device), NOTHING_SHARED)
    step = view.step(torch.isin(canvas.columns, torch.tensor(written))[None] & blocks.in_block, tokens=tokens)
    after = canvas.commit(step.commit, tokens)
    policy = part("eos", name).resolved(Ids(60, EOS, ends))
    return after, policy.cut(after, view, step, ends, blocks.full(after, step.owner))


def left_behind(name: str, ends: tuple[int, ...]) -> int:
    """Columns left to decide behind a block that holds the end of a turn."""
    return int(before_and_after(name, ends)[1].undecided.sum())


@pytest.mark.parametrize("name", ACTING)
def test_a_row_ends_with_any_of_them(name: str) -> None:
    assert left_behind(name, (EOS, TURN)) == 0 and left_behind(name, (EOS,)) == 8


@pytest.mark.parametrize("name", (*ACTING, "none"))
def test_what_a_policy_says_of_itself_is_what_it_does(name: str) -> None:
    """In every row of one block: with each set of its columns written."""
    traits, seen = part("eos", name).resolved(Ids(60, EOS, (EOS, TURN))).traits, set[str]()
    for count in range(5):
        for written in combinations((2, 3, 4, 5), count):
            before, after = before_and_after(name, (EOS, TURN), written)
            decided = before.masked & ~after.masked
            if count < 4 and not same(before, after):
                seen.add("at_once")
            if not same(before.valid, after.valid):
                seen.add("shrinks")
            if bool(decided.any()) and bool(after.undecided.any()):
                seen.add("fills")
            if not same(before, after):
                seen.add("acts")
    assert seen - {"acts"} == {one for one in ("at_once", "shrinks", "fills") if getattr(traits, one)}
    assert ("acts" in seen) != traits.leaves_rows


def same(one: Canvas | torch.Tensor, other: Canvas | torch.Tensor) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return all(same(getattr(one, name), getattr(other, name)) for name in ("tokens", "masked", "end", "valid", "tail"))


def test_the_end_of_text_is_the_one_that_fills() -> None:
    assert Ids(60, EOS, (TURN, EOS)).ends == (EOS, TURN)


def test_a_row_that_is_filled_at_once_ends_there_and_no_later_end_moves_that() -> None:
    _, after = before_and_after("fill_at_once", (EOS, TURN), (3, 4))
    assert (int(after.end), bool(after.shortened)) == (4, True) and after.tokens[0, 4:].tolist() == [WORD, *[EOS] * 9]
    again = replace(after, tokens=after.tokens.index_fill(1, torch.tensor([2]), TURN), masked=after.masked & False)
    policy = part("eos", "fill_at_once")
    blocks = Fixed(4).start(again)
    view = View.of(
        again, Scores(*[blocks.in_block] * 4), blocks, None, Owner.single(1, again.start.device), NOTHING_SHARED
    )
    step = view.step(again.no_positions)
    assert int(policy.cut(again, view, step, (EOS, TURN), torch.tensor([True])).end) == 4
