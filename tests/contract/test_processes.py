"""What undecided positions show: masks, or noise; and what goes with which."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from harness import model
from own_parts import Says, Surest

from dllm import UserError
from dllm.parts import (
    EARLY_ROWS,
    Canvas,
    Credit,
    Ids,
    Request,
    Sampling,
    Selection,
    Setting,
    Uniform,
    Whole,
    first_clash,
    resolve_ids,
)
from tests.samplers.game import Game

VOCAB = 64


def canvas(rows: int, length: int, seed: int = 0) -> Canvas:
    return Canvas.of([Request.answer([5, 6], length, 60, seed + row) for row in range(rows)], 61)


def chi_square(counts: torch.Tensor) -> float:
    """Of counts that shall be equal; its mean is the number of them less 1, its variance twice that."""
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


def test_noise_is_uniform_and_fresh_in_every_turn_column_and_row() -> None:
    rows, length = 64, 400
    laid, turn = canvas(rows, length), torch.ones(rows, dtype=torch.int64)
    one, other = (Uniform(VOCAB).noise(laid, at)[:, 2:] for at in (turn, turn + 1))
    freedom = VOCAB - 1
    assert abs(chi_square(one.flatten().bincount(minlength=VOCAB).double()) - freedom) < 5 * (2 * freedom) ** 0.5
    # Pairs of neighbours in turn, column and row: each of the V^2 pairs is as likely as another.
    freedom = VOCAB**2 - 1
    for first, second in ((one, other), (one[:, :-1], one[:, 1:]), (one[:-1], one[1:])):
        counts = (first * VOCAB + second).flatten().bincount(minlength=VOCAB**2).double()
        assert abs(chi_square(counts) - freedom) < 5 * (2 * freedom) ** 0.5


def test_noise_depends_on_seed_column_and_turn_alone() -> None:
    alone, turn = canvas(1, 9, seed=3), torch.tensor([5])
    batch = canvas(4, 30)
    noise = Uniform(VOCAB).noise
    assert torch.equal(noise(batch, turn.expand(4))[3, :11], noise(alone, turn)[0])


def test_the_first_canvas_shows_noise_where_it_is_undecided_and_nowhere_else() -> None:
    laid = Canvas.of([Request([5, 60, 7, 60, 60, 9], [False, True, False, True, True, False], 1)], 61)
    filled = Uniform(VOCAB).fill(laid)
    assert filled.tokens[0, [0, 2, 5]].tolist() == [5, 7, 9] and torch.equal(filled.masked, laid.masked)
    assert torch.equal(filled.tokens, torch.where(laid.masked, Uniform(VOCAB).noise(laid, torch.zeros(1)), laid.tokens))


def test_what_is_decided_or_behind_the_end_shows_nothing_else() -> None:
    laid = canvas(2, 6)
    decided = laid.commit(laid.columns == 3, torch.full_like(laid.tokens, 9))
    cut = decided.stop_at(torch.tensor([6, 8]), torch.tensor([True, False]), attended=True)
    shown = cut.show(torch.ones_like(cut.masked), torch.full_like(cut.tokens, 1))
    assert shown.tokens.tolist() == [[5, 6, 1, 9, 1, 1, 60, 60], [5, 6, 1, 9, 1, 1, 1, 1]]


def test_ids_without_a_mask() -> None:
    config = replace(model("tiny-llada").config, process="uniform", mask_id=None)
    known, ids = resolve_ids(config, None, None)
    assert known.mask_id is None and ids == Ids(None, 61, (61,))
    assert ids.placeholder == 61 and ids.banned(True, False) == () and Ids(60, 61, ()).placeholder == 60
    with pytest.raises(UserError, match="mask_id=60: undecided positions of LLaDAModelLM show noise"):
        resolve_ids(config, None, 60)


class Renews(Says):
    """A rule of noise."""

    traits = Says.traits.but(renoises=True)


def setting(process: str, **sampling: Any) -> Setting:
    return Setting(replace(model("tiny-llada").config, process=process), Whole(), 8, Sampling(**sampling))


def test_each_process_takes_its_own_rules() -> None:
    for known, rule in ((setting("uniform"), Renews()), (setting("absorbing", temperature=0.7), Surest())):
        assert first_clash(Selection(known, rule), [EARLY_ROWS]) is None
    assert Sampling().plain and not Sampling().under(Renews()).plain and Sampling().under(Surest()).plain


def test_no_wrapper_takes_a_rule_of_noise() -> None:
    with pytest.raises(UserError, match="sampler=credit .*inner=Renews decides a whole block at once"):
        Credit(Renews())


SHOWN = torch.zeros(2, 7, dtype=torch.int64)


@pytest.mark.parametrize(
    ("kind", "shown", "words"),
    [
        (Says, SHOWN, "Says says what undecided positions show .*write renoises=True in its traits"),
        (Renews, SHOWN[:, :3], r"shown has the shape \[2, 3\], and must have \[2, 7\]"),
        (Renews, SHOWN.bool(), "shown is of torch.bool, and must be of int64"),
    ],
)
def test_what_a_rule_shows_is_looked_at(kind: type[Says], shown: torch.Tensor, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Game(kind(shown=shown), 5, rows=2).turn(0.5)
