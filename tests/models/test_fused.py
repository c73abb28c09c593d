"""Products of the same rows as one product."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from harness import DATA
from safetensors.torch import load_file
from torch import nn

from dllm.models.fused import apart, fuse_products
from dllm.models.transformer import Transformer
from dllm.models.weights import load_model, read_model_config, save_model

FOLDERS = sorted(folder for folder in (DATA / "models").iterdir() if (folder / "config.json").is_file())
TOKENS = torch.arange(24).view(2, 12)


def unfused(folder: Path, dtype: torch.dtype) -> Transformer:
    """The same weights in a model as it is before ``fuse_products``."""
    model = Transformer(read_model_config(folder)).to(dtype).eval().requires_grad_(False)
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
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert set(after) <= set(before)
    assert all(torch.equal(after[name], before[name].float()) for name in after)
    assert {name for name in before if "inv_freq" not in name} - set(after) <= {"lm_head.weight"}


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
