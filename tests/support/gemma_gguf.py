"""DiffusionGemma as llama.cpp's converter writes it: names by its table, each vector in float32."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import quants
from safetensors.numpy import load_file

_TOP = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "self_conditioning.pre_norm": "self_cond_pre_norm",
    **{f"self_conditioning.{part}_proj": f"self_cond_{part}" for part in ("gate", "up", "down")},
}
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "post_feedforward_layernorm": "post_ffw_norm",
    "router.proj": "ffn_gate_inp",
}
_BARE = {
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
    "layer_scalar": "layer_output_scale.weight",
}


def gguf_name(published: str) -> str:
    """The name of a published tensor in a file."""
    found = re.fullmatch(r"model\.(decoder|encoder\.language_model)\.layers\.(\d+)\.(.+)", published)
    if found is None:
        return _TOP[published.removeprefix("model.decoder.").removesuffix(".weight")] + ".weight"
    theirs = _BARE.get(found[3]) or _LAYER[found[3].removesuffix(".weight")] + ".weight"
    return f"blk.{found[2]}.{'enc_' if found[1] != 'decoder' else ''}{theirs}"


def metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the converter says of a published config.json; whole numbers, floats, texts, lists and booleans."""
    text = config["text_config"]
    kinds, per_layer = text["layer_types"], text.get("per_layer_config") or {}
    of_global = text.get("global_head_dim") or next(iter(per_layer.values()))["head_dim"]
    heads = [
        per_layer.get(str(layer), {}).get("num_key_value_heads")
        or (text.get("num_global_key_value_heads") if kind == "full_attention" else None)
        or text["num_key_value_heads"]
        for layer, kind in enumerate(kinds)
    ]
    rope = text["rope_parameters"]
    own = {
        "block_count": len(kinds),
        "context_length": text["max_position_embeddings"],
        "embedding_length": text["hidden_size"],
        "feed_forward_length": text["intermediate_size"],
        "attention.head_count": text["num_attention_heads"],
        "attention.head_count_kv": heads,
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in kinds],
        "attention.sliding_window": text["sliding_window"],
        "attention.causal": False,
        "attention.layer_norm_rms_epsilon": float(text["rms_norm_eps"]),
        "attention.shared_kv_layers": 0,
        "embedding_length_per_layer_input": 0,
        "expert_count": text["num_experts"],
        "expert_used_count": text["top_k_experts"],
        "expert_feed_forward_length": text["moe_intermediate_size"],
        "rope.freq_base": float(rope["full_attention"]["rope_theta"]),
        "rope.freq_base_swa": float(rope["sliding_attention"]["rope_theta"]),
        "final_logit_softcapping": 30.0,
        **{
            f"{key}{kind}": size
            for kind, size in (("", of_global), ("_swa", text["head_dim"]))
            for key in ("attention.key_length", "attention.value_length", "rope.dimension_count")
        },
    }
    return {
        "general.type": "model",
        **{f"diffusion-gemma.{key}": value for key, value in own.items()},
        "diffusion.canvas_length": config["canvas_length"],
        "tokenizer.ggml.eos_token_id": text["eos_token_id"],
        "tokenizer.ggml.padding_token_id": text["pad_token_id"],
    }


Edit = Callable[[dict[str, Any], dict[str, np.ndarray[Any, Any]]], None]


def gemma_gguf(folder: Path, file: Path, kind: Kind = Kind.F32, edit: Edit = lambda keys, tensors: None) -> Path:
    """A folder as a file. edit: changes its keys and tensors before they are written."""
    config = json.loads((folder / "config.json").read_text())
    keys = metadata(config)
    rope, head = config["text_config"]["rope_parameters"], keys["diffusion-gemma.attention.key_length"]
    turning = int(head * rope["full_attention"]["partial_rotary_factor"] / 2)
    held = load_file(folder / "model.safetensors")
    tensors = {gguf_name(name): one.astype(np.float32) for name, one in held.items() if "vision" not in name}
    tensors["rope_freqs.weight"] = np.array([1.0] * turning + [1e30] * (head // 2 - turning), np.float32)
    edit(keys, tensors)
    writer = gguf.GGUFWriter(file, "diffusion-gemma")
    for key, value in keys.items():
        add = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
            list: writer.add_array,
        }[type(value)]
        add(key, value)
    for name, values in tensors.items():
        plain = values.ndim == 1 or "ffn_gate_inp" in name or kind == Kind.F32
        own = Kind.F16 if not plain and values.shape[-1] % 32 else kind
        if plain or own == Kind.F16:
            writer.add_tensor(name, values if plain else values.astype(np.float16))
        else:
            writer.add_tensor(name, quants.quantize(values, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
