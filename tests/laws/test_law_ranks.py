"""Law 12: ranks that share a model decode what one process decodes: the canvas of every turn, and the costs.

Every sampler x cache x blocks x end-of-text policy, on two ranks and four, at temperature 0 and above. Ranks are
threads here; ``tests/loop/test_rank_program.py`` decodes with processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import pytest
import torch
from harness import DATA, MODELS, Combination, Shown, allowed, build, drawn, model, parts_of, requests
from law import law
from rank_threads import Apart, ThreadRanks, threads, together

from dllm import part
from dllm.parts import (
    AttentionMap,
    Elastic,
    IncompatibleParts,
    Need,
    NoCache,
    Parts,
    Sampling,
    State,
    Static,
    Step,
    UserError,
    View,
    check_ranks,
    choices,
    load_model,
    recorded,
)

SIZES, HEATS = (2, 4), (0.0, 0.8)


@dataclass(frozen=True)
class Case(Shown):
    """One combination on so many ranks, at a temperature."""

    combination: Combination
    size: int
    heat: float

    def accepted(self) -> bool:
        """Whether the parts take each other and this temperature."""
        return allowed(self.combination) and allowed(self.combination, self.sampling)

    @property
    def sampling(self) -> Sampling:
        return Sampling(temperature=self.heat, tempered=build("sampler", self.combination.sampler).traits.tempered)


def cases() -> Iterator[Case]:
    groups = *map(choices, ("sampler", "blocks", "cache", "eos")), MODELS, SIZES, HEATS
    found = (Case(Combination(*names[:5]), *names[5:]) for names in drawn(*groups))
    return (one for one in found if one.accepted())


group = cache(threads)  # the ranks of a size


@cache
def shares(name: str, size: int) -> list[Any]:
    """What each rank holds of a model, read from its folder."""
    return [model(name, ranks=ranks) for ranks in group(size)]


def decoded(network: Any, case: Case) -> list[Any]:
    """The canvas of every turn, and what was counted, of each request."""
    found = recorded(network, parts_of(case.combination, case.sampling), requests(), case.sampling)
    return [
        (
            one.canvases,
            one.result.turns,
            one.result.nfe,
            one.result.query_tokens,
            one.result.computed_tokens,
            one.result.flops,
            one.result.bytes,
        )
        for one in found
    ]


def on_ranks(case: Case) -> list[list[Any]]:
    ranks, networks = group(case.size), shares(case.combination.model, case.size)
    return together(ranks, lambda rank: decoded(networks[rank], case))


@law(cases, daily=2, least=5000)
def test_ranks_decode_what_one_decodes(case: Case) -> None:
    alone = decoded(model(case.combination.model), case)
    for rank, found in enumerate(on_ranks(case)):
        assert found == alone, f"rank {rank}"


# What reads heads, or adds up a layer, by the function that asks for the exchange, and a decode that needs it.
READERS = {
    "drift.attention_similarity": ("static", part("cache", "elastic", similarity="keys", gamma=0.99, window_length=5)),
    "drift.products": ("static", part("cache", "elastic", gamma=0.97, window_length=5)),
    "elastic._track": ("static", part("cache", "elastic", gamma=0.9, window_length=5)),
    "d2cache.attend": ("static", part("cache", "d2cache", masks=6, rollout=0.4, sigma=4.0)),
    "dllm_cache._turned": ("static", part("cache", "dllm_cache", prompt_interval=5, response_interval=4)),
    "dllm_cache.unit": ("static", part("cache", "dllm_cache", prompt_interval=5, response_interval=4)),
    "flash_dllm.attend": ("static", part("cache", "flash_dllm", window_length=4, mask_windows=2, track_windows=1)),
    "sparse_dllm._choose": ("static", part("cache", "sparse_dllm", keep_ratio=0.4)),
    "transformer.forward": ("static", part("cache", "none")),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("site", READERS)
def test_a_reader_of_heads_that_adds_nothing_up_is_found(site: str) -> None:
    sampler, kv = READERS[site]
    blocks = build("blocks", "fixed" if site == "sparse_dllm._choose" else "whole")
    parts = Parts(build("sampler", sampler), blocks, kv, build("eos", "none"))
    name, ranks = "tiny-llada", cast("list[ThreadRanks]", group(2))

    def decode(network: Any) -> list[Any]:
        found = recorded(network, parts, requests(), parts.sampling)
        return [(one.canvases, one.result.query_tokens) for one in found]

    alone, networks = decode(model(name)), shares(name, 2)
    assert together(ranks, lambda rank: decode(networks[rank])) == [alone] * 2
    assert site in ranks[0].met
    try:
        for one in ranks:
            one.skipped.add(site)
        found: list[Any] = together(ranks, lambda rank: decode(networks[rank]))
    except (Apart, RuntimeError, IndexError):
        found = []
    finally:
        for one in ranks:
            one.skipped.clear()
    assert found != [alone] * 2, f"without the sum of {site} nothing changes"


class Watching(Static):
    """Notes the attention that it reads."""

    def __init__(self) -> None:
        super().__init__(per_step=8)
        self.noted: list[list[float]] = []

    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=(AttentionMap(received=True),)),)

    def step(self, view: View, state: State) -> Step:
        found = view.scores.of(AttentionMap(received=True))
        self.noted.append(torch.cat([found.weights.flatten(), found.received.flatten()]).tolist())
        return super().step(view, state)


def test_attention_that_parts_read_is_that_of_all_heads() -> None:
    def noted(network: Any) -> list[list[float]]:
        rule = Watching()
        recorded(network, Parts(rule, build("blocks", "whole"), NoCache(), build("eos", "none")), requests()[:1])
        return rule.noted

    networks = shares("tiny-llada", 2)
    alone, found = noted(model("tiny-llada")), together(group(2), lambda rank: noted(networks[rank]))
    assert alone and found == [[pytest.approx(one, abs=1e-12) for one in alone]] * 2


MIXTURES = [
    (Combination("renoise", "fixed", "finished", "none", "dg_dev"), False),  # a sum for each norm behind a product
    (Combination("ancestral", "fixed", "finished", "none", "dg_dev"), True),
    (Combination("static", "fixed", "dual", "none", "tiny-rnd1"), False),
    (Combination("static", "fixed", "elastic", "none", "tiny-rnd1"), True),
]


@pytest.mark.daily(1)
@pytest.mark.parametrize(("combination", "ep"), MIXTURES, ids=str)
def test_routed_experts_are_cut_both_ways(combination: Combination, ep: bool) -> None:
    ranks, folder, case = group(2), DATA / "models" / combination.model, Case(combination, 2, 0.0)
    networks = together(ranks, lambda rank: load_model(folder, dtype=torch.float64, ranks=ranks[rank], ep=ep))
    alone = decoded(model(combination.model), case)
    assert together(ranks, lambda rank: decoded(networks[rank], case)) == [alone] * 2


def test_what_says_nothing_of_heads_is_refused() -> None:
    silent = type("Silent", (Elastic,), {"traits": Elastic.traits.but(acts_in_layers=True)})()
    with pytest.raises(IncompatibleParts, match="does not say how it reads"):
        check_ranks(2, silent, "eager")
    for name in choices("cache"):
        check_ranks(2, build("cache", name), "eager")
    with pytest.raises(UserError, match="torch.compile does not read sums over ranks"):
        check_ranks(2, build("cache", "none"), "compile")


def test_a_dense_layer_asks_for_two_sums_and_the_head_for_one_gather() -> None:
    network, case = shares("tiny-llada", 2), Case(Combination("static", "whole"), 2, 0.0)
    for ranks in group(2):
        ranks.account.clear()
    found = on_ranks(case)[0]
    forwards = max(one[2] for one in found)
    account, layers, width = network[0].ranks.account, network[0].config.layers, network[0].config.width
    rows = found[0][4]
    assert account.sums == 2 * layers * forwards
    assert account.gathers == forwards
    assert account.summed <= 2 * layers * rows * width * 8 * len(found)
