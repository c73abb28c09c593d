"""Checkpoints as other trainers write them: what loads as it is, and what after a change that a page names."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dllm import UserError
from dllm.parts import Transformer, load_model
from tests.support.tiny import MODELS

# Of a config.json that MegaDLMs' converter writes (tools/weights_conversion/hf_configs), what Qwen3's has, too.
SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "rope_theta",
    "vocab_size",
    "max_position_embeddings",
    "eos_token_id",
    "tie_word_embeddings",
)
OWN = {
    "attn_mask_type": "bidirectional",
    "use_mrope": False,
    "sliding_window": 4096,
    "use_sliding_window": False,
    "mask_token_id": 130,
    "hidden_act": "silu",
    "max_window_layers": 28,
}


def same(one: Transformer, other: Transformer) -> bool:
    tokens = torch.tensor([[3, 9, 27, 8, 5, 25]])
    with torch.inference_mode():
        return torch.equal(one.logits(one.encode(tokens)), other.logits(other.encode(tokens)))


def test_megadlms_folder_loads_under_the_name_of_its_layers(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(MODELS / "a2d_qwen3", tmp_path / "mega"))
    file = folder / "config.json"
    published = json.loads(file.read_text())
    written = {**{name: published[name] for name in SIZES}, **OWN, "architectures": ["DiffLM"]}
    file.write_text(json.dumps(written))
    with pytest.raises(UserError, match="DiffLM"):
        load_model(folder)
    file.write_text(json.dumps({**written, "architectures": ["A2DQwen3LMHeadModel"]}))
    assert same(load_model(folder), load_model(MODELS / "a2d_qwen3"))


def test_dfactorys_merged_experts_are_refused_until_they_are_split(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(MODELS / "llada2_moe", tmp_path / "merged"))
    file, kept, stacks = folder / "model.safetensors", dict[str, torch.Tensor](), dict[str, dict[int, torch.Tensor]]()
    for name, tensor in load_file(file).items():
        expert = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)\.weight", name)
        if expert:
            stacks.setdefault(f"{expert[1]}.{expert[3]}", {})[int(expert[2])] = tensor
        else:
            kept[name] = tensor
    merged = {name: torch.stack([some[number] for number in sorted(some)]) for name, some in stacks.items()}
    save_file({**kept, **merged}, file)
    with pytest.raises(UserError, match="experts.0.gate_proj.weight is missing, and the file has .*experts.down_proj"):
        load_model(folder)


def test_automodels_consolidated_shards_load(tmp_path: Path) -> None:
    folder = tmp_path / "epoch_0_step_9" / "model" / "consolidated"
    folder.mkdir(parents=True)
    shutil.copy(MODELS / "tiny-llada" / "config.json", folder)
    halves, names = [dict[str, torch.Tensor](), dict[str, torch.Tensor]()], dict[str, str]()
    for number, (name, tensor) in enumerate(load_file(MODELS / "tiny-llada" / "model.safetensors").items()):
        halves[number % 2][name] = tensor
        names[name] = f"model-0000{number % 2 + 1}-of-00002.safetensors"
    for number, half in enumerate(halves, 1):
        save_file(half, folder / f"model-0000{number}-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert same(load_model(folder), load_model(MODELS / "tiny-llada"))
