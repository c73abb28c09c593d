"""spaced: the best of what a rule chose, and nothing near it."""

from __future__ import annotations

from random import Random

import pytest
import torch

from dllm import UserError
from dllm.parts import ETE, WINO, Confidence, EntropyBound, Need, Order, Prophet, Spaced, Static, Statistic, spaced_out
from tests.samplers.game import Game


def test_the_surest_stays_and_what_is_near_it_waits() -> None:
    game = Game(Spaced(Confidence(0.5), 8), 8)  # gap 8: one position a forward
    assert game.turn([0.6, 0.9, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6]) == [1] and game.accepted == [1]
    game = Game(Spaced(Confidence(0.5), 3), 8)  # gap 3
    assert game.turn([0.6, 0.9, 0.8, 0.7, 0.65, 0.6, 0.6, 0.61]) == [1, 4, 7]


def test_the_gap_shrinks_with_the_masks_but_never_below_two() -> None:
    game = Game(Spaced(Confidence(0.0), 4), 8)
    game.commit([6, 7])
    assert game.turn(0.5) == [0, 3]  # 6 of 8 columns are masks: floor(6 * 4 / 8) = 3
    assert game.turn(0.5) == [1, 4] and game.turn(0.5) == [2, 5]


def test_a_rule_over_entropies_is_walked_by_entropy() -> None:
    game = Game(Spaced(EntropyBound(10.0), 8), 8)
    assert game.turn(0.9, entropy=[0.5, 0.4, 0.3, 0.1, 0.2, 0.6, 0.7, 0.8]) == [3]


class ByGap(EntropyBound):
    """A rule of somebody's own that says by which number it ranks."""

    traits = EntropyBound.traits.but(ranks_by="gap")

    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=Statistic.of("entropy", "gap")),)


def test_a_rule_that_says_by_what_it_ranks_is_walked_by_that() -> None:
    game = Game(Spaced(ByGap(10.0), 8), 8)
    assert game.turn(0.9, entropy=[0.5, 0.4, 0.3, 0.1, 0.2, 0.6, 0.7, 0.8], gap=[9, 8, 7, 6, 5, 1, 4, 3]) == [5]


def test_without_a_stride_it_is_its_inner_rule() -> None:
    confidence = [0.6, 0.9, 0.8, 0.2, 0.6, 0.6, 0.1, 0.6]
    assert Game(Spaced(Confidence(0.5), 0), 8).turn(confidence) == Game(Confidence(0.5), 8).turn(confidence)


@pytest.mark.parametrize("seed", range(5))
def test_the_walk_is_that_of_the_paper(seed: int) -> None:
    rng = Random(seed)
    chosen = [rng.random() < 0.6 for _ in range(20)]
    score, gap, kept = [rng.random() for _ in range(20)], rng.randint(2, 6), list[int]()
    for at in sorted((at for at in range(20) if chosen[at]), key=lambda at: -score[at]):
        if all(abs(at - other) >= gap for other in kept):
            kept.append(at)
    found = spaced_out(torch.tensor([chosen]), torch.tensor([score]), torch.tensor([gap]))
    assert found[0].nonzero()[:, 0].tolist() == sorted(kept)


def test_a_row_that_a_rule_finishes_is_finished_whole() -> None:
    """Prophet's last step commits all that is left: a row that stops must leave no mask."""
    game = Game(Spaced(Prophet(Static(), [0.0, 0.0, 0.0], region="all_masked"), 8), 8)
    assert game.turn(0.9, gap=9.0) == list(range(8))


@pytest.mark.parametrize("inner", [WINO(), ETE(), Order()])
def test_rules_that_draft_or_take_back_or_announce_are_refused(inner: object) -> None:
    with pytest.raises(UserError, match=r"inner=\w+, which drafts, takes tokens back"):
        Spaced(inner)  # type: ignore[arg-type]
