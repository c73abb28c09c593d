"""What a rank holds of a model: its share of every matrix, read from the files without the rest.

Products that widen (q, k, v, gate, up) are cut by rows, products that narrow (o, down) by columns, so that a layer
exchanges two sums. Of few key heads each is held by several ranks. Experts are cut within each (tp), or shared out
whole (ep). The head is cut by ids. Everything else is on every rank: norms, router, embedding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import nn

from dllm.common.errors import Refusal, Set
from dllm.common.ranks import Ranks
from dllm.kernels.narrow_product import GROUP
from dllm.models.config import ModelConfig
from dllm.models.network.masked_lm_class import MASKED_LM_FAMILY
from dllm.models.network.networks import network_of
from dllm.models.network.transformer import Transformer
from dllm.models.weights.names import Source, parameter_source

# How a parameter is cut, by the end of its name: along its rows (outputs), its columns (inputs), or each of two pieces
# that lie one after the other. What is not here is whole.
BY_ROWS, BY_COLUMNS, BY_PIECES = "rows", "columns", "pieces"
CUTS = {
    **dict.fromkeys(("attn.q", "attn.k", "attn.v", "gate", "up", "lm_head"), BY_ROWS),
    **dict.fromkeys(("attn.o", "down"), BY_COLUMNS),
    "experts.gate_up": BY_PIECES,  # [E, gate over up, D]
}


def share_of(config: ModelConfig, ranks: Ranks, ep: bool = False) -> ModelConfig:
    """The config of what a rank holds: its heads, widths and experts. ep: experts whole."""
    size, moe, gemma = ranks.size, config.moe, config.gemma
    if size == 1:
        return config
    if moe is not None:
        moe = replace(moe, shared_width=moe.shared_width // size)
        moe = replace(moe, local_experts=ranks.share(moe.experts)) if ep else replace(moe, width=moe.width // size)
    if gemma is not None:
        kinds = {kind: replace(kind, kv_heads=max(1, kind.kv_heads // size)) for kind in gemma.layers}
        gemma = replace(gemma, layers=tuple(kinds[kind] for kind in gemma.layers))
    return replace(
        config,
        heads=config.heads // size,
        kv_heads=max(1, config.kv_heads // size),
        mlp_width=config.mlp_width // size,
        moe=moe,
        gemma=gemma,
        ranks=ranks,
    )


def check_cut(config: ModelConfig, size: int, ep: bool, quantize: str | None, head: str | None = None) -> None:
    """Raise UserError for a model that ``size`` ranks cannot share."""
    name, alone = f"{{model.tp={size}}}", Set("model.tp", 1)
    if size < 1:
        raise Refusal(f"{name} must be 1 or more: it counts processes.")
    if size == 1:
        return
    if config.family == MASKED_LM_FAMILY:
        raise Refusal(f"{name}: a {config.architecture} is run through its own class, which is not cut.", [], [alone])
    if quantize == "float8":
        ways = [Set("model.quantize", "int8"), Set("model.quantize", None)]
        raise Refusal(f"{name}: float8 scales each row over its whole width, which no rank has.", (), ways)
    if head is not None:
        raise Refusal(
            f"{name}: {{model.quantize_head}} narrows embedding and head together, and ranks share the head alone.",
            [head],
            [Set("model.quantize_head", None)],
        )
    if ep and config.moe is None:
        raise Refusal(f"{{model.ep=true}}: {config.architecture} has no routed experts.", [], (Set("model.ep", False),))
    for what, count, multiple in _sizes(config, ep, quantize):
        if count % (size * multiple):
            whole = f"{size} times {multiple}" if multiple > 1 else str(size)
            fits = [
                n for n in range(size - 1, 0, -1) if not any(c % (n * m) for _, c, m in _sizes(config, ep, quantize))
            ]
            nearest = Set("model.tp", fits[0] if fits else 1)
            raise Refusal(
                f"{name} must divide the model's {what}, and {count} is not a multiple of {whole}.", [], [nearest]
            )
    for heads in {kind.kv_heads for kind in config.gemma.layers} if config.gemma else {config.kv_heads}:
        if heads % size and size % heads:
            raise Refusal(f"{name} must divide the model's {heads} key heads or be a multiple of them.", [], [alone])


def refuse_object(size: int) -> None:
    """Raise UserError for a model object where a folder is needed."""
    if size > 1:
        raise Refusal(
            "{model.tp}: a model object has its weights already, and ranks read a share each from files. Give its "
            "folder, or set {model.tp=1}.",
            [size],
        )


def local_device(device: str, size: int) -> str:
    """The device of this rank: of ``cuda`` the GPU of its number. Raises UserError where ranks are more than GPUs, and
    for ``auto``, which spreads layers."""
    if size == 1:
        return device
    if device == "auto":
        raise Refusal(
            "{model.tp} with {model.device=auto}: one cuts layers, the other spreads them over GPUs.",
            [size],
            (Set("model.device", "cuda"),),
        )
    if device != "cuda":
        return device
    count = torch.cuda.device_count()
    if size > count:
        raise Refusal(
            f"{{model.tp}} needs {size} GPUs, and torch finds {count} here.", [size], (Set("model.tp", max(1, count)),)
        )
    return f"cuda:{torch.distributed.get_rank() % count}" if torch.distributed.is_initialized() else device


def _sizes(config: ModelConfig, ep: bool, quantize: str | None) -> Iterator[tuple[str, int, int]]:
    """What is divided among ranks, its number, and what each share must be a multiple of."""
    group = GROUP if quantize == "int4" else 1
    yield "attention heads", config.heads, 1
    if group > 1:
        yield "attention width", config.heads * config.head_dim, group
    moe = config.moe
    if moe is None or len(moe.sparse_layers) < config.layers or config.gemma is not None:
        yield "MLP width", config.mlp_width, group
    if moe is not None:
        yield ("experts", moe.experts, 1) if ep else ("expert width", moe.width, group)
        if moe.shared_width:
            yield "width of the shared expert", moe.shared_width, group


class RankShare(NamedTuple):
    """How a rank's network is read from a whole model's files."""

    model: Transformer  # the rank's network, on the meta device
    sources: dict[str, Source]  # of each of its parameters, its part of the file


def rank_share(whole: Transformer, config: ModelConfig) -> RankShare:
    """The rank's network of the ``whole`` one, both on the meta device. config: of ``share_of``."""
    model = local_network(config)
    sources = dict[str, Source]()
    for name, parameter in model.named_parameters():
        if config.tied and name == "lm_head.weight":
            continue  # rows of the embedding, which ``tie`` gives it
        there = in_whole(name, config)
        source = parameter_source(there, whole.config)
        sources[name] = local_source(name, source, whole.get_parameter(there).shape, parameter.shape, config)
    return RankShare(model, sources)


def local_network(config: ModelConfig) -> Transformer:
    """A rank's network on the meta device. config: of ``share_of``."""
    with torch.device("meta"):
        model = network_of(config)
    if config.ranks.rank:
        for name, part in model.named_modules():
            if name.endswith((".o", ".down")) and isinstance(part, nn.Linear) and part.bias is not None:
                part.register_parameter("bias", None)  # the sum over ranks has it once
    return model


def in_whole(name: str, config: ModelConfig) -> str:
    """What a parameter of a rank is called in the whole model: experts are numbered there."""
    if config.moe is None or config.moe.local_experts is None:
        return name
    first = config.moe.local_experts[0]
    return re.sub(r"(experts\.)(\d+)", lambda match: f"{match[1]}{int(match[2]) + first}", name)


def local_source(name: str, source: Source, whole: Sequence[int], shape: Sequence[int], config: ModelConfig) -> Source:
    """The rank's part, of shape ``shape``, of a parameter of shape ``whole``."""
    if tuple(whole) == tuple(shape):
        return source
    ranks, stem = config.ranks, name.removesuffix(".weight").removesuffix(".bias")
    if stem == "lm_head":
        return replace(source, rows=ranks.share(whole[0]))
    if whole[0] != shape[0] and len(whole) == 3:
        return replace(source, rows=ranks.share(whole[0]))
    how = next(kind for end, kind in CUTS.items() if stem == end or stem.endswith(f".{end}"))
    if how == BY_COLUMNS:
        return replace(source, columns=local_part(whole[-1], shape[-1], ranks))
    if how == BY_PIECES:
        begin, end = local_part(whole[1] // 2, shape[1] // 2, ranks)
        return replace(source, pieces=((begin, end), (whole[1] // 2 + begin, whole[1] // 2 + end)))
    before = source.rows[0] if source.rows else 0
    begin, end = local_part(whole[0], shape[0], ranks)
    return replace(source, rows=(before + begin, before + end))


def local_part(whole: int, part: int, ranks: Ranks) -> tuple[int, int]:
    """The range of ``part`` entries of ``whole`` that a rank holds. There may be fewer shares than ranks (key heads):
    neighbours hold the same."""
    begin = ranks.rank * (whole // part) // ranks.size * part
    return begin, begin + part
