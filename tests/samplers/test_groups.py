"""groups: one ranking for the turns of a group, along a power curve."""

from __future__ import annotations

import pytest

from dllm.parts import Groups, Static
from tests.samplers.game import Game, positions

CONFIDENCE = [0.1, 0.9, 0.2, 0.8, 0.3, 0.7, 0.4, 0.6]


def test_a_group_keeps_the_ranking_of_its_first_forward() -> None:
    game = Game(Groups(steps=4, power=1.0), 8)  # two positions a step, two steps a group
    assert game.turn(CONFIDENCE) == [1, 3]
    assert [int(at) for at in game.step.next_positions[0, 2:]] == [0, 0, 0, 0, 0, 1, 0, 2]
    assert game.turn(CONFIDENCE[::-1]) == [5, 7] and not game.step.next_positions.any()
    assert game.turn(CONFIDENCE) == [4, 6] and game.turn([0.5] * 8) == [0, 2]


@pytest.mark.parametrize(("steps", "masks"), [(20, 40), (16, 24), (10, 32), (8, 8)])
def test_the_curve_leaves_a_power_and_commits_one_at_least(steps: int, masks: int) -> None:
    game = Game(Groups(steps, full_steps=3), masks)
    left = [int((1 - (at / steps) ** 2.5) * masks) for at in range(steps)]
    expected = [max(one - other, 1) for one, other in zip(left, left[1:], strict=False)]
    turns = [len(game.turn([0.5] * masks)) for _ in range(steps)]
    rest = masks - sum(expected)
    assert turns == [*expected, max(rest, 0)] if rest >= 0 else sum(turns) == masks


def test_only_single_steps_are_a_schedule_by_confidence() -> None:
    one, other = Game(Groups(8, 1.0, local_steps=0), 8), Game(Static(), 8)
    for turn in range(8):
        row = [CONFIDENCE[(at + turn) % 8] for at in range(8)]
        assert one.turn(row) == other.turn(row)
        assert positions(one.step.next_positions > 0) == [[]]
