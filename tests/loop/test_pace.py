"""A rule, a cache or a schedule that keeps a row from its end is named, with what it must keep to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from harness import model, results
from own_parts import Patient, Rising, Undoing

from dllm import UserError
from dllm.parts import (
    Canvas,
    Dream,
    Dual,
    Fixed,
    ForwardPlan,
    FreeDave,
    Frontier,
    FullLength,
    JointThreshold,
    ModelConfig,
    NoCache,
    Pace,
    Parts,
    Prophet,
    Request,
    Sampler,
    Session,
    Static,
    Step,
    View,
)

ROWS = [Request.answer([3, 4], masks, 60, masks) for masks in (12, 9)]


def decoded(rule: Sampler, cache: NoCache | Dual | None = None, lag: int | None = None, length: int = 8) -> list[int]:
    """Forwards of each row of a decode in blocks of ``length``."""
    parts = Parts(rule, Fixed(length), cache or NoCache(), FullLength())
    return [row.nfe for row in results(model("tiny-llada"), parts, ROWS, lag=lag)]


@pytest.mark.parametrize("lag", [None, 0, 2])
@pytest.mark.parametrize("cache", [NoCache(), Dual()], ids=type)
def test_a_rule_that_commits_nothing_is_named_with_the_forwards_the_row_and_the_rule(
    cache: NoCache | Dual, lag: int | None
) -> None:
    words = (
        r"^sampler=Rising decided nothing in \d+ forwards in a row \(forwards 1 to \d+ of row 0\); 12 positions "
        r"are left, .*commits at least one position of view\.open in every row of every turn: add argmax_mask\("
    )
    with pytest.raises(UserError, match=words):
        decoded(Rising(1.0), cache, lag)


@pytest.mark.parametrize("around", [Prophet, FreeDave, Frontier], ids=lambda kind: kind.__name__)
def test_around_such_a_rule_it_is_the_same(around: type) -> None:
    rule = around(Rising(1.0)) if around is not Prophet else Prophet(Rising(1.0), region="none")
    with pytest.raises(UserError, match=f"^sampler={around.__name__.lower()} decided nothing in 17 forwards in a row"):
        decoded(rule)


def test_only_the_row_that_stands_still_is_named() -> None:
    class Skips(Static):
        def step(self, view: View, state: dict[str, torch.Tensor]) -> Step:
            step = super().step(view, state)
            return step.but(commit=step.commit & (view.canvas.param_index != 1)[:, None])

    with pytest.raises(UserError, match=r"^sampler=Skips .* of row 1\)"):
        decoded(Skips())


def test_a_rule_may_wait_for_a_while() -> None:
    assert decoded(Patient()) == [9 * 6, 9 * 5]


def test_a_rule_that_takes_back_what_it_commits_goes_round_in_circles() -> None:
    with pytest.raises(UserError, match=r"^sampler=Undoing .* takes back as much as it commits: row 1 has come no fur"):
        decoded(Undoing())


@pytest.mark.parametrize(
    "rule",
    [Dream(), Dream(steps=40), FreeDave(Dream(steps=40)), Static(40), JointThreshold(0.5, 0.0, post_edit_steps=30)],
    ids=["dream", "dream-40", "freedave", "static-40", "edits"],
)
@pytest.mark.parametrize("lag", [None, 20])
def test_a_schedule_with_more_forwards_than_masks_ends(rule: Sampler, lag: int | None) -> None:
    if lag is None or not rule.traits.branches:
        assert all(decoded(rule, lag=lag, length=24))


def test_a_full_block_may_wait_for_its_forwards() -> None:
    parts = Parts(Static(per_step=8), Fixed(8, min_forwards=40), NoCache(), FullLength())
    assert [row.nfe for row in results(model("tiny-llada"), parts, ROWS[:1])] == [2 * 40]


class Shut(NoCache):
    """A cache that never lets anything be committed."""

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> Session:
        session = super().start(canvas, config, shrinks)
        whole = session.plan

        def plan(*given: Any) -> ForwardPlan:
            return replace(whole(*given), committable=given[0].no_positions)

        session.plan = plan  # type: ignore[method-assign]
        return session


def test_a_cache_that_lets_nothing_be_committed_is_named() -> None:
    with pytest.raises(UserError, match="^cache=Shut let nothing of the open block be committed in 17 forwards"):
        decoded(Static(), Shut())


def test_a_rule_that_holds_a_full_block_for_ever_is_named() -> None:
    class Holds(JointThreshold):
        def step(self, view: View, state: dict[str, torch.Tensor]) -> Step:
            return super().step(view, state).but(keep_open=torch.ones_like(view.active))

    with pytest.raises(UserError, match=r"^sampler=Holds held a full block for 17 forwards in a row"):
        decoded(Holds())


def test_the_count_is_of_the_positions_left() -> None:
    """By hand: 3 positions, patience 2, at most 28 turns without fewer than ever."""
    canvas = Canvas.of([Request.answer([1], 3, 60)], 61)
    (pace,) = Pace.start(canvas, Fixed(3).start(canvas), torch.tensor([2]))
    seen = []
    for left in (3, 3, 2, 3, 2, 2):
        pace = pace.after(left)
        seen.append((pace.still, pace.behind, pace.is_stuck))
    assert seen == [(1, 1, False), (2, 2, False), (0, 0, False), (1, 1, False), (0, 2, False), (1, 3, False)]
    assert pace.limit == 4 * 3 + 16 and pace.turns == 6
    assert replace_still(pace, 3).is_stuck and not replace_still(pace, 2).is_stuck


def replace_still(pace: Pace, still: int) -> Pace:
    return pace._replace(still=still)
