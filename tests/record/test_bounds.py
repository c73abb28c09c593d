"""Limits of a decode: by hand, against each other, and against FreeDave itself."""

from __future__ import annotations

from dataclasses import replace
from math import log2
from pathlib import Path

import pytest
import torch
from harness import Combination, decode, model, requests, turns
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dllm import Decoder, UserError, load
from dllm.parts import (
    MACHINES,
    Commits,
    Confidence,
    CostModel,
    ForwardCost,
    FreeDave,
    GuessRecorder,
    ModelConfig,
    OpenGuesses,
    Static,
    Trace,
    Transformer,
    TurnRecord,
    fewest,
    halves,
    jumps,
    lossless_minimum,
    machine,
    measured_rates,
)
from tests.support.bits import bits


def guess(
    confidence: dict[int, float], committed: int, argmax: dict[int, int] | None = None, block: int = 0
) -> OpenGuesses:
    at = list(confidence)
    tokens = dict.fromkeys(at, 1) | (argmax or {})
    return OpenGuesses(block, at, [tokens[p] for p in at], list(confidence.values()), [committed], [tokens[committed]])


def test_a_jump_ends_where_the_guess_was_wrong_or_the_block_ends() -> None:
    turns = [
        guess({0: 0.9, 1: 0.8, 2: 0.7}, 0),
        guess({1: 0.5, 2: 0.6}, 2),  # forward 0 would have taken 1
        guess({1: 0.9}, 1),
        guess({3: 0.9, 4: 0.8}, 3, block=1),
        guess({4: 0.8}, 4, {4: 2}, block=1),  # forward 3 said 1
    ]
    assert jumps(turns) == [1, 2, 1, 1, 1]


def test_forwards_are_counted_as_freedave_counts_them() -> None:
    assert fewest([]) == 0
    assert fewest([1]) == 1  # the first forward drafts, the single mask left needs no other
    assert fewest([4, 3, 2, 1]) == 2  # one drafts, one verifies
    assert fewest([4, 3, 2, 1], depth=2) == 3
    assert fewest([1, 1, 1, 1]) == 4
    assert fewest([3, 1, 1, 1]) == 2  # 0 -> 3, and the last is free


def every_path(jump: list[int], at: int = 0) -> int:
    """Forwards after the first one, by trying everything."""
    if at == len(jump):
        return 0
    return (at != len(jump) - 1) + min(every_path(jump, at + step) for step in range(1, jump[at] + 1))


def greedy(jump: list[int]) -> int:
    """Forwards when every jump goes as far as it can: the fewest where t + J(t) never decreases."""
    at = forwards = 0
    while at < len(jump):
        forwards += at != len(jump) - 1
        at += jump[at]
    return forwards + 1


def test_dynamic_programming_equals_trying_everything() -> None:
    noise = torch.Generator().manual_seed(6)
    for _ in range(200):
        jump = [int(torch.randint(1, min(5, 9 - at) + 1, (1,), generator=noise)) for at in range(9)]
        assert fewest(jump) == 1 + every_path(jump) <= greedy(jump)
        steady = [max(jump[: at + 1][earlier] + earlier for earlier in range(at + 1)) - at for at in range(9)]
        assert fewest([max(1, j) for j in steady]) == greedy([max(1, j) for j in steady])


def test_freedave_stays_above_the_minimum_and_the_static_decode_is_it_at_depth_one(tiny: Path) -> None:
    model, prompts = load(tiny), ["w1 w2", "w3 w9 w4", "w5", "w8 w8 w2 w41"]
    seen = GuessRecorder()
    decoder = Decoder(model, Static(), eos="none", gen_length=32, batch_size=3)
    plain = decoder(list(prompts), observe=seen)
    for depth in (2, 4, None):
        draft = Decoder(model, FreeDave(Static(), depth or 32), eos="none", gen_length=32, batch_size=4)(list(prompts))
        for number, (row, other) in enumerate(zip(draft, plain, strict=True)):
            assert row.canvas == other.canvas
            assert lossless_minimum(seen.requests[number], depth) <= row.nfe
            assert lossless_minimum(seen.requests[number], 1) == other.nfe


def test_bits_of_a_trace() -> None:
    record = {"remasked": [[]], "filled": [[]], "queries": [1], "block": (0, 0, 3), "rolled": [[]]}
    turns = [
        TurnRecord(1, 0, [Commits([0, 1], [5, 5], [0.5, 0.25], [False, False])], **record),  # type: ignore[arg-type]
        TurnRecord(2, 0, [Commits([2], [5], [0.125], [True])], **record),  # type: ignore[arg-type]
    ]
    trace = Trace([60] * 3, [0] * 3, 60, 61, 0, 3, turns)
    assert bits(trace) == [3.0, 3.0]


def test_a_threshold_bounds_the_bits_of_what_it_accepts(tiny: Path) -> None:
    row = Decoder(load(tiny), Confidence(0.9), eos="none", gen_length=32)("w1 w2", trace=True)[0]
    assert row.trace is not None and len(bits(row.trace)) == row.nfe
    for record in row.trace.turns:
        commits = record.candidates[0]
        accepted = [p for p, forced in zip(commits.confidence, commits.forced, strict=True) if not forced]
        assert all(-log2(p) <= -log2(0.9) + 1e-9 for p in accepted)


LLADA_8B = ModelConfig(
    family="llada", width=4096, layers=32, heads=32, kv_heads=32, head_dim=128, mlp_width=12288, vocab=126464,
    max_length=4096, eps=1e-5, theta=5e5, mask_id=126336, eos_id=126081, pad_id=126081, rotary_dim=128,
)  # fmt: skip


def work(queries: int, keys: int, scored: int) -> ForwardCost:
    return ForwardCost(*(torch.tensor([[n]]) for n in (queries, keys, 0, queries)), scored=torch.tensor([scored]))


@pytest.mark.daily(5)
@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
@pytest.mark.parametrize("cache", ["none", "prefix", "dual", "dkv", "recap", "window"])
def test_reported_flops_are_those_that_torch_counts(cache: str, name: str) -> None:
    """Every matrix product of a decode alone, head and attention included."""
    blocks = "whole" if cache == "window" else "fixed"
    network, reported = model(name), 0.0
    # The counter knows the plain products that the maths backend makes, not the fused CPU kernel.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        for turn in turns(Combination("static", blocks, cache, model=name), requests()[1:2]):
            reported += float(CostModel(network.config).flops(turn.cost))
    assert reported == counter.get_total_flops()


def test_reported_flops_of_elastic_are_its_layers_rows() -> None:
    """The rows differ by layer; the few attention rows that it looks at are not in the account (under 2 % at 8B)."""
    network = model("tiny-llada")
    cost, c = CostModel(network.config), network.config
    for turn in turns(Combination("confidence", "whole", "elastic"), requests()[:1]):
        rows, keys, total = turn.cost.queries[0].tolist(), turn.cost.keys[0].tolist(), 0.0
        assert len(rows) == c.layers
        for q, k in zip(rows, keys, strict=True):
            total += q * (8 * c.width**2 + 6 * c.width * c.mlp_width) + 4 * c.width * q * k
        assert float(cost.flops(turn.cost)) == total + 2 * c.width * c.vocab * int(turn.cost.scored)


def test_a_full_forward_of_llada_8b_costs_what_the_literature_says() -> None:
    """About 2 x 7.0e9 x 1024 FLOPs and 4 x 4096 x 1024^2 x 32 for attention; 16 GB of weights in bfloat16, with
    the embedding (1.04 GB) left out as a lookup."""
    cost = CostModel(LLADA_8B)
    full = float(cost.flops(work(1024, 1024, 0)))
    assert full == pytest.approx(2 * 6.98e9 * 1024 + 4 * 4096 * 1024**2 * 32, rel=2e-3)
    assert float(cost.flops(work(32, 1024, 32))) == pytest.approx(4.97e11, rel=0.01)
    assert cost.weights() == pytest.approx(14.99e9, rel=2e-3)
    # Reuse forwards are bound by reading the weights: 320 per second at 4.8 TB/s, whatever the arithmetic.
    few = work(32, 1024, 32)
    seconds = cost.floor(float(cost.flops(few)), float(cost.bytes(few)), MACHINES["h200"])
    assert seconds == pytest.approx((14.99e9 + 2 * 32 * 4096 * 2 * (1024 + 32) + 32 * 126464 * 2) / 4.8e12, rel=2e-3)
    many = work(4096, 4096, 0)
    bound = float(cost.flops(many)) / MACHINES["h200"].flops
    assert cost.floor(float(cost.flops(many)), float(cost.bytes(many)), MACHINES["h200"]) == bound


def test_a_result_adds_up_its_trace() -> None:
    for cache in ("none", "dual", "elastic"):
        for one in decode(Combination("confidence", "fixed", cache), requests()):
            assert one.result is not None and one.result.trace is not None
            records = one.result.trace.turns
            layers = model("tiny-llada").config.layers
            assert one.result.query_tokens == round(sum(sum(r.queries) / len(r.queries) for r in records)) and all(
                len(r.keys) in (1, layers) for r in records
            )


def test_routed_experts_count_once_visited() -> None:
    network: Transformer = model("llada_moe")
    moe = network.config.moe
    assert moe is not None
    dense = replace(network.config, moe=None, mlp_width=moe.top_k * moe.width + moe.shared_width)
    all_ = replace(network.config, moe=replace(moe, top_k=moe.experts))
    assert CostModel(network.config).weights() < CostModel(all_).weights()  # the least that any forward reads
    router = 2 * network.config.width * moe.experts * len(moe.sparse_layers)
    assert len(moe.sparse_layers) == network.config.layers
    routed, plain = (float(CostModel(config).flops(work(1, 1, 0))) for config in (network.config, dense))
    assert routed == plain + router


def test_guidance_reads_the_keys_of_both_halves() -> None:
    cost, three = CostModel(LLADA_8B), torch.tensor([[3], [4], [3], [4]])
    both = ForwardCost(three, 5 * three, 0 * three, three, 0 * three[:, 0])
    one = halves(both)
    for count in (cost.flops, cost.bytes):
        assert count(one).tolist() == count(both).view(2, 2).sum(0).tolist()


def test_machines_by_name() -> None:
    assert machine("l4").bytes == 0.3e12
    with pytest.raises(UserError, match="Did you mean 'h200'"):
        machine("h20")
    here = measured_rates(torch.device("cpu"))
    assert 1e8 < here.flops < 1e15 and 1e8 < here.bytes < 1e13
