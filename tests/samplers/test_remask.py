"""rcr and remdm against loops written straight from their description, on random confidences."""

from __future__ import annotations

from random import Random

import pytest

from dllm import UserError, load
from dllm.blocks.fixed import Fixed
from dllm.samplers.rcr import RCR
from dllm.samplers.remdm import ReMDM
from dllm.samplers.static import Static
from dllm.setting import Setting
from tests.samplers.game import PROMPT, Game

LENGTH = 13


def masked(game: Game) -> set[int]:
    return {at for at in range(game.length) if bool(game.canvas.masked[0, PROMPT + at])}


def schedule(masks: int, per_step: int) -> list[int]:
    full, rest = divmod(masks, per_step)
    return [per_step] * full + [rest] * (rest > 0)


def surest(record: dict[int, float], count: int) -> set[int]:
    return set(sorted(record, key=lambda at: (-record[at], at))[:count])


@pytest.mark.parametrize("per_step", [1, 2, 5, 13])
@pytest.mark.parametrize("seed", range(4))
def test_rcr_keeps_the_surest_of_old_and_new(seed: int, per_step: int) -> None:
    """Every turn commits all masks, then masks the least sure of all commits until the schedule is met."""
    rng, game, record = Random(seed), Game(RCR(per_step), LENGTH), dict[int, float]()
    target = 0
    for count in schedule(LENGTH, per_step):
        confidence = [rng.random() for _ in range(LENGTH)]
        before = masked(game)
        game.turn(confidence)
        target += count
        record |= {at: confidence[at] for at in before}
        kept = surest(record, target)
        record = {at: value for at, value in record.items() if at in kept}
        assert masked(game) == set(range(LENGTH)) - kept
    assert not masked(game)


@pytest.mark.parametrize(("per_step", "extra", "number"), [(2, 1, 1), (4, 2, 2), (4, 3, 3), (13, 2, 5), (3, 0, 0)])
@pytest.mark.parametrize("seed", range(4))
def test_remdm_pauses_once_in_a_block(seed: int, per_step: int, extra: int, number: int) -> None:
    rng, game, record = Random(seed), Game(ReMDM(per_step, extra, number), LENGTH), dict[int, float]()
    counts = schedule(LENGTH, per_step)
    pause = max(min(int(7 / 8 * len(counts)), len(counts) - 1), 1)
    turns = [(count, number if at + 1 == pause and extra else 0) for at, count in enumerate(counts)]
    turns[pause:pause] = [(0, number)] * (extra - 1) + [(0, 0)] * (extra > 0)
    owed = 0
    for count, undone in turns:
        confidence = [rng.random() for _ in range(LENGTH)]
        open_ = masked(game)
        game.turn(confidence)
        new = surest({at: confidence[at] for at in open_}, count or owed)
        record |= {at: confidence[at] for at in new}
        owed = min(undone, len(new) - 1)
        for at in sorted(record, key=lambda at: (record[at], at))[:owed]:
            del record[at]
        assert masked(game) == set(range(LENGTH)) - set(record)
        if not owed and undone:
            break  # nothing to do over: the schedule goes on, which the other cases show
    else:
        assert not masked(game) and game.turn([0.5] * LENGTH) == []


def test_without_extra_forwards_remdm_is_the_fixed_schedule() -> None:
    one, other = Game(ReMDM(3, extra=0), LENGTH, block=7), Game(Static(per_step=3), LENGTH, block=7)
    for turn in range(5):
        confidence = [Random(f"{turn}/{at}").random() for at in range(LENGTH)]
        assert one.turn(confidence) == other.turn(confidence) != []
    assert not masked(one) and not masked(other)


def test_mistakes_are_named() -> None:
    for sampler in (RCR, ReMDM, Static):
        with pytest.raises(UserError, match=r"sampler\.per_step=0 must be at least 1"):
            sampler(per_step=0)
    with pytest.raises(UserError, match=r"sampler\.extra=-1 must be at least 0"):
        ReMDM(extra=-1)
    with pytest.raises(UserError, match="say the same thing twice"):
        Static(steps=4, per_step=2)
    with pytest.raises(UserError, match=r"sampler\.number=2 must be less than sampler\.per_step=2"):
        ReMDM(per_step=2, number=2).check(Setting(load("mini-llada").config, Fixed(8), 16))
