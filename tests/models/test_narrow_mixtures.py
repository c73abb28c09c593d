"""Mixtures with narrow experts by our kernels: the network of the rounded weights, and one recording for all rows."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from model_folders import logits, wide_folder
from recording import FakeGraph
from torch import Tensor, nn

from dllm.parts import MoE, NarrowExperts, NarrowLinear, StackedExperts, Transformer, load_model, widened

SMALL = {  # one layer of a few experts
    "llada_moe": {"num_hidden_layers": 1, "moe_layer_freq": [1], "num_experts": 4},
    "llada2_moe": {"num_hidden_layers": 1, "first_k_dense_replace": 0, "num_experts": 4, "n_group": 1, "topk_group": 1},
}


def narrow_model(name: str, kind: str, folder: Path) -> Transformer:
    """Random weights in fewer bits, for our kernels, which multiply with them alone."""
    return load_model(wide_folder(name, folder, **SMALL[name]), dtype=torch.bfloat16, quantize=kind, triton=True)


def wide(weights: Tensor, scales: Tensor) -> Tensor:
    """Matrices [E, N, D] in float32."""
    return torch.stack([widened(*pair, torch.float32) for pair in zip(weights, scales, strict=True)])


def with_plain_products(model: Transformer) -> Transformer:
    """A copy with the rounded weights in float32, which plain operations multiply."""
    out = deepcopy(model).float()
    for module in list(out.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, NarrowLinear):
                linear = nn.Linear(1, 1, child.bias is not None)
                linear.weight = nn.Parameter(widened(child.narrow, child.scale, torch.float32), False)
                linear.bias = child.bias
                setattr(module, name, linear)
            elif isinstance(child, NarrowExperts):
                pairs = (child.gate_up, child.gate_up_scale), (child.down, child.down_scale)
                setattr(module, name, StackedExperts(*(wide(*pair) for pair in pairs)))
    return out


@pytest.mark.parametrize(("name", "kind"), [("llada_moe", "int8"), ("llada2_moe", "int4")])
def test_it_computes_what_the_rounded_weights_do(name: str, kind: str, tmp_path: Path) -> None:
    """In float32, in which no expert flips."""
    model, tokens = narrow_model(name, kind, tmp_path), torch.arange(6).view(2, 3)
    assert any(isinstance(part, NarrowExperts) and part.triton for part in model.modules())
    expected = logits(with_plain_products(model), tokens)
    torch.testing.assert_close(logits(model.float(), tokens), expected, rtol=1e-4, atol=1e-4)


def test_it_is_recorded(tmp_path: Path) -> None:
    """Nothing is asked of the host, so other rows go to their experts when a recording is replayed."""
    moe = next(part for part in narrow_model("llada_moe", "int4", tmp_path).modules() if isinstance(part, MoE))
    rows = torch.randn(3, 1, 128, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    expected, chosen = moe(rows), moe.route(rows.flatten(0, 1))[1]
    fixed, out, graph = torch.ones_like(rows), torch.empty_like(rows), FakeGraph([])
    assert not torch.equal(moe.route(fixed.flatten(0, 1))[1], chosen)
    graph.record(lambda: out.copy_(moe(fixed)))
    fixed.copy_(rows)
    graph.replay()
    assert torch.equal(out, expected)
