"""The laws that every combination of parts obeys, on a tiny trained model in float64. Law 5, that every row which is
attended to has been written, is asserted by the caches themselves (``tests/conftest.py`` switches it on)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import chain

import pytest
from harness import (
    PROMPTS,
    Combination,
    combinations,
    combinations_of_candidates,
    combinations_of_noise,
    decode,
    full,
    model,
    parts_of,
    requests,
)
from law import law

from dllm.laws import batch_claims, claims
from dllm.parts import Request, Sampling, Trial, traits_hold

GRID_SAMPLERS = {"dream"}  # fixed time grids whose count for a turn can be 0
REFUSES = {"flash_verify", "linear_spec"}  # forwards that verify drafts perhaps in vain, or only make them
ANEW = {"rcr", "remdm"}  # decide positions anew: what a turn commits may be masked again at its end


def with_noise() -> Iterator[Combination]:
    """Laws of noise are for ``make laws`` alone: ``tests/loop/test_noise_laws.py`` shows them daily."""
    return chain(combinations_of_noise(), combinations())


CASES = with_noise if full() else combinations
of_decodes = partial(law, CASES, daily=80, least=5000)  # test_matrix says what so many show


@lru_cache(maxsize=2)
def trial(combination: Combination) -> Trial:
    """Three requests as one batch. ``make laws`` asks all laws of one combination, then of the next."""
    network, parts = model(combination.model), parts_of(combination)
    return Trial(network, parts, tuple(requests()), Sampling().under(parts.sampler))


@of_decodes()
def test_every_turn_with_something_open_commits(combination: Combination) -> None:
    claims.every_turn_commits(trial(combination), combination.sampler in GRID_SAMPLERS | ANEW | REFUSES)


@of_decodes()
def test_commits_stay(combination: Combination) -> None:
    claims.commits_stay(trial(combination))


@of_decodes()
def test_a_block_commits_more_than_it_takes_back(combination: Combination) -> None:
    claims.a_block_gains(trial(combination))


@of_decodes()
def test_nothing_stays_masked_and_the_prompt_is_untouched(combination: Combination) -> None:
    claims.all_is_decided(trial(combination))


@of_decodes()
def test_a_row_decodes_the_same_alone_and_in_any_batch(combination: Combination) -> None:
    batch_claims.a_row_is_alone(trial(combination), others(combination))


def others(combination: Combination) -> list[list[int]]:
    """Every row alone and all in another order; by default one of these, drawn by the combination's name."""
    batches = [[0], [1], [2], [2, 0, 1]]
    return batches if full() else random.Random(str(combination)).sample(batches, 1)


@law(combinations_of_candidates, daily=3, least=300)
def test_candidates_side_by_side_decode_as_candidates_in_rows(combination: Combination) -> None:
    batch_claims.candidates_may_lie_side_by_side(trial(combination))


@of_decodes()
def test_a_trace_redraws_every_canvas(combination: Combination) -> None:
    claims.a_trace_redraws(trial(combination))


@law(CASES, daily=6, least=5000)
def test_a_rule_does_what_its_traits_state(combination: Combination) -> None:
    traits_hold(trial(combination))


@pytest.mark.parametrize("sampler", ["confidence", "static", "dream"])
def test_noise_depends_on_seed_position_and_turn_only(sampler: str) -> None:
    combination = Combination(sampler, "fixed")
    hot = Sampling(temperature=1.0, tempered=sampler == "dream")
    together = decode(combination, requests(), hot)
    alone = [decode(combination, [row], hot)[0] for row in requests()]
    other = decode(combination, requests(seed=7), hot)
    assert [one.canvases for one in together] == [one.canvases for one in alone]
    assert [one.canvases for one in together] != [one.canvases for one in other]


@law(CASES, daily=40, least=5000)
def test_infilling_decides_the_masked_positions_only(combination: Combination) -> None:
    tokens = [62, 51, 25, 3, 60, 60, 4, 55, 3, 60, 60, 60, 54, 60, 60, 61]
    masked = [token == 60 for token in tokens]
    suffix = Request(PROMPTS[1] + [60] * 9, [False] * 8 + [True] * 9)
    claims.infilling_keeps_what_is_given(trial(combination), Request(tokens, masked), suffix)
