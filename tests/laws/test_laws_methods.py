"""Laws 6 and 7: FreeDave and Scout lose nothing, and a method with its extension off is the method it extends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import starmap

import pytest
import torch
from harness import Combination, Shown, allowed, build, drawn, full, model, results
from law import law

from dllm.parts import (
    BACD,
    DUS,
    ETE,
    PC,
    TACG,
    WEIGHTS,
    AdaBlock,
    Adas,
    Blocks,
    Cache,
    Confidence,
    Credit,
    Dawn,
    DParallel,
    Dual,
    Easing,
    EndOfText,
    EntropyBound,
    EntropyDistance,
    Factor,
    Fixed,
    Frechet,
    FreeDave,
    Frontier,
    FullLength,
    JointThreshold,
    Learn2PD,
    LocalLeap,
    LoPA,
    NoCache,
    Order,
    Parts,
    Prefix,
    Prior,
    Prophet,
    Request,
    Result,
    Sampler,
    Scout,
    Static,
    Whole,
    choices,
)

LENGTH, BLOCKS = 24, {"short": Fixed(8), "long": Fixed(24), "whole": Whole()}
NAMES = ("tiny-llada", "tiny-dream")


def prompts(count: int) -> list[list[int]]:
    """Random prompts of the tiny models' words, of several lengths."""
    noise = torch.Generator().manual_seed(11)
    lengths = torch.randint(4, 17, (count,), generator=noise).tolist()
    return [[62, *torch.randint(0, 56, (length,), generator=noise).tolist(), 55] for length in lengths]


def decode(
    name: str,
    sampler: Sampler,
    blocks: Blocks,
    count: int = 12,
    cache: Cache | None = None,
    eos: EndOfText | None = None,
) -> list[Result]:
    network = model(name)
    batch = [Request.answer(prompt, LENGTH, 60, seed) for seed, prompt in enumerate(prompts(count))]
    return results(network, Parts(sampler, blocks, cache or NoCache(), eos or FullLength()), batch)


STATIC = {
    "one": Static(),
    "even": Static(steps=12),
    "uneven": Static(steps=9),
    "margin": Static(score="margin"),
    "entropy": Static(score="entropy"),
    "dus": DUS(),
    "left-to-right": Order("left_to_right", steps=6),
    "random-order": Order(),
}


@dataclass(frozen=True)
class Drafted(Shown):
    """FreeDave over a static sampler."""

    inner: str
    depth: int
    blocks: str
    model: str


def drafted() -> Iterator[Drafted]:
    return starmap(Drafted, drawn(list(STATIC), (1, 2, 4, 8), list(BLOCKS), NAMES))


@law(drafted, daily=8, least=168)
def test_freedave_gives_the_static_tokens_with_no_more_forwards(case: Drafted) -> None:
    inner, blocks, count = STATIC[case.inner], BLOCKS[case.blocks], 8 if full() else 5
    plain = decode(case.model, inner, blocks, count)
    draft = decode(case.model, FreeDave(inner, case.depth), blocks, count)
    assert [one.canvas for one in draft] == [one.canvas for one in plain]
    assert all(one.nfe <= other.nfe for one, other in zip(draft, plain, strict=True))
    assert case.depth > 1 or [one.nfe for one in draft] == [one.nfe for one in plain]


@pytest.mark.parametrize("sampler", ["freedave", "scout"])
def test_drafts_do_not_go_with_a_policy_that_fills_between_turns(sampler: str) -> None:
    assert not allowed(Combination(sampler, "fixed", "none", "fill_at_once", NAMES[0]))
    assert allowed(Combination(sampler, "fixed", "none", "stop_at_last_eos", NAMES[0]))


def test_deeper_drafts_save_forwards() -> None:
    plain, *deep = (
        sum(one.nfe for one in decode("tiny-llada", sampler, Fixed(8), 12))
        for sampler in (Static(), FreeDave(Static(), 2), FreeDave(Static(), 4))
    )
    assert plain > 1.3 * deep[0] > 1.3 * deep[1]


VERIFIED = {name: STATIC[name] for name in ("one", "even", "uneven", "entropy", "dus", "random-order")} | {
    "confidence": Confidence(0.2),
    "factor": Factor(),
    "frechet": Frechet(0.2),
    "localleap": LocalLeap(0.3, 0.1, 2),
    "dparallel": DParallel(2.0),
    "easing": Easing(0.3),
    "eb": EntropyBound(4.0),
    "dawn": Dawn(0.3, 0.2, 0.1),
    "entropy-distance": EntropyDistance(2.0),
    "prior": Prior(Static()),
    "adas": Adas(EntropyBound(3.0), 3.0),
    "frontier": Frontier(Factor(), 5),
    "pc": PC(),
}
ENDS = [name for name in choices("eos") if name not in ("eotp", "fill_at_once")]  # judges forwards; is refused
CACHES: dict[str, Cache] = {
    "none": NoCache(),
    "prefix": Prefix(),
    "dual": Dual(),
    "prefix-forced": Prefix(False),
    "dual-forced": Dual(False),
}


@dataclass(frozen=True)
class Scouted(Shown):
    """Scout over a rule."""

    inner: str
    rows: int
    blocks: str
    cache: str
    eos: str
    model: str


def scouted() -> Iterator[Scouted]:
    return starmap(Scouted, drawn(list(VERIFIED), (2, 5, 16), list(BLOCKS), list(CACHES), ENDS, NAMES))


@law(scouted, daily=8, least=3000)
def test_scout_gives_its_inner_rules_tokens_with_no_more_forwards(case: Scouted) -> None:
    inner, blocks, count = VERIFIED[case.inner], BLOCKS[case.blocks], 8 if full() else 3
    cache, eos = CACHES[case.cache], build("eos", case.eos)
    plain = decode(case.model, inner, blocks, count, cache, eos)
    scout = decode(case.model, Scout(inner, case.rows, min_probability=1e-3), blocks, count, cache, eos)
    assert [one.canvas for one in scout] == [one.canvas for one in plain]
    assert all(one.nfe <= other.nfe for one, other in zip(scout, plain, strict=True))


WIDTH = 24
ZEROS = {name: torch.randn((WIDTH, WIDTH) if name.endswith("weight") else (WIDTH,)) for name in WEIGHTS}
OFF: dict[str, tuple[Sampler, Sampler]] = {
    "localleap-radius-0": (LocalLeap(0.9, 0.75, 0), Confidence(0.9)),
    "localleap-equal-bars": (LocalLeap(0.9, 0.9, 4), Confidence(0.9)),
    "frechet-margin-1": (Frechet(1.0), Static()),
    "credit-alpha-0": (Credit(Confidence(0.8), alpha=0.0), Confidence(0.8)),
    "credit-alpha-0-factor": (Credit(Factor(), alpha=0.0), Factor()),
    "credit-alpha-0-static": (Credit(Static(12), alpha=0.0), Static(12)),
    "ete-alone": (ETE(lookahead_blocks=0, explore_min_commit=0), Confidence(0.9)),
    "prophet-no-region": (Prophet(Static(), region="none"), Static()),
    "prophet-never-sure": (Prophet(LocalLeap(), thresholds=[float("inf")] * 3), LocalLeap()),
    "freedave-depth-1": (FreeDave(Confidence(0.8), 1), Confidence(0.8)),
    "scout-one-row": (Scout(Confidence(0.3), 1), Confidence(0.3)),
    "bacd-equal-clamps": (BACD(0.7, 0.7), Confidence(0.7)),
    "learn2pd-threshold-1": (Learn2PD(ZEROS, threshold=1.0), Static()),
    "tacg-all-off": (TACG(most=0, streak=1, bonus=0.0), Confidence(0.9)),
    "entropy-distance-no-penalty": (EntropyDistance(0.4, 0.0), DParallel(0.4)),
    "lopa-no-lookahead": (LoPA(0.9, 1, "confidence"), Confidence(0.9)),
    "prior-of-all": (Prior(Static(12), sigma=float("inf")), Static(12)),
    "easing-alpha-0": (Easing(0.9, 0.0), Confidence(0.9)),
    "adas-weight-0": (Adas(Factor(), 0.0), Factor()),
    "adas-weight-0-of-eb": (Adas(EntropyBound(), 0.0), EntropyBound()),
    "dawn-above-1": (Dawn(0.9, 1.01, 1.01), Confidence(0.9)),
    "frontier-of-all": (Frontier(Factor(), None), Factor()),
    "frontier-wide": (Frontier(LocalLeap(), LENGTH), LocalLeap()),
    "joint-threshold-no-edits": (JointThreshold(0.8, None), Confidence(0.8)),
    "joint-threshold-no-edits-minimum": (JointThreshold(1.0, None, 3, minimum=2), Static(12)),
    "pc-no-decay": (PC(decay=0.0), Static()),
}


@dataclass(frozen=True)
class Off(Shown):
    """A method whose extension is switched off."""

    method: str
    blocks: str
    model: str


def switched_off() -> Iterator[Off]:
    return starmap(Off, drawn(list(OFF), list(BLOCKS), NAMES))


@law(switched_off, daily=8, least=72)
def test_a_method_switched_off_is_the_method_it_extends(case: Off) -> None:
    one, other = (decode(case.model, sampler, BLOCKS[case.blocks], 12 if full() else 6) for sampler in OFF[case.method])
    assert [(row.canvas, row.turns, row.nfe) for row in one] == [(row.canvas, row.turns, row.nfe) for row in other]


def test_adablock_without_a_delimiter_is_the_fixed_grid() -> None:
    adaptive = AdaBlock(8, delimiter_ids=[3, 4], delimiter_threshold=1.0)
    none = AdaBlock(8, delimiter_ids=[])
    fixed = decode("tiny-llada", Confidence(), Fixed(8))
    assert [row.turns for row in decode("tiny-llada", Confidence(), none)] == [row.turns for row in fixed]
    assert decode("tiny-llada", Confidence(), adaptive)
