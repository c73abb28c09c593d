"""DiffusionGemma in GGUF: what the metadata say, in the words of its config.json, and its tensors by published names.

As llama.cpp writes and reads it (its conversion of Gemma 4, its model diffusion-gemma). llama.cpp runs a file without
the self-conditioning, and says nothing; here such a file is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from dllm.common.errors import UserError
from dllm.models.formats.gguf_file import GgufFile, GgufTensor
from dllm.models.formats.gguf_keys import FREQUENCIES, Metadata, frequencies, refuse_scaled
from dllm.models.formats.gguf_packing import GgufPacking
from dllm.models.gemma_config import DIFFUSION_GEMMA, GEMMA, GLOBAL, SLIDING
from dllm.models.keys import quote
from dllm.models.weights.files import StoredTensor, broken, first_names

GEMMA_ARCHITECTURE = "diffusion-gemma"
CANVAS = "diffusion.canvas_length"
_STILL = np.float32(1e30)  # what divides a frequency that does not turn
_SAFETENSORS = "Take the checkpoint's safetensors"
# The sampler's settings that a file may name, ours, and the values that both have without one.
_SAMPLER: Mapping[str, tuple[str, float]] = {
    "eb_max_steps": ("steps", 48),
    "eb_t_min": ("t_min", 0.4),
    "eb_t_max": ("t_max", 0.8),
    "eb_entropy_bound": ("entropy_bound", 0.1),
    "eb_stability_threshold": ("stability", 1),
    "eb_confidence_threshold": ("stop_entropy", 0.005),
}
_CONDITIONING = {"pre_norm": "pre_norm", "norm": "pre_norm", "gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
_TOP = {
    "token_embd": "model.decoder.embed_tokens",
    "output_norm": "model.decoder.norm",
    **{f"self_cond_{theirs}": f"model.decoder.self_conditioning.{ours}" for theirs, ours in _CONDITIONING.items()},
}
_LEAF_NAMES = {  # parts of a layer whose published names end with the leaf, too
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2", "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "post_ffw_norm": "post_feedforward_layernorm", "ffn_gate_inp": "router.proj",
    "ffn_gate_exps": "experts.gate_proj", "ffn_up_exps": "experts.up_proj",
}  # fmt: skip
_LAYER = {f"{theirs}.weight": f"{ours}.weight" for theirs, ours in _LEAF_NAMES.items()} | {
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "ffn_gate_up_exps.weight": "experts.gate_up_proj",
    "ffn_down_exps.weight": "experts.down_proj",
    "layer_output_scale.weight": "layer_scalar",
}
_PROMPT_SCALE = "enc_layer_output_scale.weight"  # of rows of decided text


def gemma_published(metadata: Metadata) -> dict[str, Any]:
    """A config.json of the file. Raises UserError for keys and tensors that are missing or have values that its network
    does not know."""
    where, layers = metadata.file.files[0], metadata.need("block_count")
    if not isinstance(layers, int) or not 1 <= layers <= len(metadata.file.tensors):
        raise broken(f"{where} has {GEMMA_ARCHITECTURE}.block_count={quote(layers)}")
    _refuse_other(metadata)
    _refuse_unconditioned(metadata.file)
    heads, slides = (
        metadata.of_layers(f"attention.{key}", layers) for key in ("head_count_kv", "sliding_window_pattern")
    )
    size, sliding_size = _head(metadata, ""), _head(metadata, "_swa")
    kinds = [SLIDING if is_sliding else GLOBAL for is_sliding in slides]
    sliding = [count for count, kind in zip(heads, kinds, strict=True) if kind == SLIDING]
    canvas = metadata.plain(CANVAS)
    if canvas is None:
        raise broken(f"{where} lacks {CANVAS}")
    text = {
        "hidden_size": metadata.need("embedding_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": metadata.need("attention.head_count"),
        "num_key_value_heads": (sliding or heads)[0],
        "head_dim": sliding_size,
        "layer_types": kinds,
        "sliding_window": metadata.need("attention.sliding_window"),
        "per_layer_config": {
            str(layer): {"head_dim": sliding_size if kind == SLIDING else size, "num_key_value_heads": count}
            for layer, (kind, count) in enumerate(zip(kinds, heads, strict=True))
        },
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": metadata.need("rope.freq_base_swa")},
            GLOBAL: {
                "rope_type": "proportional",
                "rope_theta": metadata.need("rope.freq_base"),
                "partial_rotary_factor": _turning(metadata.file, size),
            },
        },
        "intermediate_size": metadata.need("feed_forward_length"),
        "rms_norm_eps": metadata.need("attention.layer_norm_rms_epsilon"),
        "moe_intermediate_size": metadata.need("expert_feed_forward_length"),
        "num_experts": metadata.need("expert_count"),
        "top_k_experts": metadata.need("expert_used_count"),
        "max_position_embeddings": metadata.need("context_length"),
        "final_logit_softcapping": metadata.need("final_logit_softcapping"),
        "hidden_activation": "gelu_pytorch_tanh",
        "vocab_size": metadata.file.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": True,
        **{
            f"{ours}_token_id": value
            for ours, theirs in (("eos", "eos"), ("pad", "padding"))
            if (value := metadata.file.metadata.get(f"tokenizer.ggml.{theirs}_token_id")) is not None
        },
    }
    return {
        "architectures": [DIFFUSION_GEMMA],
        "model_type": GEMMA.model_type,
        "canvas_length": canvas,
        "tie_word_embeddings": True,
        "text_config": text,
    }


def gemma_notes(metadata: Metadata) -> tuple[str, ...]:
    """A sentence about settings of the sampler that the file names and that are not its usual ones."""
    values = {ours: metadata.plain(f"diffusion.{theirs}", usual) for theirs, (ours, usual) in _SAMPLER.items()}
    usual = dict(_SAMPLER.values())
    other = [f"sampler.{key}={value:g}" for key, value in values.items() if abs(value - usual[key]) > 1e-6]
    name = metadata.file.files[0].name
    return (f"{name} was published with {' '.join(other)}: set it beside sampler=renoise.",) if other else ()


def gemma_tensors(tensor: GgufTensor) -> list[StoredTensor]:
    """A tensor under its published name; none: its name is unknown."""
    if (name := _published(tensor.name)) is None:
        return []
    packing = GgufPacking(tensor, tensor.shape[0], stacked=len(tensor.shape) == 3)
    return [StoredTensor(name, tensor.file, tensor.shape, tensor.kind, packing)]


def _published(name: str) -> str | None:
    match = re.fullmatch(r"blk\.(\d+)\.(\w+\.(?:weight|scale))", name)
    if match is None:
        stem, _, leaf = name.rpartition(".")
        return f"{_TOP[stem]}.weight" if stem in _TOP and leaf == "weight" else None
    if match[2] == _PROMPT_SCALE:
        return f"model.encoder.language_model.layers.{int(match[1])}.layer_scalar"
    return f"model.decoder.layers.{int(match[1])}.{_LAYER[match[2]]}" if match[2] in _LAYER else None


def _head(metadata: Metadata, kind: str) -> int:
    """The size of a head of one kind of layers: keys, values and what turns have it."""
    size = metadata.need(f"attention.key_length{kind}")
    for key in (f"attention.value_length{kind}", f"rope.dimension_count{kind}"):
        other = metadata.need(key) if "value" in key else metadata.get(key, size)
        if other != size:
            raise UserError(
                f"{metadata.file.files[0]} has {metadata.architecture}.{key}={quote(other)}, and keys of {quote(size)}"
                f", which is not supported. {_SAFETENSORS}."
            )
    return int(size)


def _turning(file: GgufFile, head: int) -> float:
    """The share of a head that turns in global layers: the first frequencies are divided by 1, the rest by 1e30."""
    tensor = file.tensors.get(FREQUENCIES)
    if tensor is None:
        raise broken(f"{file.files[0]} has no tensor {FREQUENCIES}")
    factors, half = frequencies(tensor), head // 2
    count = 0 if factors is None else int((factors == 1).sum())
    is_plain = factors is not None and len(factors) == half and count and (factors[:count] == 1).all()
    if factors is None or not is_plain or (factors[count:] != _STILL).any():
        raise UserError(
            f"{file.files[0]} has scaled rotary embeddings ({FREQUENCIES}), which are not supported. {_SAFETENSORS}."
        )
    share = count / half
    return share if int(share * head / 2) == count else float(np.nextafter(share, 1))


def _refuse_other(metadata: Metadata) -> None:
    """Raise UserError for values that no DiffusionGemma has."""
    refuse_scaled(metadata, in_part=True)
    usual = {"attention.causal": False, "attention.shared_kv_layers": 0, "embedding_length_per_layer_input": 0}
    for key, value in usual.items():
        if (other := metadata.get(key, value)) != value:
            setting = f"{metadata.file.files[0]} has {metadata.architecture}.{key}={quote(other)}"
            raise UserError(f"{setting}, and only {quote(value)} is supported. {_SAFETENSORS}.")
    if "output.weight" in metadata.file.tensors:
        raise UserError(
            f"{metadata.file.files[0]} has a head of its own, output.weight, and DiffusionGemma's is the "
            f"embedding. {_SAFETENSORS}."
        )


def _refuse_unconditioned(file: GgufFile) -> None:
    """Raise UserError for a file without the tensors of the self-conditioning, and for one with some of them."""
    names = {ours for theirs, ours in _CONDITIONING.items() if f"self_cond_{theirs}.weight" in file.tensors}
    if not names:
        raise UserError(
            f"{file.files[0]} has no self_cond_* tensors: its converter left out the self-conditioning, without which "
            "DiffusionGemma answers otherwise than published. Take a file that has them (unsloth's of June 2026 and "
            "later do), or the safetensors."
        )
    if missing := [
        f"self_cond_{theirs}.weight" for theirs, ours in _CONDITIONING.items() if ours not in names and theirs != "norm"
    ]:
        raise broken(f"{file.files[0]} lacks {first_names(missing)}, a part of its self-conditioning")
