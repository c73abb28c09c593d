"""A rule's traits are true: of ours under every option that changes them, and each false claim is found."""

from __future__ import annotations

from itertools import islice

import pytest
import wrong_parts
from harness import Combination, build, requests, turns
from own_parts import Above, Alternate, Calmest, Drawing, Steady, Surest, Twice

from dllm.parts import (
    ETE,
    RCR,
    Broken,
    Confidence,
    Dream,
    Fixed,
    FullLength,
    NoCache,
    Parts,
    Prior,
    Request,
    Sampler,
    SamplerTraits,
    Sampling,
    Static,
    Trial,
    choices,
    network,
    traits_hold,
)

ROWS = tuple(Request.answer([1, 5, 3], length, 15, seed) for seed, length in enumerate((8, 5)))


def tried(rule: Sampler) -> None:
    parts = Parts(rule, Fixed(4), NoCache(), FullLength(), Sampling().under(rule))
    traits_hold(Trial(network("llada"), parts, ROWS, parts.sampling))


# What options change: whether the rule is deterministic, by_confidence, ranks_by, and compares with thresholds.
STATED: list[tuple[Sampler, tuple[bool, bool, str, bool]]] = [
    (Static(), (True, True, "confidence", False)),
    (Static(score="margin"), (True, True, "", False)),
    (Static(score="entropy"), (True, False, "entropy", False)),
    (Static(score="random"), (False, False, "", False)),
    (Dream("maskgit_plus"), (True, True, "confidence", False)),
    (Dream("origin"), (False, False, "", False)),
    (Dream("maskgit_plus", alg_temp=0.5), (False, False, "", True)),
    (RCR(score="low_confidence"), (True, True, "", True)),
    (RCR(score="margin"), (True, False, "", True)),
    (Prior(Static()), (True, False, "", False)),
    (Above(), (True, True, "confidence", True)),
    (Surest(), (True, True, "confidence", False)),
    (Calmest(), (True, False, "entropy", False)),
    (Alternate(), (True, False, "", False)),
    (Drawing(), (False, False, "", True)),
    (Steady(), (True, False, "", False)),
    (Twice(Confidence()), (True, True, "", True)),
    (Twice(Twice(Drawing())), (False, False, "", True)),
]


@pytest.mark.parametrize(
    ("rule", "stated"), STATED, ids=[f"{at}-{type(one).__name__}" for at, (one, _) in enumerate(STATED)]
)
def test_traits_are_what_options_make_of_them(rule: Sampler, stated: tuple[bool, bool, str, bool]) -> None:
    traits = rule.traits
    assert (traits.deterministic, traits.by_confidence, traits.ranks_by, traits.thresholds) == stated
    tried(rule)


@pytest.mark.parametrize(
    ("rule", "claim"),
    [
        (wrong_parts.Drawn(), "deterministic=True, and decides otherwise in a later turn"),
        (wrong_parts.LeftFirst(), "by_confidence=True, and commits a confidence of -1 before others"),
        (wrong_parts.Spread(), "ranks_by='confidence', and commits another position"),
        (wrong_parts.Measured(), "thresholds=False, and decides otherwise where all confidences are halved"),
    ],
    ids=["draws", "left-to-right", "spread", "threshold"],
)
def test_a_false_claim_is_found(rule: Sampler, claim: str) -> None:
    with pytest.raises(Broken, match=f"^{type(rule).__name__} states {claim}"):
        tried(rule)


def test_what_a_rule_draws_from_torch_is_found_at_once() -> None:
    rule = Drawing()
    rule.traits = rule.traits.but(deterministic=True)
    with pytest.raises(Broken, match="decides otherwise on the same scores"):
        tried(rule)


def test_a_class_that_leaves_a_trait_out_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="'deterministic' and 'by_confidence'"):
        SamplerTraits(stateless=True)  # type: ignore[call-arg]


def test_a_wrapper_passes_on_what_is_inside() -> None:
    pair = Twice(ETE())
    assert pair.traits.branches and pair.traits.lookahead == 1 and not pair.traits.stateless


# Rules for other models, blocks or caches than those below.
ELSEWHERE = {"ancestral", "d2f", "dmax", "flash_verify", "learn2pd", "linear_spec", "renoise"}


@pytest.mark.parametrize("name", sorted({*choices("sampler")} - ELSEWHERE))
def test_a_rule_that_calls_itself_stateless_hands_nothing_on_and_any_other_does(name: str) -> None:
    found = islice(turns(Combination(name, "fixed"), requests()[:2]), 12)
    seen = {key for turn in found for key in turn.step.state or ()}
    assert build("sampler", name).traits.stateless == (not seen) or name == "prophet"  # it remembers its exit alone


def test_what_rules_deny_of_themselves_is_written_here() -> None:
    """A claim too many breaks ``traits_hold``; one too few would only refuse what works."""
    traits = {name: build("sampler", name).traits for name in choices("sampler")}
    assert {name for name, one in traits.items() if not one.deterministic} == {"ancestral", "renoise"}
    by_confidence = {name for name, one in traits.items() if one.ranks_by == "confidence" and not one.by_confidence}
    assert by_confidence == {"d2f"}  # within each block only
