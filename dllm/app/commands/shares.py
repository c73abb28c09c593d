"""What each rank of ``model.tp=N`` holds, and which GPUs have room for it: known from a model's description alone."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dllm.common.errors import UserError
from dllm.common.ranks import Ranks
from dllm.models.config import ModelConfig
from dllm.models.network.networks import network_of
from dllm.models.weights.cut import check_cut, share_of
from dllm.models.weights.footprint import Footprint, in_gib

WEIGHT_KINDS = ("bfloat16", "int8", "int4")
GPU_SIZES = (16, 24, 32, 40, 48, 80, 96, 141, 192)  # GB of GPUs that people have
BESIDE_WEIGHTS = 2e9  # bytes beside weights, keys and values: activations, scores of a block, what CUDA and NCCL keep
IN_FLIGHT = 16_384  # whose keys and values must have room, as many as a server has in flight


def share_lines(config: ModelConfig, tp: int, ep: bool) -> Iterator[str]:
    """A line for each kind of weights. Raises UserError for a model that ``tp`` ranks cannot share."""
    check_cut(config, tp, ep, None)
    with torch.device("meta"):
        last = network_of(share_of(config, Ranks(tp - 1, tp), ep))  # no rank holds more
    keys = 2 * 2 * sum(last.config.attention_widths(layer)[1] for layer in range(config.layers))
    for kind in WEIGHT_KINDS if config.stored_kind is None else (config.stored_kind,):
        try:
            check_cut(config, tp, ep, kind, config.stored_head)
        except UserError as error:
            yield f"model.tp={tp} {kind}: {error}"
            continue
        weights = Footprint.of_model(last, kind).weights
        room = _room(weights + keys * IN_FLIGHT + BESIDE_WEIGHTS, tp)
        size = f"{in_gib(weights)} GiB, and {in_gib(1024 * keys)} of keys and values of 1,024 tokens"
        yield f"model.tp={tp} {kind}: each rank holds {size}; {room}"


def _room(least: float, tp: int) -> str:
    """Whether the GPUs here have that many bytes each, or which ones would."""
    there = [torch.cuda.get_device_properties(place).total_memory for place in range(torch.cuda.device_count())]
    if len(there) >= tp:
        fits = all(size >= least for size in there[:tp])
        return f"{'fits' if fits else 'does not fit'} on the GPUs here, of {min(there[:tp]) / 1e9:.0f} GB"
    large = next((size for size in GPU_SIZES if size * 1e9 >= least), None)
    here = f"{len(there)} GPUs are here, so take" if there else "no GPU is here; it takes"
    return f"{here} {tp} of {large} GB or more" if large else f"{here} more ranks: no GPU holds that much"
