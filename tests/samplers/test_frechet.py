"""frechet: the errors of the prefix and once more the last one, together below 1 - margin."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from dllm.parts import Factor, Frechet
from tests.samplers.game import Game

FINE = 2**20  # confidences are multiples of 1 / FINE: exact in float64, and as fractions


def largest_certified(confidence: list[Fraction], margin: Fraction) -> int:
    """The largest n whose lower bound on being right together beats the upper bound of any rival by ``margin``."""
    ranked = sorted(confidence, reverse=True)
    sets = range(1, len(ranked) + 1)
    lower = {n: max(Fraction(0), sum(ranked[:n]) - (n - 1)) for n in sets}
    return max((n for n in sets if lower[n] - (1 - ranked[n - 1]) > margin), default=0)


@pytest.mark.parametrize("margin", [0.0, 0.25, 0.5, 0.9375])
def test_it_commits_the_largest_set_that_the_bounds_certify(margin: float) -> None:
    noise, sizes = torch.Generator().manual_seed(3), set()
    for sharpness in (1, 4, 16) * 8:
        error = torch.rand(9, generator=noise, dtype=torch.float64) ** sharpness
        confidence = (((1 - error) * FINE).round() / FINE).tolist()
        game, count = Game(Frechet(margin), 9), largest_certified([*map(Fraction, confidence)], Fraction(margin))
        ranked = sorted(range(9), key=lambda at: (-confidence[at], at))
        assert game.turn(confidence) == sorted(ranked[: max(count, 1)])
        assert game.accepted == sorted(ranked[:count])
        sizes.add(count)
    assert len(sizes) > 2


def test_the_bound_itself_is_not_enough() -> None:
    # 1/8 + 2/8 + 2/8 = 1 - 3/8: the second may not come along; with a smaller margin it may.
    assert Game(Frechet(0.375), 2).turn([0.875, 0.75]) == [0]
    assert Game(Frechet(0.374), 2).turn([0.875, 0.75]) == [0, 1]


def test_at_margin_one_even_certain_tokens_go_one_by_one() -> None:
    game = Game(Frechet(1.0), 3)
    assert [game.turn([0.5, 1.0, 1.0]) for _ in range(3)] == [[1], [2], [0]]
    assert game.accepted == []


@pytest.mark.parametrize("margin", [0.0, 0.1, 0.5, 0.9])
def test_it_commits_what_factor_commits_and_more(margin: float) -> None:
    noise, more = torch.Generator().manual_seed(7), 0
    for sharpness in (1, 4, 16, 64):
        confidence = 1 - torch.rand(200, 9, generator=noise, dtype=torch.float64) ** sharpness
        wide, narrow = (
            Game(rule, 9, rows=200).play(confidence) for rule in (Frechet(margin), Factor(1 - margin, False))
        )
        assert all(set(few) <= set(many) for few, many in zip(narrow, wide, strict=True))
        more += sum(map(len, wide)) - sum(map(len, narrow))
    assert more > 100


def test_a_smaller_margin_never_commits_less() -> None:
    confidence = 1 - torch.rand(100, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64) ** 4
    sets = [Game(Frechet(margin / 10), 9, rows=100).play(confidence) for margin in range(11)]
    for many, few in zip(sets, sets[1:], strict=False):
        assert all(set(less) <= set(more) for less, more in zip(few, many, strict=True))
