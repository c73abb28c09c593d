"""Our names of modules to the names of tensors in published files, by family."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dllm.models.config import ModelConfig
from dllm.models.network.transformer import Transformer


@dataclass(frozen=True)
class Source:
    """Where a published file holds one of our parameters: the tensor's name, and which part of it."""

    name: str  # of the published tensor
    rows: tuple[int, int] | None = None  # of it, from and to; None: all
    columns: tuple[int, int] | None = None  # along its last axis, from and to; None: all
    pieces: tuple[tuple[int, int], ...] = ()  # along the second of three axes, one after the other; empty: all

    def shape_of_row(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one row of the part, of a tensor of this shape."""
        rest = list(shape[1:])
        if self.pieces:
            rest[0] = sum(end - begin for begin, end in self.pieces)
        if self.columns is not None:
            rest[-1] = self.columns[1] - self.columns[0]
        return tuple(rest)


def parameter_source(parameter: str, config: ModelConfig) -> Source:
    """The published name of our ``parameter``, and its rows where one tensor holds several of ours (LLaDA2's qkv)."""
    names = config.layout.names
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
    prefix, group = config.layout.names["layer"], int(config.published.get("block_group_size") or 1)
    if group == 1:
        return f"{prefix}{index}"
    return f"{prefix.replace('.blocks.', '.block_groups.')}{index // group}.{index % group}"


def _fused_rows(module: str, names: Mapping[str, str], config: ModelConfig) -> tuple[int, int] | None:
    if module not in ("attn.q", "attn.k", "attn.v") or names["attn.q"] != names["attn.k"]:
        return None
    query, key = config.heads * config.head_dim, config.kv_width
    return {"attn.q": (0, query), "attn.k": (query, query + key), "attn.v": (query + key, query + 2 * key)}[module]


def parameter_sources(model: Transformer) -> dict[str, Source]:
    """For every parameter of ours, none of them fused, its place in the published file."""
    return {name: parameter_source(name, model.config) for name, _ in model.named_parameters()}


def published_shapes(model: Transformer) -> dict[str, tuple[int, ...]]:
    """The shape of every published tensor that holds parameters of ours, none of them fused."""
    shapes: dict[str, tuple[int, ...]] = {}
    for ours, source in parameter_sources(model).items():
        rows, *rest = model.get_parameter(ours).shape
        shapes[source.name] = (rows + shapes.get(source.name, (0,))[0], *rest)
    return shapes
