"""Products of the same rows as one product."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from harness import DATA
from recording import FakeGraph
from safetensors.torch import load_file
from torch import nn

from dllm.parts import (
    MoE,
    StackedExperts,
    Transformer,
    apart,
    fuse_products,
    load_model,
    network_of,
    read_model_config,
    save_model,
)
from tests.support.adapters import stored

FOLDERS = sorted(folder for folder in (DATA / "models").iterdir() if (folder / "config.json").is_file())
TOKENS = torch.arange(24).view(2, 12)


def unfused(folder: Path, dtype: torch.dtype) -> Transformer:
    """The same weights in a model as it is before ``fuse_products``."""
    model = network_of(read_model_config(folder)).to(dtype).eval().requires_grad_(False)
    model.load_state_dict(dict(apart(load_model(folder, dtype=dtype))), strict=False)
    return model


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_logits_are_those_of_separate_products(folder: Path) -> None:
    """A product of a part of the outputs may sum in another order: within an ulp or two of float64."""
    fused, separate = load_model(folder, dtype=torch.float64), unfused(folder, torch.float64)
    expected = separate.logits(separate.encode(TOKENS))
    torch.testing.assert_close(fused.logits(fused.encode(TOKENS)), expected, rtol=1e-12, atol=1e-12)
    assert sum(p.numel() for p in fused.parameters()) == sum(p.numel() for p in separate.parameters())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_saving_keeps_the_published_names(folder: Path, tmp_path: Path) -> None:
    save_model(load_model(folder), tmp_path)
    before, after = stored(folder), load_file(tmp_path / "model.safetensors")
    assert set(after) <= set(before)
    assert all(torch.equal(after[name], before[name].float()) for name in after)
    left_out = ("lm_head.weight", *read_model_config(folder).layout.towers)
    assert not {name for name in before if "inv_freq" not in name and not name.startswith(left_out)} - set(after)


def test_what_is_no_plain_product_stays() -> None:
    class Other(nn.Linear):
        pass

    model = Transformer(read_model_config(DATA / "models" / "llada_mha_untied"))
    attn = model.layers[0].attn
    attn.k = Other(attn.k.in_features, attn.k.out_features, bias=False)
    for _ in range(2):
        fuse_products(model)
    assert attn.qkv is None
    assert isinstance(attn.k, Other)
    assert model.layers[0].mlp.gate_up is not None


@pytest.mark.parametrize("name", ["llada_moe", "llada2_moe"])
def test_routed_experts_are_recorded(name: str) -> None:
    """With our kernel they ask nothing of the host, so other rows go to their experts when a recording is replayed."""
    pytest.importorskip("triton")
    model = load_model(DATA / "models" / name)
    moe = next(part for part in model.modules() if isinstance(part, MoE))
    rows = torch.randn(3, 5, moe.router.in_features, generator=torch.Generator().manual_seed(2))
    expected, chosen = moe(rows), moe.route(rows.flatten(0, 1))[1]
    model.use_kernels(True)
    fixed, out, graph = torch.randn_like(rows), torch.empty_like(rows), FakeGraph([])
    assert not torch.equal(moe.route(fixed.flatten(0, 1))[1], chosen)
    graph.record(lambda: out.copy_(moe(fixed)))
    fixed.copy_(rows)
    graph.replay()
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def test_experts_are_those_of_the_published_loop() -> None:
    """Each row through its experts one by one, added up in ascending order."""
    model = load_model(DATA / "models" / "llada_moe", dtype=torch.float64)
    moe = next(part for part in model.modules() if isinstance(part, MoE))
    rows = torch.randn(11, moe.router.in_features, dtype=torch.float64)
    weights, chosen = moe.route(rows)
    experts = moe.experts
    assert isinstance(experts, StackedExperts)
    expected = torch.zeros_like(rows)
    for number in range(moe.config.experts):
        row, rank = torch.where(chosen == number)
        gate, up = (rows[row] @ half.T for half in experts.gate_up[number].chunk(2))
        expected[row] += (nn.functional.silu(gate) * up @ experts.down[number].T) * weights[row, rank, None]
    torch.testing.assert_close(moe(rows), expected, rtol=1e-13, atol=1e-13)
