"""``model.quantize=auto``: of the kinds of weights and rows that fit the memory the one that is fastest on this CPU."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from pathlib import Path
from typing import NamedTuple

import psutil
import torch

from dllm.common.errors import UserError
from dllm.models.arithmetic import check_numbers, kinds_of
from dllm.models.config import ModelConfig
from dllm.models.forward_time import forward_seconds
from dllm.models.weights.footprint import NARROW_WITH_HEAD, Footprint, gib

AUTO_KIND = "auto"
ALIKE = 1.05  # of the fastest kind's time: a wider kind that is not slower than this is taken


class Kinds(NamedTuple):
    """How layers, embedding and head, and rows are held; None: in bfloat16."""

    quantize: str | None
    head: str | None = None
    activations: str | None = None

    def __str__(self) -> str:
        head = f", embedding and head in {self.head}" if self.head else ""
        return f"{self.quantize or 'bfloat16'}{head}{', rows in int8' if self.activations else ''}"


class Residence(NamedTuple):
    """What holds a model."""

    dtype: torch.dtype
    device: torch.device
    kernels: str = "auto"
    pack: bool = True  # oneDNN's layout may be used, which rows in eight bits need
    tp: int = 1  # ranks
    memory_gib: float | None = None  # what the model may take; None: what is free


def settled_kinds(config: ModelConfig, choice: Kinds, place: Residence, adapter: str | Path | None = None) -> Kinds:
    """As asked for, or as the files are; with ``auto`` those that are fastest here, of which head and rows may
    be given. adapter: to be merged. Raises UserError where nothing fits, and for what the files cannot become."""
    kinds = choice
    if choice.quantize == AUTO_KIND:
        kinds = _fastest(config, choice, place)
    elif place.memory_gib is not None:
        raise UserError(
            f"model.memory_gib={place.memory_gib:g} is for model.quantize=auto, and it is {choice.quantize or 'null'}. "
            "Drop it."
        )
    layers, head = kinds_of(config, kinds.quantize, kinds.head, place.dtype, adapter)
    return Kinds(layers, head, kinds.activations)


def _fastest(config: ModelConfig, choice: Kinds, place: Residence) -> Kinds:
    """Of the kinds that fit the memory the fastest."""
    _check(config, place)
    possible = [kinds for kinds in _all_kinds(config) if _takes(config, kinds, choice, place)]
    if not possible:
        check_numbers(config, place.dtype, place.device, place.kernels, None, choice.head, choice.activations)
        raise UserError("model.quantize=auto: nothing of what is asked for goes together. Set model.quantize=null.")
    footprints = {kinds: Footprint.of(config, kinds.quantize or "bfloat16", kinds.head).loading for kinds in possible}
    free = psutil.virtual_memory().available if place.memory_gib is None else place.memory_gib * 2**30
    fitting = [kinds for kinds in possible if footprints[kinds] <= free]
    if not fitting:
        raise UserError(_too_small(footprints, free, place.memory_gib))
    seconds = {kinds: _seconds(config, kinds) for kinds in fitting}
    least = min(seconds.values())
    return next(kinds for kinds in fitting if seconds[kinds] <= ALIKE * least)


def _check(config: ModelConfig, place: Residence) -> None:
    """Raises UserError where no kinds of this model, or on this device, are compared."""
    if place.device.type != "cpu":
        raise UserError(
            f"model.quantize=auto measures a CPU, and the model is on {place.device.type}. Set "
            "model.device=cpu, or model.quantize to null, int8 or int4."
        )
    if place.tp > 1:
        raise UserError(
            f"model.quantize=auto with model.tp={place.tp}: each rank would choose for itself. Set "
            "model.quantize to null, int8 or int4."
        )
    if place.dtype != torch.bfloat16:
        raise UserError("model.quantize=auto chooses among bfloat16 and narrower kinds. Set model.dtype=bfloat16.")
    if place.memory_gib is not None and not place.memory_gib > 0:
        raise UserError(f"model.memory_gib={place.memory_gib:g} must be above 0, or null for what is free.")


def _all_kinds(config: ModelConfig) -> Iterator[Kinds]:
    """From the widest to the narrowest."""
    file_kinds = (config.stored_kind, config.stored_head)
    yield from () if file_kinds[0] else (Kinds(None),)
    for kind, head in (file_kinds,) if file_kinds[0] else NARROW_WITH_HEAD:
        yield Kinds(kind, head)
        yield Kinds(kind, head, "int8")


def _takes(config: ModelConfig, kinds: Kinds, choice: Kinds, place: Residence) -> bool:
    """Whether the model can be held so here, and is asked for in no other way."""
    if choice.head not in (None, kinds.head) or choice.activations not in (None, kinds.activations):
        return False
    if kinds.activations and not place.pack:
        return False
    try:
        kinds_of(config, kinds.quantize, kinds.head, place.dtype, None)
        check_numbers(config, place.dtype, place.device, place.kernels, *kinds)
    except UserError:
        return False
    return not kinds.activations or forward_seconds(config, 1, kinds.quantize or "bfloat16", True) is not None


def _seconds(config: ModelConfig, kinds: Kinds) -> float:
    """Of a weight, over a block's rows and a canvas's alike."""
    times = forward_seconds(config, 1, kinds.quantize or "bfloat16", kinds.activations is not None)
    assert times is not None, "_takes has left out what this CPU cannot"
    _, block, canvas = times
    return sqrt(block * canvas)


def _too_small(footprints: dict[Kinds, int], free: float, budget: float | None) -> str:
    """The sentence for a memory that nothing fits."""
    wide = {kinds: count for kinds, count in footprints.items() if kinds.activations is None} or footprints
    least = min(wide, key=wide.__getitem__)
    counts = "; ".join(f"{kinds} {count:,}" for kinds, count in wide.items())
    there = f"{gib(free)} are free" if budget is None else f"model.memory_gib={budget:g}"
    more = "Take a machine with more" if budget is None else f"Set model.memory_gib={wide[least] / 2**30 + 0.01:.2f}"
    return (
        f"model.quantize=auto: {there}, and no kind fits. {least} takes least, {wide[least]:,} bytes while it is "
        f"loaded (bytes by kind: {counts}). {more}, or a smaller model."
    )
