"""LLaDA2 with biases, against a plain reading of the published attention: ``query_key_value`` has a bias where
``use_qkv_bias`` says so, ``dense`` where ``use_bias`` does (the published class's default), nothing else ever."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from model_folders import PARITY, copy_of, edit_config, edit_weights, logits, published
from safetensors.torch import load_file, save_file
from torch import Tensor

from dllm.parts import (
    ModelConfig,
    SettingWarning,
    UserError,
    inspect_checkpoint,
    load,
    load_model,
    save_model,
    warn_once,
)
from tests import parity

D, H, KV, h, V, BLOCK, ROTARY = 48, 4, 2, 16, 136, 32, 8
DENSE = {"first_k_dense_replace": 2, "num_hidden_layers": 2}  # no experts: the attention is what is compared


def write(folder: Path, qkv: bool, out: bool, **changes: Any) -> dict[str, Tensor]:
    """A checkpoint of dense layers under the published names and shapes; returns its tensors."""
    generator = torch.Generator().manual_seed(7)
    rows = (H + 2 * KV) * h
    shapes: dict[str, tuple[int, ...]] = {
        "model.word_embeddings.weight": (V, D),
        "model.norm.weight": (D,),
        "lm_head.weight": (V, D),
    }
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


FOREIGN: list[tuple[str, dict[str, Any], str]] = [
    *(("sdar_b4", {"block_size": block}, "I-DLM") for block in (1, 2, 3)),
    ("sdar_b4", {"use_regular_causal": True}, "I-DLM"),
    ("llada2_moe", {"expert_capacity": 4}, "LLaDA2.2"),
    ("llada2_moe", {"delete_token_id": 1}, "LLaDA2.2"),
    ("llada2_moe", {"split_token_id": 0}, "LLaDA2.2"),
]
METHODS: list[tuple[dict[str, Any], str]] = [
    *(
        ({"quantization_config": {"quant_method": method}}, repr(method))
        for method in ("aqlm", "eetq", "quark", "auto-round", "hqq", "torchao", "mxfp4")
    ),
    ({"quantization": True}, "quantization=true"),
    ({"quantization_config": {"group_size": 64, "bits": 4}}, "'bits': 4"),
    ({"compression_config": {"quant_method": "sparse"}}, "sparse"),
]


@pytest.mark.parametrize(("name", "change", "model"), FOREIGN, ids=[f"{one[0]}-{one[1]}" for one in FOREIGN])
def test_another_model_under_this_architecture_is_refused_by_its_own_name(
    name: str, change: dict[str, Any], model: str
) -> None:
    with pytest.raises(UserError) as caught:
        ModelConfig.from_published(published(name, **change))
    assert all(part in str(caught.value) for part in ("config.json", next(iter(change)), model, "Take "))


def test_the_signs_of_another_model_may_be_off() -> None:
    sdar = published("sdar_b4", use_regular_causal=False)
    assert ModelConfig.from_published(sdar) == ModelConfig.from_published(published("sdar_b4"))
    llada2 = published("llada2_moe", expert_capacity=None, delete_token_id=None)
    assert ModelConfig.from_published(llada2) == ModelConfig.from_published(published("llada2_moe"))


def test_parity_refuses_a_folder_by_the_models_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copy_of("sdar_b4", tmp_path)
    edit_config(folder, block_size=2)
    assert parity.main([str(folder)]) == 1
    assert "sdar_b4: refused: config.json has block_size=2" in capsys.readouterr().out


@pytest.mark.parametrize(("change", "sentence"), METHODS, ids=[one[1] for one in METHODS])
def test_a_quantised_checkpoint_is_refused_by_its_method(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    folder = copy_of("dream_gqa", tmp_path)
    edit_config(folder, **change)
    (problem,) = inspect_checkpoint(folder).problems
    for part in (
        "config.json",
        next(iter(change)),
        sentence,
        "Take the unquantised checkpoint",
        "int8, int4 or float8",
    ):
        assert part in problem


@pytest.mark.parametrize("leaf", ["qweight", "scales", "weight_packed", "SCB", "absmax", "W_q"])
def test_quantised_tensors_are_told_where_the_config_is_silent(leaf: str, tmp_path: Path) -> None:
    folder = copy_of("dream_gqa", tmp_path)
    place = "model.layers.0.mlp.down_proj"
    edit_weights(folder, **{f"{place}.weight": None, f"{place}.{leaf}": torch.ones(3, dtype=torch.int32)})
    (problem,) = inspect_checkpoint(folder).problems
    assert f"{place}.{leaf}" in problem and "Take the unquantised checkpoint" in problem


@pytest.mark.parametrize("name", [folder.name for folder in PARITY])
def test_the_published_files_hold_no_key_that_is_not_known(name: str) -> None:
    assert ModelConfig.from_published(published(name)).warnings == ()


def test_a_key_that_nothing_reads_is_reported_once(tmp_path: Path) -> None:
    folder = copy_of("dream_gqa", tmp_path)
    edit_config(folder, new_gate=3, another=[1], nothing=None, _private=1)
    sentence = "config.json has keys that are not known here, and so are not read: new_gate, another."
    report = inspect_checkpoint(folder)
    assert report.usable and sentence in report.notes
    warn_once.cache_clear()
    with pytest.warns(SettingWarning, match="new_gate, another") as caught:
        load(folder)
        load(folder)
    assert len([one for one in caught if issubclass(one.category, SettingWarning)]) == 1


@pytest.mark.parametrize(("name", "change"), [
    ("dream_gqa", {"num_experts": 8}), ("dream_gqa", {"mlp_bias": True}), ("dream_gqa", {"attention_bias": False}),
    ("sdar_b4", {"qk_norm": False}), ("sdar_b4", {"final_logit_softcapping": 30.0}),
    ("nbdiff_gqa", {"use_mrope": True}),
    ("wedlm_qknorm", {"logits_scaling": 8}), ("llada2_moe", {"norm_head": True}),
    ("llada2_moe", {"use_qk_norm": False}),
    ("llada2_moe", {"norm_topk_prob": False}), ("llada2_moe", {"moe_router_enable_expert_bias": False}),
    ("llada_moe", {"norm_topk_prob": True}), ("llada_moe", {"routed_scaling_factor": 2.5}),
    ("llada_moe", {"router_num_group": 4}), ("llada_gqa_tied", {"layer_norm_eps": 1e-6}),
    ("dream_gqa", {"vision_config": {"depth": 2}}), ("sdar_b4", {"layer_types": ["full_attention"]}),
    ("sdar_b4", {"layer_types": ["sliding_attention"] * 3}), ("dream_gqa", {"transformers_weights": "x.safetensors"}),
])  # fmt: skip
def test_a_key_that_changes_the_computation_is_refused_by_name(name: str, change: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"config.json has .*{next(iter(change))}="):
        ModelConfig.from_published(published(name, **change))


def test_neutral_values_pass_without_a_word(tmp_path: Path) -> None:
    folder = copy_of("dream_gqa", tmp_path)
    before = load_model(folder)
    edit_config(
        folder,
        mlp_bias=False,
        num_experts=0,
        logit_scale=1.0,
        layer_types=["full_attention"] * 3,
        attention_bias=True,
        quantization_config=None,
    )
    after = load_model(folder)
    assert after.config == before.config and after.config.warnings == ()
