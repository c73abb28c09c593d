"""easing: the bar falls as the block fills, down to what the masks behind it leave."""

from __future__ import annotations

import pytest
import torch

from dllm.parts import Confidence, Easing
from tests.samplers.game import PROMPT, Game


def bar(game: Game, place: int) -> float:
    """The lowest confidence, to a thousandth, that the coming turn accepts at a place."""
    low, high, before = 0.0, 1.0, game.span
    for _ in range(12):
        middle = (low + high) / 2
        view = game.view([middle if at == place else 0.0 for at in range(game.length)])
        accepted, game.span = game.sampler.propose(view, game.state).accepted, before
        assert accepted is not None
        low, high = (low, middle) if bool(accepted[0, PROMPT + place]) else (middle, high)
    return high


@pytest.mark.parametrize(
    ("window", "masks", "share"),
    [
        (None, True, (2 + 8) / (4 + 8)),  # all behind the block
        (3, True, (2 + 3 + 1) / (4 + 3 + 1)),  # three, and the answer's last one
        (8, True, (2 + 8) / (4 + 8)),  # no more than there are
        (0, True, (2 + 1) / (4 + 1)),
        (3, False, 2 / (4 + 3 + 1)),  # the dual cache's loop: behind the block nothing is masked
    ],
)
def test_the_bar_is_lowered_by_the_share_that_is_known(window: int | None, masks: bool, share: float) -> None:
    game = Game(Easing(0.8, 0.5, window, masks), 12, block=4)
    assert bar(game, 0) == pytest.approx(0.8, abs=1e-3)  # the forward that opens the block
    assert game.turn([0.9, 0.9, *[0.1] * 10]) == [0, 1]
    assert bar(game, 2) == pytest.approx(0.8 * (1 - 0.5 * (1 - share)), abs=1e-3)
    assert game.turn([0.9, 0.9, 0.79, 0.79, *[0.1] * 8]) == [2, 3]
    assert bar(game, 4) == pytest.approx(0.8, abs=1e-3)  # the next block opens


def test_in_the_last_block_it_falls_with_the_block_alone() -> None:
    game = Game(Easing(0.8, 1.0), 4)
    assert game.turn([0.9, 0.9, 0.9, 0.3]) == [0, 1, 2]
    assert bar(game, 3) == pytest.approx(0.8 / 4, abs=1e-3)


def test_the_most_confident_is_forced_where_none_reaches_the_bar() -> None:
    game = Game(Easing(0.9, 0.5), 3)
    assert game.turn([0.2, 0.4, 0.3]) == [1] and game.accepted == []


def test_at_alpha_0_it_is_the_threshold() -> None:
    confidence = torch.rand(5, 9, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    games = [Game(rule, 9, block=3) for rule in (Easing(0.6, 0.0, 2), Confidence(0.6))]
    for row in confidence:
        assert games[0].turn(row) == games[1].turn(row)
