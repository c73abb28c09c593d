"""The laws where rows change their lengths beside one that may not, joining and leaving, with all parts that go along.

What does not is refused (``tests/lengths/test_lengths.py``); ``python -m dllm.laws length=NAME`` tries the same on
models of every kind with random weights.
"""

from __future__ import annotations

from functools import lru_cache, partial

import pytest
from harness import Combination, combinations_of_lengths, model, parts_of, requests
from law import law

from dllm.laws import batch_claims, claims
from dllm.parts import Broken, Decoded, Sampling, Trial

of_lengths = partial(law, combinations_of_lengths, daily=1, least=80)


@lru_cache(maxsize=2)
def trial(combination: Combination) -> Trial:
    parts = parts_of(combination)
    return Trial(model(combination.model), parts, tuple(requests()), Sampling().under(parts.sampler))


@of_lengths()
def test_rows_keep_what_they_commit_and_their_traces_say_how_they_changed(combination: Combination) -> None:
    claims.commits_stay(trial(combination))
    claims.a_trace_redraws(trial(combination))
    claims.all_is_decided(trial(combination))


@of_lengths()
def test_a_row_decodes_the_same_alone_and_in_any_batch(combination: Combination) -> None:
    batch_claims.a_row_is_alone(trial(combination), [[0], [1], [2], [2, 0, 1]])


@of_lengths()
def test_a_row_may_join_rows_that_grow(combination: Combination) -> None:
    batch_claims.a_row_may_join(trial(combination))


@of_lengths()
def test_every_turn_commits_but_those_before_the_first(combination: Combination) -> None:
    claims.every_turn_commits(trial(combination), claims.may_stand_still(parts_of(combination).sampler))


@of_lengths()
def test_fixed_shapes_are_refused(combination: Combination) -> None:
    batch_claims.a_late_host_changes_nothing(trial(combination))


def grown(length: str) -> list[Decoded]:
    return trial(Combination("confidence", "fixed", length=length)).together


@pytest.mark.parametrize("length", ["daedal", "rho_eos"])
def test_rows_change_beside_one_that_does_not(length: str) -> None:
    first, second, third = (len(one.final.canvas) for one in grown(length))
    assert second == 16 and (first, third) != (24, 21)


def test_a_token_that_moves_without_a_word_breaks_the_law() -> None:
    case = trial(Combination("confidence", "fixed", length="daedal"))
    held, wrong = case.together[0].canvases, [list(canvas) for canvas in case.together[0].canvases]
    at = max(column for column, token in enumerate(wrong[-2]) if token != -1 and column > 12)
    wrong[-1][at] = (wrong[-1][at] + 1) % 50
    case.together[0].canvases = wrong
    with pytest.raises(Broken, match="lost their tokens"):
        claims.commits_stay(case)
    case.together[0].canvases = held
