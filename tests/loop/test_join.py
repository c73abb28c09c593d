"""Rows that join a running batch decode as they do alone, whatever else is in it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from harness import Combination, combinations, model, parts_of
from law import law

from dllm.contract.canvas import Request
from dllm.contract.setting import Sampling
from dllm.errors import UserError
from dllm.laws.decodes import LawAnswer, decode_joining


def decoded(combination: Combination, arrivals: dict[int, list[Request]], sampling: Sampling) -> dict[int, LawAnswer]:
    """Every request's answer by its seed, when so many turns have passed before it arrives."""
    return decode_joining(model(combination.model, torch.float64), parts_of(combination, sampling), arrivals, sampling)


def joining() -> Iterator[Combination]:
    """The oracle is told the answers of certain requests."""
    return (one for one in combinations() if one.sampler != "oracle")


@law(joining, daily=9, least=5000)
def test_a_row_that_joins_decodes_as_it_does_alone(combination: Combination) -> None:
    noise = random.Random(str(combination))
    sampling = some_sampling(combination, noise.choice((0.0, 0.7)))
    requests = [
        Request.answer([noise.randrange(1, 60) for _ in range(noise.randint(1, 9))], noise.randint(5, 20), 60, seed)
        for seed in range(4)
    ]
    arrivals: dict[int, list[Request]] = {0: requests[:2]}
    for one in requests[2:]:
        arrivals.setdefault(noise.randint(1, 7), []).append(one)
    together = decoded(combination, arrivals, sampling)
    alone = {}
    for one in requests:
        alone |= decoded(combination, {0: [one]}, sampling)
    assert together == alone


def some_sampling(combination: Combination, guidance: float) -> Sampling:
    """Guided where the parts take that. Confidences are tempered where the sampler's are."""
    sampling = Sampling(guidance=guidance, tempered=parts_of(combination).sampler.traits.tempered)
    try:
        parts_of(combination, sampling)
    except UserError:
        return replace(sampling, guidance=0.0)
    return sampling


def test_a_session_that_forgot_its_rows_would_be_noticed() -> None:
    """The law finds what it is for: without the columns that are written, a decode_joining row attends to zeros."""
    combination = Combination("static", "fixed", "dual", "none", "tiny-llada")
    requests = [Request.answer([7, 8, 9], 12, 60, seed) for seed in range(2)]
    alone = decoded(combination, {0: [replace(requests[1])]}, Sampling())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dllm.cache.buffer.grown", lambda store, held, shape: torch.randn(
            shape[0], store.shape[1], shape[1] + 1, store.shape[3], dtype=store.dtype))  # fmt: skip
        decode_joining = decoded(combination, {0: [requests[0]], 3: [requests[1]]}, Sampling())
    assert decode_joining[1] == alone[1]  # a fresh row writes before it reads
    assert decode_joining[0] != decoded(combination, {0: [requests[0]]}, Sampling())[0]
