"""How a forward and a loop treat rows: the head on those that somebody needs, rows that join, answers that end."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, starmap

import pytest
import torch
from harness import Combination, Shown, build, combinations, drawn, forward_of, model, parts_of, requests, turns
from law import law
from torch import Tensor

from dllm import UserError
from dllm.parts import (
    PC,
    RCR,
    Cache,
    Canvas,
    Dream,
    Dual,
    Elastic,
    Fixed,
    FullLength,
    LawAnswer,
    Order,
    Parts,
    Prefix,
    ReMDM,
    Request,
    Sampler,
    Sampling,
    Setting,
    Static,
    Window,
    choices,
    decode_joining,
    denoise,
    validate,
)


@pytest.fixture
def logit_rows(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of everything the head makes."""
    shapes: list[tuple[int, ...]] = []
    network = model("tiny-llada")
    original = network.head

    def head(hidden: Tensor) -> Tensor:
        out = original(hidden)
        shapes.append(tuple(out.shape))
        return out

    monkeypatch.setattr(network, "head", head)
    return shapes


def test_logits_exist_only_for_the_open_rows_of_the_block(logit_rows: list[tuple[int, ...]]) -> None:
    opened = [int(turn.view.open.sum(1).max()) for turn in turns(Combination("static", "fixed"), requests()[:1])]
    assert [shape[0] for shape in logit_rows] == opened
    assert max(shape[0] for shape in logit_rows) == 8 < len(requests()[0].tokens)


def test_the_head_runs_on_no_padding(logit_rows: list[tuple[int, ...]]) -> None:
    """Rows with few open positions were padded to the row with the most: 124 rows for the 118 that were scored."""
    found = list(turns(Combination("confidence", "fixed"), requests()))
    scored = [int(turn.view.scores.scored.sum()) for turn in found]
    assert [shape[0] for shape in logit_rows] == scored == [int(turn.cost.scored.sum()) for turn in found]
    assert any(len(set(turn.cost.scored.tolist())) > 1 for turn in found)


def test_nothing_as_large_as_all_rows_times_the_vocabulary_is_allocated() -> None:
    """Of every tensor made during a decode, those with a vocabulary axis have at most a block of rows."""
    vocabulary, seen = model("tiny-llada").config.vocab, []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor) and out.dim() > 1 and out.shape[-1] == vocabulary and out.is_floating_point():
                seen.append(out.shape[:-1].numel())
            return out

    with Watch():
        list(turns(Combination("confidence", "fixed"), requests()[:1]))
    assert seen
    assert max(seen) <= 8


@pytest.mark.parametrize("weight", [0.0, 1.5])
def test_guidance_mixes_conditional_and_unconditional_logits(weight: float) -> None:
    from dllm.parts import Sampling

    sampling = Sampling(guidance=weight)
    turn = next(iter(turns(Combination("static", "whole"), requests()[:1], sampling)))
    network, request = model("tiny-llada"), requests()[0]
    tokens = torch.tensor([request.tokens])
    blank = torch.where(torch.tensor([request.masked]), tokens, 60)
    with torch.inference_mode():
        given, free = network.head(network.encode(tokens)), network.head(network.encode(blank))
    logits = free + (weight + 1) * (given - free)
    logits[..., 60] = -torch.inf
    open_ = turn.view.open
    assert torch.equal(turn.view.scores.token[open_], logits.argmax(-1)[open_])
    expected = logits.softmax(-1).amax(-1)[open_]
    assert torch.allclose(turn.view.scores.confidence[open_], expected, atol=1e-9)
    assert int(turn.cost.queries) == len(request.tokens) * (2 if weight else 1)


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
        patch.setattr(
            "dllm.parts.cache.kept.with_room",
            lambda held, shape: torch.randn([max(*pair) for pair in zip(held.shape, shape, strict=True)]).to(held),
        )
        decode_joining = decoded(combination, {0: [requests[0]], 3: [requests[1]]}, Sampling())
    assert decode_joining[1] == alone[1]  # a fresh row writes before it reads
    assert decode_joining[0] != decoded(combination, {0: [requests[0]]}, Sampling())[0]


BLOCKS = Fixed(8)
MOST = 200  # turns; 24 positions at one a turn, and what revocable rules add, take fewer

# Caches that commit less than they are asked for: one at a time, or one first.
NARROW: dict[str, Cache] = {
    "elastic": Elastic(window_length=1),
    "window": Window(1, 4, 3),
    "window-first": Window(4, 12, 2, "range", refresh_candidates="first"),
    "dual": Dual(query_left=False),
    "prefix": Prefix(query_left=False),
}
SCHEDULES: dict[str, Sampler] = {
    "one-step": Static(1),
    "steps": Static(7),
    "three": Static(per_step=3),
    "order": Order(steps=5),
    "order-four": Order(per_step=4),
    "pc": PC(steps=3),
    "dream": Dream(steps=4),
    "rcr": RCR(3),
    "remdm": ReMDM(4),
}


@dataclass(frozen=True)
class Narrow(Shown):
    """A sampler under a cache that commits less than it is asked for."""

    sampler: str
    cache: str
    model: str

    @property
    def rule(self) -> Sampler:
        return SCHEDULES[self.sampler] if self.sampler in SCHEDULES else build("sampler", self.sampler)

    def accepted(self) -> bool:
        try:
            validate(Setting(model(self.model).config, BLOCKS, None), self.rule, NARROW[self.cache], FullLength())
        except UserError:
            return False
        return True


def narrow() -> Iterator[Narrow]:
    cases = starmap(Narrow, drawn([*SCHEDULES, *choices("sampler")], list(NARROW), ("tiny-llada", "tiny-dream")))
    return filter(Narrow.accepted, cases)


@law(narrow, daily=15, least=200)
def test_every_mask_is_decided_in_the_end(case: Narrow) -> None:
    rule, keep = case.rule, FullLength()
    forward = forward_of(
        model(case.model), Parts(rule, BLOCKS, NARROW[case.cache], keep), Sampling(tempered=rule.traits.tempered)
    )
    with torch.inference_mode():
        loop = denoise(Canvas.of(requests(), 61), forward, Parts(rule, BLOCKS, NARROW[case.cache], keep))
        made = list(islice(loop, MOST))
    assert len(made) < MOST
    assert not made[-1].candidates.masked.any()
