"""Every sampler x cache x blocks x kind of model: it works (``test_laws`` decodes it), or it is refused before
weights are read, with a way out. No part is left out unseen."""

from __future__ import annotations

from dataclasses import astuple
from itertools import combinations as pairs
from itertools import islice

import harness
import law
import pytest
from harness import MODELS, Combination, allowed, choices, combinations, drawn, full, of_noise, parts_of, unasked

from dllm import UserError
from dllm.parts import IncompatibleParts


def test_every_refusal_names_something_that_works(capsys: pytest.CaptureFixture[str]) -> None:
    works, refused = 0, 0
    groups = [*map(choices, ("sampler", "cache", "blocks")), MODELS]
    for sampler, cache, blocks, name in drawn(*groups) if full() else islice(drawn(*groups), 10_000):  # of 82,000
        try:
            parts_of(Combination(sampler, blocks, cache, model=name))
            works += 1
        except UserError as error:
            refused += 1
            # without one the sampler or the blocks do not fit, whatever the cache
            ways = error.use if isinstance(error, IncompatibleParts) else ()
            nearest = next((way.value for way in ways if way.name == "cache" and way.also is None), None)
            other = Combination(sampler, blocks, nearest or "none", model=name)
            assert allowed(other) == bool(nearest)
    with capsys.disabled():
        print(f"\nsampler x cache x blocks x model: {works} allowed, {refused} refused")
    assert works > 1000


def test_every_part_has_an_allowed_combination() -> None:
    """Models of noise have laws of their own (``tests/loop/test_noise_laws.py``)."""
    parts = [set(choices(group)) for group in ("sampler", "blocks", "cache", "eos")]
    wanted, met = [parts[0] - of_noise(), *parts[1:], set(MODELS), {"fixed"}], [set[str]() for _ in range(6)]
    for combination in combinations():  # to the last one only where a part is missing
        for names, name in zip(met, astuple(combination), strict=True):
            names.add(name)
        if met == wanted:
            break
    assert met == wanted


def test_a_part_that_cannot_be_built_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its combinations would all count as refused, and every law would hold over none of them."""
    monkeypatch.setitem(harness.OPTIONS, ("blocks", "tccf"), {"fine_length": -1})
    for known in ("built_parts", "allowed"):  # asked again
        monkeypatch.setattr(harness, known, getattr(harness, known).__wrapped__)
    with pytest.raises(UserError, match="fine_length=-1"):
        harness.allowed(Combination("confidence", "fixed"))


def test_what_keep_refuses_no_other_policy_of_ends_takes() -> None:
    """``allowed`` rests on it."""
    refused = (one for one in unasked() if one.eos != "none" and not allowed(one))
    for combination in islice(refused, 1000):
        with pytest.raises(UserError):
            parts_of(combination)


def test_a_law_over_too_few_cases_fails() -> None:
    one = law.Law("everything holds", lambda case: None, lambda: [Combination("confidence", "fixed")], 3, 2)
    for cases in (one.all, one.sample):
        with pytest.raises(AssertionError, match="everything holds has 1 cases, and should have 2 at least"):
            cases()


def test_a_sample_shows_every_part_and_most_pairs() -> None:
    """Samplers and caches alone make more pairs than there are cases: nearly each case shows one more of them."""
    cases = law.widest_first(law.first(combinations, 8000), 80)  # as many as the laws decode daily
    many = combinations() if full() else islice(combinations(), 10_000)
    sample, everywhere = (
        {pair for case in found for pair in pairs(law.parts_in_case(case), 2)} for found in (cases, many)
    )
    assert {part for pair in sample for part in pair} == {part for pair in everywhere for part in pair}
    both = {pair for pair in everywhere if {group for group, _ in pair} == {"sampler", "cache"}}
    assert len(sample & both) > 0.95 * min(len(cases), len(both)), (len(sample & both), len(cases), len(both))
    assert len(sample - both) > 0.4 * len(everywhere - both), (len(sample - both), len(everywhere - both))
