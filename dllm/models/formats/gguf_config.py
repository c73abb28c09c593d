"""What the metadata of a GGUF file say, in the words of a published ``config.json``, and its tensors by their published
names.

As llama.cpp's converter writes them (``conversion/llada.py``, ``dream.py``, ``qwen.py`` and that of Llama): its rotary
embedding of LLaDA and Llama turns neighbours, so the rows of q and k are in another order there. DiffusionGemma is in
``gguf_gemma``. None writes LLaDA2, SDAR and the others yet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from dllm.common.errors import UserError
from dllm.models.config import ModelConfig
from dllm.models.formats.gguf_file import GgufFile, GgufTensor
from dllm.models.formats.gguf_gemma import GEMMA_ARCHITECTURE, gemma_notes, gemma_published, gemma_tensors
from dllm.models.formats.gguf_keys import FREQUENCIES, Metadata, refuse_scaled
from dllm.models.formats.gguf_packing import GgufPacking, check_kind
from dllm.models.keys import printed, quote
from dllm.models.weights.files import Contents, StoredTensor, broken, first_names
from dllm.models.weights.names import parameter_source

# Our names of parts by the names of tensors.
_TOP = {"token_embd": "embed", "output_norm": "norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "attn_norm",
    "ffn_norm": "mlp_norm",
    "attn_q": "attn.q",
    "attn_k": "attn.k",
    "attn_v": "attn.v",
    "attn_output": "attn.o",
    "attn_q_norm": "attn.q_norm",
    "attn_k_norm": "attn.k_norm",
    "ffn_gate": "mlp.gate",
    "ffn_up": "mlp.up",
    "ffn_down": "mlp.down",
    "ffn_gate_inp": "mlp.router",
}
_EXPERTS = {"ffn_gate_exps": "gate", "ffn_up_exps": "up", "ffn_down_exps": "down"}
_TURNED = ("attn.q", "attn.k")  # of the families in which neighbours turn
_SPECIAL = {"mask": "mask", "eos": "eos", "pad": "padding", "bos": "bos"}  # ids: config.json's word, and GGUF's


def _qwen(metadata: Metadata, architecture: str) -> dict[str, Any]:
    """What all but LLaDA have."""
    return {
        "architectures": [architecture],
        "hidden_size": metadata.need("embedding_length"),
        "num_hidden_layers": metadata.need("block_count"),
        "num_attention_heads": metadata.need("attention.head_count"),
        "num_key_value_heads": metadata.get("attention.head_count_kv") or metadata.need("attention.head_count"),
        "max_position_embeddings": metadata.need("context_length"),
        "rope_theta": metadata.need("rope.freq_base"),
        "rms_norm_eps": metadata.need("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": not metadata.has("output.weight"),
        **({"head_dim": metadata.get("attention.key_length")} if metadata.get("attention.key_length") else {}),
    }


def _llada(metadata: Metadata) -> dict[str, Any]:
    return {
        "architectures": ["LLaDAModelLM"],
        "d_model": metadata.need("embedding_length"),
        "n_layers": metadata.need("block_count"),
        "n_heads": metadata.need("attention.head_count"),
        "n_kv_heads": metadata.get("attention.head_count_kv"),
        "mlp_hidden_size": metadata.need("feed_forward_length"),
        "max_sequence_length": metadata.need("context_length"),
        "rope_theta": metadata.need("rope.freq_base"),
        "rms_norm_eps": metadata.need("attention.layer_norm_rms_epsilon"),
        "weight_tying": not metadata.has("output.weight"),
        "include_bias": metadata.has("blk.0.attn_output.bias"),
        "include_qkv_bias": metadata.has("blk.0.attn_q.bias"),
        "block_type": "llama",
        "activation_type": "silu",
        "layer_norm_type": "rms",
        "rope": True,
    }


def _dense(metadata: Metadata, architecture: str) -> dict[str, Any]:
    return {**_qwen(metadata, architecture), "intermediate_size": metadata.need("feed_forward_length")}


def _llada_moe(metadata: Metadata) -> dict[str, Any]:
    layers = range(min(metadata.need("block_count"), len(metadata.file.tensors)))
    sparse = [int(metadata.has(f"blk.{layer}.ffn_gate_inp.weight")) for layer in layers]
    return {
        **_qwen(metadata, "LLaDAMoEModelLM"),
        "num_experts": metadata.need("expert_count"),
        "num_experts_per_tok": metadata.need("expert_used_count"),
        "moe_layer_freq": sparse,
        "partial_rotary_factor": 1,
        "expert_intermediate_size": metadata.need("expert_feed_forward_length"),
        "dense_intermediate_size": metadata.get("feed_forward_length"),
        "qk_layernorm": metadata.has("blk.0.attn_q_norm.weight"),
    }


def _rnd1(metadata: Metadata) -> dict[str, Any]:
    return {
        **_qwen(metadata, "RND1LM"),
        "num_experts": metadata.need("expert_count"),
        "norm_topk_prob": True,
        "num_experts_per_tok": metadata.need("expert_used_count"),
        "intermediate_size": metadata.need("feed_forward_length"),
        "moe_intermediate_size": metadata.need("expert_feed_forward_length"),
    }


def _llama(metadata: Metadata) -> dict[str, Any]:
    return {
        **_dense(metadata, "LlamaForCausalLM"),
        "attention_bias": metadata.has("blk.0.attn_q.bias"),
        "mlp_bias": metadata.has("blk.0.ffn_gate.bias"),
    }


def _qwen3(metadata: Metadata) -> dict[str, Any]:
    return {**_dense(metadata, "Qwen3ForCausalLM"), "attention_bias": metadata.has("blk.0.attn_q.bias")}


GGUF_ARCHITECTURES: dict[str, Callable[[Metadata], dict[str, Any]]] = {
    "llada": _llada,
    "llada-moe": _llada_moe,
    "dream": partial(_dense, architecture="DreamModel"),
    "rnd1": _rnd1,
    GEMMA_ARCHITECTURE: gemma_published,
    "llama": _llama,
    "qwen2": partial(_dense, architecture="Qwen2ForCausalLM"),
    "qwen3": _qwen3,
}


def gguf_published(file: GgufFile) -> tuple[dict[str, Any], Metadata]:
    """A config.json of the file, and what it was made from. Raises UserError for another architecture, and where the
    metadata are not whole."""
    where, architecture = file.files[0], file.metadata.get("general.architecture")
    kind = file.metadata.get("general.type", "model")
    if not isinstance(architecture, str) or architecture not in GGUF_ARCHITECTURES or kind != "model":
        also = "" if kind == "model" else f", general.type={quote(kind)}"
        raise UserError(
            f"{where} has general.architecture={quote(architecture)}{also}; models that are read from GGUF are "
            f"{', '.join(GGUF_ARCHITECTURES)}. Take one of these, or a folder of safetensors."
        )
    metadata = Metadata(file, architecture)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise broken(f"{where} has no tensor token_embd.weight")
    published = GGUF_ARCHITECTURES[architecture](metadata)
    if architecture == GEMMA_ARCHITECTURE:
        return published, metadata
    sizes = ("vocab_size", "embedding_size") if "d_model" in published else ("vocab_size",)
    published |= dict.fromkeys(sizes, embedding.shape[0])
    ids = {key: file.metadata.get(f"tokenizer.ggml.{word}_token_id") for key, word in _SPECIAL.items()}
    published |= {f"{key}_token_id": value for key, value in ids.items() if value is not None}
    _refuse_rotary(metadata, published)
    return published, metadata


def _refuse_rotary(metadata: Metadata, published: Mapping[str, Any]) -> None:
    """Raise UserError for rotary embeddings that are scaled, or turn a part of a head, and for values of another width
    than keys."""
    where = metadata.file.files[0]
    refuse_scaled(metadata)
    heads = published.get("n_heads") or published.get("num_attention_heads")
    width = published.get("d_model") or published.get("hidden_size")
    head = published.get("head_dim") or (
        width // heads if isinstance(width, int) and isinstance(heads, int) and heads else 0
    )
    turned = metadata.get("rope.dimension_count")
    if turned is not None and turned != head:
        raise UserError(
            f"{where} has {metadata.architecture}.rope.dimension_count={quote(turned)}, and heads of {head}: a "
            "part of a head turns, which is not supported. Take the checkpoint's safetensors."
        )
    for key in ("attention.key_length", "attention.value_length"):
        if (length := metadata.get(key)) not in (None, head):
            raise UserError(
                f"{where} has {metadata.architecture}.{key}={quote(length)}, and heads of {head}, which is not "
                "supported. Take the checkpoint's safetensors."
            )


def gguf_config(file: GgufFile) -> ModelConfig:
    """The description of a file. Raises UserError as ``gguf_published`` and ``ModelConfig.from_published``."""
    published, metadata = gguf_published(file)
    try:
        config = ModelConfig.from_published(published)
    except UserError as error:
        why = str(error).removesuffix(" Copy the checkpoint's own config.json again.")
        raise UserError(
            f"{file.files[0]}: what its metadata say would be refused as a config.json: {why} Take another GGUF file, "
            "or the checkpoint's safetensors."
        ) from error
    notes = () if config.gemma is None else gemma_notes(metadata)
    if names := ", ".join(map(printed, metadata.unread())):
        notes = (f"{file.files[0].name} has keys that are not known here, and so are not read: {names}.", *notes)
    return replace(config, notes=notes)


def gguf_contents(file: GgufFile, config: ModelConfig) -> Contents:
    """The tensors of a file under their published names. Raises UserError for tensors and types that are not known."""
    tensors: dict[str, StoredTensor] = {}
    strange = []
    for name, tensor in file.tensors.items():
        if name == FREQUENCIES:  # what it says is known, or refused
            continue
        check_kind(tensor.kind)
        parts = _published_tensors(tensor, config) if config.gemma is None else gemma_tensors(tensor)
        tensors |= {part.name: part for part in parts}
        strange += [] if parts else [name]
    if strange:
        raise UserError(
            f"{file.files[0]} has {first_names(strange)}, which is not part of {config.architecture} in "
            "GGUF. Take a file that llama.cpp's converter wrote."
        )
    return Contents(tensors)


def _published_tensors(tensor: GgufTensor, config: ModelConfig) -> list[StoredTensor]:
    """A tensor as published ones: one, or one of each expert; none: its name is unknown."""
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", tensor.name)
    if layer is None:
        stem, _, leaf = tensor.name.rpartition(".")
        return [_as(tensor, f"{_TOP[stem]}.{leaf}", config)] if stem in _TOP else []
    place, part, leaf = f"layers.{int(layer[1])}", layer[2], layer[3]
    if part in _EXPERTS and config.moe is not None and len(tensor.shape) == 3:
        return [
            _as(tensor, f"{place}.mlp.experts.{number}.{_EXPERTS[part]}.{leaf}", config, number)
            for number in range(tensor.shape[0])
        ]
    if part not in _LAYER:
        return []
    heads = config.heads if part == "attn_q" else config.kv_heads
    turned = config.family in ("llada", "llama") and _LAYER[part] in _TURNED
    return [_as(tensor, f"{place}.{_LAYER[part]}.{leaf}", config, heads=heads if turned else 0)]


def _as(tensor: GgufTensor, ours: str, config: ModelConfig, expert: int | None = None, heads: int = 0) -> StoredTensor:
    """As the published tensor of our parameter."""
    name = parameter_source(ours, config).name
    shape = tensor.shape if expert is None else tensor.shape[1:]
    packing = GgufPacking(tensor, shape[0], 0 if expert is None else expert * shape[0], heads)
    return StoredTensor(name, tensor.file, shape, tensor.kind, packing)
