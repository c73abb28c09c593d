"""Random weights in the published format, at real size: ``python -m experiments.bench.random_checkpoint NAME FOLDER``.

For what loading and forwards cost; no text means anything. NAME: llada-8b (16 GB), dream-7b (15 GB), llada2-mini
(33 GB), llada2-flash (206 GB), diffusiongemma-26b (50 GB). ``--layers`` makes a smaller one; the last must be a
multiple of six. A tokenizer is missing: give prompts as token ids, ``prompts=FILE`` with lines ``{"tokens": [...]}``.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from dllm.common.errors import UserError
from dllm.models.config import ModelConfig
from dllm.models.network.networks import network_of
from dllm.models.weights.files import INDEX
from dllm.models.weights.names import published_shapes
from experiments.support.scripts import refusing

SHARD = 2 << 30  # bytes of a file, about
POOL = 1 << 24  # random numbers that tensors are cut from: drawing 8 billion takes minutes
QWEN = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "attention_dropout": 0.0}
SHAPES: dict[str, dict[str, Any]] = {
    # GSAI-ML/LLaDA-8B-Instruct's config.json
    "llada-8b": {
        "architectures": ["LLaDAModelLM"], "model_type": "llada", "d_model": 4096, "n_heads": 32, "n_kv_heads": 32,
        "n_layers": 32, "mlp_hidden_size": 12288, "vocab_size": 126464, "embedding_size": 126464, "rope": True,
        "rope_theta": 500000.0, "rope_full_precision": True, "rms_norm_eps": 1e-5, "max_sequence_length": 4096,
        "mask_token_id": 126336, "eos_token_id": 126081, "pad_token_id": 126081, "weight_tying": False,
        "include_bias": False, "include_qkv_bias": False, "layer_norm_type": "rms", "layer_norm_with_affine": True,
        "attention_layer_norm": False, "activation_type": "silu", "block_type": "llama", "alibi": False,
        "block_group_size": 1, "scale_logits": False, "input_emb_norm": False,
    },
    # Dream-org/Dream-v0-Instruct-7B's
    "dream-7b": {
        **QWEN, "architectures": ["DreamModel"], "model_type": "Dream", "hidden_size": 3584, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064,
        "max_position_embeddings": 131072, "rope_theta": 1000000.0, "mask_token_id": 151666, "pad_token_id": 151643,
        "bos_token_id": 151643, "eos_token_id": 151643,
    },
    # inclusionAI/LLaDA2.0-mini's
    "llada2-mini": {
        **QWEN, "architectures": ["LLaDA2MoeModelLM"], "model_type": "llada2_moe", "hidden_size": 2048,
        "num_hidden_layers": 20, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128,
        "intermediate_size": 5120, "moe_intermediate_size": 512, "num_experts": 256, "num_experts_per_tok": 8,
        "num_shared_experts": 1, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 1, "norm_topk_prob": True,
        "routed_scaling_factor": 2.5, "score_function": "sigmoid", "moe_router_enable_expert_bias": True,
        "vocab_size": 157184, "max_position_embeddings": 32768, "rope_theta": 600000, "partial_rotary_factor": 0.5,
        "rotary_dim": 64, "use_qk_norm": True, "use_bias": False, "use_qkv_bias": False, "pad_token_id": 156892,
        "eos_token_id": 156892, "mask_token_id": 156895, "router_dtype": "fp32",
    },
    # google/diffusiongemma-26B-A4B-it's, text alone; every sixth layer is global
    "diffusiongemma-26b": {
        "architectures": ["DiffusionGemmaForBlockDiffusion"], "model_type": "diffusion_gemma", "canvas_length": 256,
        "tie_word_embeddings": True, "text_config": {
            "hidden_size": 2816, "num_hidden_layers": 30, "num_attention_heads": 16, "num_key_value_heads": 8,
            "head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 2, "sliding_window": 1024,
            "intermediate_size": 2112, "moe_intermediate_size": 704, "num_experts": 128, "top_k_experts": 8,
            "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh", "vocab_size": 262144,
            "max_position_embeddings": 262144, "tie_word_embeddings": True, "pad_token_id": 0, "eos_token_id": 1,
        },
    },
}  # fmt: skip
# inclusionAI/LLaDA2.0-flash's and LLaDA2.1-flash's
SHAPES["llada2-flash"] = {
    **SHAPES["llada2-mini"], "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "intermediate_size": 9216, "moe_intermediate_size": 1024,
}  # fmt: skip


def config_of(name: str, layers: int | None) -> dict[str, Any]:
    """The published config.json of a model, with fewer layers if that is asked for."""
    found = SHAPES[name]
    own = found.get("text_config", found)
    key = "n_layers" if "n_layers" in own else "num_hidden_layers"
    cut = {**own, key: layers or own[key]}
    whole = cut if own is found else {**found, "text_config": cut}
    return {**whole, "torch_dtype": "bfloat16"}


def tensors(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Weights of standard deviation 0.02, and ones for norms."""
    pool = (torch.randn(POOL, generator=torch.Generator().manual_seed(seed)) * 0.02).to(torch.bfloat16)
    begin = 0
    for name, shape in shapes.items():
        if len(shape) == 1:
            yield name, torch.ones(shape, dtype=torch.bfloat16)
            continue
        count = prod(shape)
        begin = (begin + 7919) % POOL  # no two tensors are cut alike
        if begin + count <= POOL:
            yield name, pool[begin : begin + count].view(shape).clone()
        else:
            yield name, pool.roll(-begin).repeat(-(-count // POOL))[:count].view(shape).clone()


def write(name: str, folder: Path, layers: int | None) -> int:
    """Write the checkpoint. Returns its bytes. Raises UserError where the disk has less room than it takes."""
    config = config_of(name, layers)
    with torch.device("meta"):
        shapes = published_shapes(network_of(ModelConfig.from_published(config)))
    total = 2 * sum(map(prod, shapes.values()))
    folder.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(folder).free) < total:
        raise UserError(f"{folder} has {free / 1e9:.0f} GB free, and {name} takes {total / 1e9:.0f}. Use --layers.")
    shard: dict[str, Tensor] = {}
    places: dict[str, str] = {}
    number = 0
    for key, tensor in tensors(shapes):
        shard[key] = tensor
        if sum(one.nbytes for one in shard.values()) >= SHARD:
            places |= dict.fromkeys(shard, file := f"model-{number:05}.safetensors")
            save_file(shard, folder / file)
            shard, number = {}, number + 1
    places |= dict.fromkeys(shard, file := f"model-{number:05}.safetensors")
    save_file(shard, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": places}))
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return total


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.bench.random_checkpoint", description=__doc__)
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int)
    given = parser.parse_args(arguments)
    size = write(given.name, given.folder, given.layers)
    print(f"{given.folder}: {size / 1e9:.1f} GB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
