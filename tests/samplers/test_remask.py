"""rcr and remdm against loops written straight from their description, on random confidences."""

from __future__ import annotations

import math
from random import Random

import pytest

from dllm import UserError, load
from dllm.parts import CURVES, RCR, Fixed, ReMDM, Selection, Setting, Static, refuse_clashes
from tests.samplers.game import PROMPT, Game

LENGTH = 13


def masked(game: Game) -> set[int]:
    return {at for at in range(game.length) if bool(game.canvas.masked[0, PROMPT + at])}


def surest(record: dict[int, float], count: int) -> set[int]:
    return set(sorted(record, key=lambda at: (-record[at], at))[:count])


def left_after(forward: int, masks: int, steps: int, curve: str) -> int:
    """Masks left after a forward, from 0: MDPO's curves, r being the share of the forwards that are done."""
    r, bits = (forward + 1) / steps, math.log2(masks)
    share = {
        "linear": 1 - r,
        "cosine": math.cos(r * math.pi / 2),
        "square": 1 - r**2,
        "cubic": 1 - r**3,
        "log": -math.log2(r) / bits,
        "exp": 1 - 2 ** (-bits * (1 - r)),
    }[curve]
    return 0 if forward == steps - 1 else math.floor(masks * min(max(share, 1e-6), 1.0))


@pytest.mark.parametrize("steps", [1, 3, 7, 13, 20])
@pytest.mark.parametrize("curve", CURVES)
def test_rcr_keeps_the_surest_of_old_and_new(steps: int, curve: str) -> None:
    """Every turn fills all masks, then masks the least sure of all until the curve is met."""
    rng, game, record = Random(steps), Game(RCR(steps=steps, curve=curve), LENGTH), dict[int, float]()
    for forward in range(steps):
        confidence = [rng.random() for _ in range(LENGTH)]
        before = masked(game)
        game.turn(confidence)
        record |= {at: confidence[at] for at in before}
        kept = surest(record, LENGTH - left_after(forward, LENGTH, steps, curve))
        record = {at: value for at, value in record.items() if at in kept}
        assert masked(game) == set(range(LENGTH)) - kept
    assert not masked(game)


@pytest.mark.parametrize("score", ["margin", "entropy"])
def test_rcr_ranks_by_the_score_that_is_named(score: str) -> None:
    game, confidence = Game(RCR(2, score=score), 4), [0.9, 0.8, 0.7, 0.6]
    assert game.turn(confidence, first=confidence, second=[0.1, 0.75, 0.1, 0.1], entropy=[0.3, 2.0, 0.4, 1.0]) == [0, 2]


@pytest.mark.parametrize(
    ("steps", "extra", "number"), [(13, 4, 1), (13, 2, 5), (7, 1, 1), (4, 3, 4), (1, 2, 5), (5, 0, 0), (13, 12, 2)]
)
@pytest.mark.parametrize("seed", range(3))
def test_remdm_decides_the_least_sure_anew(seed: int, steps: int, extra: int, number: int) -> None:
    """ParallelBench's loop in its own order: a correction masks before its forward, and commits as many after it."""
    rng, game, record = Random(seed), Game(ReMDM(None, extra, number, steps), LENGTH), dict[int, float]()
    counts = [LENGTH // steps + (at < LENGTH % steps) for at in range(steps)]
    at = min(max(min(7 * LENGTH // 8, LENGTH - 1), 1), steps)
    forwards = [*counts[:at], *([0] * extra), *counts[at:]]
    for index, count in enumerate(forwards):
        if count == 0:
            for worst in sorted(record, key=lambda place: (record[place], place))[:number]:
                del record[worst]
        confidence = [rng.random() for _ in range(LENGTH)]
        assert masked(game) == set(range(LENGTH)) - set(record)
        game.turn(confidence)
        record |= {
            place: confidence[place]
            for place in surest(
                {place: confidence[place] for place in range(LENGTH) if place not in record}, count or number
            )
        }
        assert index < len(forwards) - 1 or not masked(game)


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
    with pytest.raises(UserError, match=r"sampler\.number=8 must be less than the 8 columns of a block"):
        sampler = ReMDM(number=8)
        refuse_clashes(
            Selection(Setting(load("mini-llada").config, Fixed(8), 16), sampler), ("sampler", sampler, sampler.clashes)
        )
    with pytest.raises(UserError, match=r"sampler\.curve='sine'"):
        RCR(curve="sine")
