"""What a run reports it cost: against PyTorch's own FLOP counter, and against closed forms."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from harness import Combination, decode, model, requests, turns
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dllm import UserError
from dllm.cache.guided import halves
from dllm.models.config import ModelConfig
from dllm.models.transformer import Transformer
from dllm.record.cost import MACHINES, CostModel, ForwardCost, machine, measured

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
    here = measured(torch.device("cpu"))
    assert 1e8 < here.flops < 1e15 and 1e8 < here.bytes < 1e13
