"""eb: the longest prefix of the entropy ranking within a budget."""

from __future__ import annotations

import torch

from dllm.parts import EntropyBound
from tests.samplers.game import Game


def longest_prefix(entropy: list[float], gamma: float) -> set[int]:
    """By trying every prefix."""
    order = sorted(range(len(entropy)), key=lambda at: (entropy[at], at))
    allowed = [n for n in range(1, len(order) + 1) if n == 1 or sum(entropy[at] for at in order[: n - 1]) <= gamma]
    return set(order[: max(allowed)])


def test_equals_trying_every_prefix() -> None:
    noise = torch.Generator().manual_seed(2)
    for trial in range(200):
        entropy = (torch.rand(9, generator=noise, dtype=torch.float64) ** 3).tolist()
        gamma = (0.0, 0.05, 0.3, 1.0)[trial % 4]
        assert set(Game(EntropyBound(gamma), 9).turn(0.5, entropy=entropy)) == longest_prefix(entropy, gamma)


def test_the_largest_entropy_of_the_prefix_is_free() -> None:
    assert Game(EntropyBound(0.1), 4).turn(0.5, entropy=[0.04, 5.0, 0.05, 7.0]) == [0, 1, 2]


def test_no_budget_commits_one_and_every_certain_one() -> None:
    assert Game(EntropyBound(0.0), 4).turn(0.5, entropy=[0.3, 0.2, 0.4, 0.2]) == [1]
    assert Game(EntropyBound(0.0), 4).turn(0.5, entropy=[0.3, 0.0, 0.0, 0.2]) == [1, 2, 3]
