"""LLaDA2 with biases, against a plain reading of the published attention: ``query_key_value`` has a bias where
``use_qkv_bias`` says so, ``dense`` where ``use_bias`` does (the published class's default), nothing else ever."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from model_folders import logits, published
from safetensors.torch import load_file, save_file
from torch import Tensor

from dllm.errors import UserError
from dllm.models.weights import load_model, save_model

D, H, KV, h, V, BLOCK, ROTARY = 48, 4, 2, 16, 136, 32, 8
DENSE = {"first_k_dense_replace": 2, "num_hidden_layers": 2}  # no experts: the attention is what is compared


def write(folder: Path, qkv: bool, out: bool, **changes: Any) -> dict[str, Tensor]:
    """A checkpoint of dense layers under the published names and shapes; returns its tensors."""
    generator = torch.Generator().manual_seed(7)
    rows = (H + 2 * KV) * h
    shapes: dict[str, tuple[int, ...]] = {
        "model.word_embeddings.weight": (V, D), "model.norm.weight": (D,), "lm_head.weight": (V, D)
    }  # fmt: skip
    for place in ("model.layers.0", "model.layers.1"):
        shapes |= {f"{place}.{norm}.weight": (D,) for norm in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{place}.attention.{norm}.weight": (h,) for norm in ("query_layernorm", "key_layernorm")}
        shapes[f"{place}.attention.query_key_value.weight"] = (rows, D)
        shapes[f"{place}.attention.dense.weight"] = (D, H * h)
        shapes |= {f"{place}.mlp.{name}_proj.weight": (80, D) for name in ("gate", "up")}
        shapes |= {f"{place}.mlp.down_proj.weight": (D, 80)}
        shapes |= {f"{place}.attention.query_key_value.bias": (rows,)} if qkv else {}
        shapes |= {f"{place}.attention.dense.bias": (D,)} if out else {}
    tensors = {name: torch.randn(shape, generator=generator) * 0.3 + ("norm" in name) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    config = published("llada2_moe", use_qkv_bias=qkv, use_bias=out, **DENSE, **changes)
    (folder / "config.json").write_text(json.dumps(config))
    return {name: tensor.double() for name, tensor in tensors.items()}


def norm(x: Tensor, gain: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain


def rotate(x: Tensor) -> Tensor:
    """x [L, h]: feature j of the first ROTARY pairs with j + ROTARY/2 at angle position * 600000^(-2j/ROTARY)."""
    half = ROTARY // 2
    angle = torch.arange(len(x)).double()[:, None] * 600000.0 ** (-2 * torch.arange(half).double() / ROTARY)
    a, b = x[:, :half], x[:, half:ROTARY]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin(), x[:, ROTARY:]], 1)


def attention(x: Tensor, tensors: Mapping[str, Tensor], place: str) -> Tensor:
    """x [L, D]: rows of the fused matrix are all query heads, then all key heads, then all value heads."""
    fused = x @ tensors[f"{place}.query_key_value.weight"].T
    fused = fused + tensors.get(f"{place}.query_key_value.bias", torch.zeros(1))
    heads = [fused[:, i * h : (i + 1) * h] for i in range(H + 2 * KV)]
    number = torch.arange(len(x)) // BLOCK
    allowed, outs = number[:, None] >= number[None, :], []
    for head in range(H):
        group = head // (H // KV)
        query = rotate(norm(heads[head], tensors[f"{place}.query_layernorm.weight"]))
        key = rotate(norm(heads[H + group], tensors[f"{place}.key_layernorm.weight"]))
        scores = (query @ key.T / h**0.5).masked_fill(~allowed, -torch.inf)
        outs.append(scores.softmax(-1) @ heads[H + KV + group])
    out = torch.cat(outs, 1) @ tensors[f"{place}.dense.weight"].T
    return out + tensors.get(f"{place}.dense.bias", torch.zeros(1))


def reference(tokens: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    x = tensors["model.word_embeddings.weight"][tokens]
    for place in ("model.layers.0", "model.layers.1"):
        x = x + attention(norm(x, tensors[f"{place}.input_layernorm.weight"]), tensors, f"{place}.attention")
        inner = norm(x, tensors[f"{place}.post_attention_layernorm.weight"])
        gate, up, down = (tensors[f"{place}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        gated = inner @ gate.T
        x = x + (gated * gated.sigmoid() * (inner @ up.T)) @ down.T
    return norm(x, tensors["model.norm.weight"]) @ tensors["lm_head.weight"].T


@pytest.mark.parametrize("qkv", [False, True], ids=["plain", "qkv_bias"])
@pytest.mark.parametrize("out", [False, True], ids=["plain", "dense_bias"])
def test_logits_equal_the_plain_attention(qkv: bool, out: bool, tmp_path: Path) -> None:
    tensors = write(tmp_path, qkv, out)
    model = load_model(tmp_path, dtype=torch.float64)
    tokens = torch.randint(0, 100, (1, 75), generator=torch.Generator().manual_seed(8))
    own = logits(model, tokens)[0]
    assert (own - reference(tokens[0], tensors)).abs().max() <= 1e-10
    for kind in ("query_key_value", "dense"):  # and every bias there is can be seen
        without = {name: tensor for name, tensor in tensors.items() if not name.endswith(f"{kind}.bias")}
        seen = (own - reference(tokens[0], without)).abs().max() > 1e-2
        assert seen == (qkv if kind == "query_key_value" else out)


def test_biases_survive_saving(tmp_path: Path) -> None:
    before = write(tmp_path, True, True)
    (tmp_path / "copy").mkdir()
    save_model(load_model(tmp_path), tmp_path / "copy")
    after = load_file(tmp_path / "copy" / "model.safetensors")
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name].double(), before[name]) for name in before)


def test_use_bias_is_on_where_the_key_is_absent_as_in_the_published_class(tmp_path: Path) -> None:
    write(tmp_path, False, False)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({key: one for key, one in json.loads(file.read_text()).items() if key != "use_bias"}))
    with pytest.raises(UserError, match=r"tensor model\.layers\.0\.attention\.dense\.bias is missing"):
        load_model(tmp_path)


def test_a_bias_that_the_config_denies_is_no_part(tmp_path: Path) -> None:
    write(tmp_path, True, True)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"use_qkv_bias": False}))
    with pytest.raises(UserError, match=r"query_key_value\.bias is not part of this architecture"):
        load_model(tmp_path)
