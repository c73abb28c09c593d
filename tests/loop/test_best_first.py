"""The likeliest sets of additions, against hand-made trees and the enumeration of all orders."""

from __future__ import annotations

from collections import defaultdict
from itertools import permutations, product
from random import Random

import pytest

from dllm.parts import Addition, Weighed, best_first

Draft = frozenset[Addition]


def chances(guesses: list[Weighed]) -> dict[Draft, float]:
    """The chance of every set without repeated steps: the sum over all orders of choosing its additions one by one."""
    weight, out = dict(guesses), defaultdict[Draft, float](float)
    places = sorted({place for place, _ in weight})
    for size in range(1, len(places)):
        for order in permutations(places, size):
            for tokens in product(*([token for at, token in weight if at == place] for place in order)):
                chance, left = 1.0, sum(weight.values())
                for place, token in zip(order, tokens, strict=True):
                    chance *= weight[place, token] / left
                    left -= sum(value for (at, _), value in guesses if at == place)
                out[frozenset(zip(order, tokens, strict=True))] += chance
    return dict(out)


def test_the_likeliest_set_grows_first_and_none_has_all_places() -> None:
    guesses = [Weighed((0, 7), 6.0), Weighed((1, 8), 3.0), Weighed((2, 9), 1.0)]
    # {0}: 0.6. {1}: 0.3. {0, 1}: 0.6 * 3/4 + 0.3 * 6/7 = 0.71, once both have grown. {2}: 0.1.
    assert best_first(guesses, [], trust=0.5, most=2, least=0.0) == [{(0, 7)}, {(0, 7), (1, 8)}]
    assert len(best_first(guesses, [], trust=0.5, most=99, least=0.0)) == 6
    assert best_first(guesses, [], trust=0.5, most=99, least=0.2) == [{(0, 7)}, {(1, 8)}, {(0, 7), (1, 8)}]
    assert best_first(guesses, [], trust=0.5, most=0, least=0.0) == []
    assert best_first([], [], trust=0.5, most=9, least=0.0) == []


def test_tokens_of_one_place_exclude_each_other() -> None:
    guesses = [Weighed((0, 7), 2.0), Weighed((0, 8), 1.0), Weighed((1, 7), 1.0)]
    assert best_first(guesses, [], trust=0.5, most=99, least=0.0) == [{(0, 7)}, {(0, 8)}, {(1, 7)}]


def test_repeated_steps_come_first_where_they_are_trusted_and_not_at_all_where_they_are_not() -> None:
    guesses = [Weighed((place, 5), 1 - place / 100) for place in range(6)]
    steps = [[(3, 5)], [(4, 5), (5, 5)]]
    assert best_first(guesses, steps, trust=0.99, most=2, least=0.0) == [{(3, 5)}, {(3, 5), (4, 5), (5, 5)}]
    assert best_first(guesses, steps, trust=0.0, most=1, least=0.0) == [{(0, 5)}]


@pytest.mark.parametrize("seed", range(5))
def test_without_limits_every_set_of_a_chance_is_found(seed: int) -> None:
    rng = Random(seed)
    guesses = [Weighed((place, token), rng.random() ** 3) for place in range(4) for token in range(rng.randint(1, 3))]
    all_ = chances(guesses)
    assert sum(chance for draft, chance in all_.items() if len(draft) == 1) == pytest.approx(1.0)
    found = best_first(guesses, [], trust=0.3, most=10**6, least=0.0)
    assert set(found) == set(all_) and [*map(len, found)] == sorted(map(len, found))
    # With few, nothing is left out that is much likelier than what is in.
    few = best_first(guesses, [], trust=0.3, most=6, least=0.0)
    assert min(all_[draft] for draft in few) >= max(all_[draft] for draft in found if draft not in few) / 3
