"""prophet: all at once when the answer is decided."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from harness import DATA, refuse_rule

from dllm import UserError
from dllm.parts import (
    Canvas,
    Confidence,
    Credit,
    Fixed,
    FullLength,
    Learn2PD,
    NoCache,
    Order,
    Prophet,
    Request,
    Sampler,
    Setting,
    SettingWarning,
    Static,
    read_model_config,
    validate,
    warn_once,
    with_tokens,
)
from tests.samplers.game import Game
from tests.samplers.test_learn2pd import passing


def setting(length: int | None) -> Setting:
    config = read_model_config(DATA / "models" / "tiny-llada")
    return Setting(config, Fixed(8), length, ids_of=lambda text: [7, 8, 9])


def exit_turn(sampler: Prophet, gaps: list[float], length: int = 10) -> int:
    """The turn that commits everything, from a gap that is the same everywhere."""
    game = Game(sampler, length)
    for turn, gap in enumerate(gaps, 1):
        left = int(game.canvas.masked.sum())
        if len(game.turn(0.5, gap=gap)) == left > 1:
            assert bool(game.span.done.all())
            return turn
    return 0


@pytest.mark.parametrize(("gap", "turn"), [(7.5, 1), (7.4, 4), (5.0, 4), (4.9, 7), (2.5, 7), (2.4, 0)])
def test_the_bar_falls_with_progress(gap: float, turn: int) -> None:
    """Progress counts from 1 / 10: below 0.33 the bar is 7.5, below 0.67 it is 5.0, then 2.5."""
    assert exit_turn(Prophet(Static(), region="all_masked"), [gap] * 9) == turn


def test_an_adaptive_inner_rule_makes_its_own_progress() -> None:
    game = Game(Prophet(Confidence(0.9)), 10)
    assert len(game.turn([0.95] * 7 + [0.1] * 3, gap=3.0)) == 7
    assert len(game.turn(0.1, gap=3.0)) == 3  # 70 % are committed after the first of ten turns


@pytest.mark.parametrize("inner", [Static(5), Static(per_step=2), Order(per_step=2), Credit(Static(per_step=2))])
def test_progress_of_a_schedule_is_its_turns(inner: Sampler) -> None:
    """Two of ten positions a turn: the second of five turns is past 0.33, where the bar is 5.0."""
    game, logits = Game(Prophet(inner), 10), torch.zeros(1, 10, 9)
    assert len(game.turn(0.5, gap=5.0, logits=logits)) == 2
    assert len(game.turn(0.5, gap=5.0, logits=logits)) == 8


def test_a_rule_that_may_take_fewer_turns_than_its_steps_makes_its_own_progress() -> None:
    game = Game(Prophet(Learn2PD(passing(10), threshold=0.9)), 10)
    assert len(game.turn([0.95] * 7 + [0.1] * 3, gap=3.0)) == 7
    assert len(game.turn(0.1, gap=3.0)) == 3


def test_the_region_is_scored_where_tokens_are_given_too() -> None:
    request = with_tokens(Request.answer([0, 0], 6, 60), {4: 9})
    canvas = Canvas.of([request], 61)
    span = Fixed(6).start(canvas)
    wanted = [need.mask(canvas, span) for need in Prophet(Static(), region="offset", start=1, length=3).needs()]
    assert wanted[-1].nonzero()[:, 1].tolist() == [3, 4, 5]


def test_the_region_counts_committed_positions_too() -> None:
    gap = [0.0, 9.0, 9.0, 0.0, 0.0, 0.0]
    sampler = Prophet(Static(), region="offset", start=1, length=2)
    game = Game(sampler, 6)
    game.commit([1])
    assert game.turn(0.5, gap=gap) == [0, 2, 3, 4, 5]
    assert Game(Prophet(Static(), region="offset", start=2, length=2), 6).turn(0.5, gap=gap) == [0]


def test_the_test_comes_before_the_commit_and_rows_stop_by_themselves() -> None:
    game = Game(Prophet(Static()), 4, rows=2)
    assert game.play(0.5, gap=[[8.0] * 4, [7.0] * 4]) == [[0, 1, 2, 3], [0]]
    assert game.span.done.tolist() == [True, False]


def test_an_anchor_is_written_and_the_region_follows_it() -> None:
    plain = Prophet(Static(), region="anchor", anchor_text="The answer is", anchor_position=4, skip=1)
    sampler = plain.resolved(setting(12))
    request = sampler.prepare(Request.answer([1, 2], 12, 60))
    assert list(request.tokens)[6:9] == [7, 8, 9] and list(request.masked)[6:9] == [False] * 3
    canvas = Canvas.of([request], 61)
    wanted = [need.mask(canvas, Fixed(12).start(canvas)) for need in sampler.needs()]
    assert wanted[-1].nonzero()[:, 1].tolist() == [10, 11, 12, 13]  # 2 of prompt + 4 + 3 pieces + 1, to the end


def test_an_anchor_leaves_room_for_the_answer() -> None:
    for length in (None, 12):  # a length known from the start is checked before weights are read
        sampler = Prophet(Static(), region="anchor", anchor_text="x", anchor_position=9).resolved(setting(length))
        with pytest.raises(UserError, match=r"sampler\.anchor_position=9 leaves no room .* answer of 12 positions"):
            refuse_rule(setting(length), sampler)
            sampler.prepare(Request.answer([1, 2], 12, 60))


def test_an_anchor_without_a_tokenizer_is_refused() -> None:
    sampler = Prophet(Static(), region="anchor", anchor_text="x", anchor_position=9)
    with pytest.raises(UserError, match=r"sampler\.anchor_text='x' is text, .*\. Set sampler\.region=offset"):
        sampler.resolved(replace(setting(12), ids_of=None))


@pytest.mark.parametrize("start", [32, -1])
def test_a_region_outside_the_answer_is_refused(start: int) -> None:
    sampler = Prophet(Static(), region="offset", start=start)
    with pytest.raises(UserError, match=rf"sampler\.start={start} must lie in \[0, 31\]"):
        refuse_rule(setting(32), sampler)


def test_all_masks_as_the_region_is_a_warning() -> None:
    def said(rule: Sampler) -> list[str]:
        warn_once.cache_clear()
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always", SettingWarning)
            validate(setting(16), rule, NoCache(), FullLength())
        return [str(one.message) for one in heard if one.category is SettingWarning]

    (alone,) = said(Prophet(Static()))
    assert alone.startswith("sampler.region=all_masked: ") and "sampler.region=none" in alone
    assert said(Prophet(Static(), region="none")) == said(Prophet(Static(), region="offset", start=2)) == []
