"""Our names of modules to the names of tensors in published files, by family."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dllm.models.config import ModelConfig
from dllm.models.transformer import Transformer

_LLADA = {
    "embed": "model.transformer.wte", "norm": "model.transformer.ln_f", "lm_head": "model.transformer.ff_out",
    "layer": "model.transformer.blocks.", "attn_norm": "attn_norm", "mlp_norm": "ff_norm",
    "attn.q": "q_proj", "attn.k": "k_proj", "attn.v": "v_proj", "attn.o": "attn_out",
    "mlp.gate": "ff_proj", "mlp.up": "up_proj", "mlp.down": "ff_out",
}  # fmt: skip
_QWEN = {
    "embed": "model.embed_tokens", "norm": "model.norm", "lm_head": "lm_head", "layer": "model.layers.",
    "attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
    "attn.q": "self_attn.q_proj", "attn.k": "self_attn.k_proj", "attn.v": "self_attn.v_proj",
    "attn.o": "self_attn.o_proj", "attn.q_norm": "self_attn.q_norm", "attn.k_norm": "self_attn.k_norm",
    "mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj", "mlp.down": "mlp.down_proj",
    "mlp.router": "mlp.gate", "mlp.experts": "mlp.experts", "mlp.shared": "mlp.shared_experts",
}  # fmt: skip
_FUSED = "attention.query_key_value"
_LLADA2 = {
    **_QWEN, "embed": "model.word_embeddings", "attn.q": _FUSED, "attn.k": _FUSED, "attn.v": _FUSED,
    "attn.o": "attention.dense", "attn.q_norm": "attention.query_layernorm",
    "attn.k_norm": "attention.key_layernorm", "mlp.expert_bias": "mlp.gate.expert_bias",
}  # fmt: skip
_ENCODER = {
    **_QWEN, "embed": "encoder.embed_tokens", "norm": "encoder.norm", "lm_head": "diffusion_head",
    "layer": "encoder.layers.",
}  # fmt: skip
_GEMMA = {
    **_QWEN, "embed": "model.decoder.embed_tokens", "norm": "model.decoder.norm", "layer": "model.decoder.layers.",
    "attn_out_norm": "post_attention_layernorm", "mlp_norm": "pre_feedforward_layernorm",
    "mlp_out_norm": "post_feedforward_layernorm_1", "experts_norm": "pre_feedforward_layernorm_2",
    "experts_out_norm": "post_feedforward_layernorm_2", "out_norm": "post_feedforward_layernorm",
    "attn.norm_q": "self_attn.q_norm", "attn.norm_k": "self_attn.k_norm",
    **{f"router.{part}": f"router.{part}" for part in ("proj", "scale", "per_expert_scale")},
    "experts.gate_up": "experts.gate_up_proj", "experts.down": "experts.down_proj",
    "denoising_scalar": "layer_scalar", "scalar": "layer_scalar",
    "layer.scalar": "model.encoder.language_model.layers.",
    "self_conditioning.norm": "model.decoder.self_conditioning.pre_norm",
    **{f"self_conditioning.mlp.{part}": f"model.decoder.self_conditioning.{part}_proj"
       for part in ("gate", "up", "down")},
}  # fmt: skip
# Of a model for several senses: what is left out where only text is read.
TOWER_PREFIXES = {"diffusion_gemma": ("model.encoder.vision_tower.", "model.encoder.embed_vision.")}
# Prefixes under which a file may hold the same tensors, since its class ties them.
TIED_PREFIXES = {"diffusion_gemma": ("model.decoder.", "model.encoder.language_model.")}
PUBLISHED_NAMES = {
    "llada": _LLADA, "dream": _QWEN, "llada_moe": _QWEN, "sdar": _QWEN, "llada2": _LLADA2, "wedlm": _QWEN,
    "nbdiff": _QWEN, "a2d": _QWEN, "illada": _QWEN, "dream_reasoner": _QWEN, "diffcoder": _QWEN, "sdar_moe": _QWEN,
    "rnd1": _QWEN, "fast_dllm_v2": _QWEN, "nemotron": _ENCODER, "efficient_dlm": _ENCODER,
    "diffusion_gemma": _GEMMA,
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """Where a published file holds one of our parameters: the tensor's name, and which part of it."""

    name: str  # of the published tensor
    rows: tuple[int, int] | None = None  # of it, from and to; None: all
    columns: tuple[int, int] | None = None  # along its last axis, from and to; None: all
    pieces: tuple[tuple[int, int], ...] = ()  # along the second of three axes, one after the other; empty: all

    def shape_of_row(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one row of the part, of a tensor ``stored`` in this shape."""
        rest = list(stored[1:])
        if self.pieces:
            rest[0] = sum(end - begin for begin, end in self.pieces)
        if self.columns is not None:
            rest[-1] = self.columns[1] - self.columns[0]
        return tuple(rest)


def parameter_source(parameter: str, config: ModelConfig) -> Source:
    """The published name of our ``parameter``, and its rows where one tensor holds several of ours (LLaDA2's qkv)."""
    names = PUBLISHED_NAMES[config.family]
    match = re.fullmatch(r"layers\.(\d+)\.(.+)", parameter)
    if match is None:
        module, _, leaf = parameter.rpartition(".")
        return Source(f"{names[module]}.{leaf}")
    place, inner = _layer_name(int(match[1]), config), match[2]
    if f"layer.{inner}" in names:  # the layer is elsewhere in the file, too
        place = names[f"layer.{inner}"] + match[1]
    if inner in names:  # a bare parameter: the router's expert_bias
        return Source(f"{place}.{names[inner]}")
    expert = re.fullmatch(r"mlp\.(experts\.\d+|shared)\.(gate|up|down)\.(\w+)", inner)
    if expert is not None:
        group = expert[1].replace("experts", names["mlp.experts"]).replace("shared", names["mlp.shared"])
        return Source(f"{place}.{group}.{expert[2]}_proj.{expert[3]}")
    module, _, leaf = inner.rpartition(".")
    return Source(f"{place}.{names[module]}.{leaf}", _fused_rows(module, names, config))


def _layer_name(index: int, config: ModelConfig) -> str:
    """The published name of a layer. Grouped layers have another prefix (LLaDA)."""
    prefix, group = PUBLISHED_NAMES[config.family]["layer"], int(config.published.get("block_group_size") or 1)
    if group == 1:
        return f"{prefix}{index}"
    return f"{prefix.replace('.blocks.', '.block_groups.')}{index // group}.{index % group}"


def _fused_rows(module: str, names: Mapping[str, str], config: ModelConfig) -> tuple[int, int] | None:
    if names[module] != _FUSED:
        return None
    query, key = config.heads * config.head_dim, config.kv_width
    return {"attn.q": (0, query), "attn.k": (query, query + key), "attn.v": (query + key, query + 2 * key)}[module]


def parameter_sources(model: Transformer) -> dict[str, Source]:
    """For every parameter of ours, none of them fused, its place in the published file."""
    return {name: parameter_source(name, model.config) for name, _ in model.named_parameters()}


def published_shapes(model: Transformer) -> dict[str, tuple[int, ...]]:
    """The shape of every published tensor that holds parameters of ours, none of them fused."""
    found: dict[str, tuple[int, ...]] = {}
    for ours, source in parameter_sources(model).items():
        rows, *rest = model.get_parameter(ours).shape
        found[source.name] = (rows + found.get(source.name, (0,))[0], *rest)
    return found
