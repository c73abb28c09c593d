"""Changes of length as a gather, against the same done to lists."""

from __future__ import annotations

import random

import pytest
import torch

from dllm.parts import STEP, Canvas, LengthChange, Request, reshaped

MASK, EOS = 60, 61


def laid(rows: list[list[int]]) -> Canvas:
    return Canvas.of([Request([5, *row], [False] + [one == MASK for one in row], start=1) for row in rows], EOS)


@pytest.mark.parametrize("seed", range(20))
def test_a_change_does_to_every_row_what_it_does_to_a_list(seed: int) -> None:
    draw = random.Random(seed)
    rows = [[draw.choice([MASK, 7, 8, 9]) for _ in range(draw.randint(1, 9))] for _ in range(4)]
    asked = []
    for row in rows:
        at, insert = draw.randrange(len(row)), draw.choice([0, 0, 3])
        append, fill = draw.choice([0, 5]), draw.choice([0, 2])
        asked.append((at, insert, append, fill, draw.randint(0, len(row) + insert + append + fill)))
    canvas = laid(rows)
    at, insert, append, fill, end = torch.tensor(asked).unbind(1)
    reshape = reshaped(canvas, LengthChange(at + 1, insert, append, fill, end + 1))
    assert reshape is not None
    after = reshape.canvas(MASK, EOS)
    places = reshape.moved(canvas.columns.expand_as(canvas.tokens), -1)
    assert len(after.columns) % STEP == 0
    for row, (where, more, masks, ends, last) in enumerate(asked):
        old = list(range(len(rows[row])))
        moved = (old[: where + 1] + ["mask"] * more + old[where + 1 :] + ["mask"] * masks + ["end"] * ends)[:last]
        want = [rows[row][one] if isinstance(one, int) else MASK if one == "mask" else EOS for one in moved]
        assert after.tokens[row, after.valid[row]].tolist() == [5, *want]
        hidden = [one == "mask" or (isinstance(one, int) and rows[row][one] == MASK) for one in moved]
        assert after.masked[row, 1 : last + 1].tolist() == hidden and not after.masked[row, last + 1 :].any()
        assert places[row, 1 : last + 1].tolist() == [one + 1 if isinstance(one, int) else -1 for one in moved]
        assert after.given[row].nonzero()[:, 0].tolist()[:1] == [0]


def test_rows_that_stay_cost_one_question() -> None:
    canvas = laid([[MASK, 7], [MASK]])
    assert reshaped(canvas, LengthChange.none(canvas)) is None
