"""Models under another's architecture, quantised checkpoints and unknown keys: named, and told from what is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from model_folders import PARITY, copy_of, edit_config, edit_weights, published

from dllm.app.commands.checkpoint import inspect_checkpoint
from dllm.errors import SettingWarning, UserError, warn_once
from dllm.models.bundle import load
from dllm.models.config import ModelConfig
from dllm.models.weights import load_model
from tests import parity

FOREIGN: list[tuple[str, dict[str, Any], str]] = [
    *(("sdar_b4", {"block_size": block}, "I-DLM") for block in (1, 2, 3)),
    ("sdar_b4", {"use_regular_causal": True}, "I-DLM"),
    ("llada2_moe", {"expert_capacity": 4}, "LLaDA2.2"), ("llada2_moe", {"delete_token_id": 1}, "LLaDA2.2"),
    ("llada2_moe", {"split_token_id": 0}, "LLaDA2.2"),
]  # fmt: skip
METHODS: list[tuple[dict[str, Any], str]] = [
    *(({"quantization_config": {"quant_method": method}}, repr(method)) for method in (
        "fp8", "bitsandbytes", "compressed-tensors", "auto-round", "hqq", "torchao", "mxfp4")),
    ({"quantization": {"group_size": 64, "bits": 4}}, "'bits': 4"),
    ({"quantization_config": {"group_size": 64, "bits": 4}}, "'bits': 4"),
    ({"compression_config": {"format": "pack-quantized"}}, "pack-quantized"),
]  # fmt: skip


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
    for part in ("config.json", next(iter(change)), sentence, "Take the unquantised checkpoint", "model.quantize"):
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
    edit_config(folder, mlp_bias=False, num_experts=0, logit_scale=1.0, layer_types=["full_attention"] * 3,
                attention_bias=True, quantization_config=None)  # fmt: skip
    after = load_model(folder)
    assert after.config == before.config and after.config.warnings == ()
