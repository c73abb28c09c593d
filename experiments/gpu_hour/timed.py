"""The cells of ``steps``: one decode, timed turn by turn, beside the least time and the memory that it takes."""

from __future__ import annotations

import statistics
import sys
from typing import Any

import torch

from dllm.compose.fitted import Parts
from dllm.errors import UserError
from dllm.kernels.dispatch import use_triton
from dllm.models.attention import has_varlen
from dllm.models.quantize import check_quantize, check_runtime, quantize_weights
from dllm.models.transformer import Transformer
from dllm.record.cost import CostModel, Machine
from dllm.runtime.runtime import Runtime
from dllm.samplers.base import Sampler
from experiments.bench.step import KEEP, named, parts_for, random_model, time_turns
from experiments.gpu_hour.cells import CONFIGS, Cell
from experiments.gpu_hour.follow import Follow, useful_share
from experiments.gpu_hour.work import tidy

PLAIN = ("bfloat16", "float32")


class Models:
    """Models with seeded random weights on a device. One is kept: cells of the same model follow each other."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.kept: tuple[str, str, Transformer] | None = None

    def __call__(self, name: str, weights: str) -> Transformer:
        if self.kept is None or self.kept[:2] != (name, weights):
            self.kept = None  # the old one goes before the new one comes, and what was compiled for it
            if "torch._dynamo" in sys.modules:
                torch.compiler.reset()
            tidy()
            self.kept = name, weights, self._made(name, weights)
        return self.kept[2]

    def _made(self, name: str, weights: str) -> Transformer:
        """Raises UserError for weights that the model or the device does not take."""
        dtype, triton = torch.float32 if weights == "float32" else torch.bfloat16, use_triton("auto", self.device)
        if weights not in PLAIN:
            check_quantize(weights, CONFIGS[name], dtype, self.device, triton)
        model = random_model(CONFIGS[name], self.device, dtype)
        model.use_kernels(triton, has_varlen(self.device, dtype))
        if weights not in PLAIN:
            quantize_weights(model, weights)
        return model


def rule_of(cell: Cell) -> Sampler:
    if cell.rule == "recorded":
        return Follow(cell.block)
    if cell.rule == "adaptive":
        return named("sampler", "confidence")
    return parts_for(cell.cache, cell.load)[0]


def check(cell: Cell, device: torch.device) -> Runtime:
    """The cell's runtime. Raises UserError where its parts, weights or device cannot run under it."""
    runtime = Runtime(cell.runtime, 0 if cell.runtime == "eager" else cell.lag)
    if cell.weights not in PLAIN:
        check_runtime(cell.weights, cell.runtime, device)
    sampler, blocks = rule_of(cell), parts_for(cell.cache, cell.load)[1]
    runtime.check(Parts(sampler, blocks, named("cache", cell.cache), KEEP), CONFIGS[cell.model], device)
    return runtime


def accepted(cell: Cell, device: torch.device) -> bool:
    """Whether a cell will run; a refused one takes no time."""
    try:
        check(cell, device)
    except UserError:
        return False
    return True


def time_cell(cell: Cell, models: Models, machine: Machine, peak: float | None) -> dict[str, Any]:
    """The figures of a cell. peak: bytes/s of the card's data sheet."""
    device = models.device
    runtime, rule = check(cell, device), rule_of(cell)
    model = models(cell.model, cell.weights)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    timing = time_turns(model, cell.cache, cell.load, cell.turns, runtime, rule)
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    account = CostModel(model.config, model.dtype.itemsize)
    floors, total = timing.floors(account, machine), sum(timing.times)
    moved = account.weights() + statistics.median(timing.moved)
    tokens = sum(timing.tokens) / total
    return {
        "turns": len(timing.times), "forwards_per_s": len(timing.times) / total, "tokens_per_s": tokens,
        "p50_ms": 1000 * timing.median, "p95_ms": 1000 * timing.late, "floor_ms": 1000 * statistics.median(floors),
        "share": sum(floors) / total, "share_weights": account.weights() / machine.bytes / timing.median,
        "gbps": moved / timing.median / 1e9, "share_copy": moved / timing.median / machine.bytes,
        "share_peak": moved / timing.median / peak if peak else None,
        "tpf": sum(timing.tokens) / len(timing.tokens) / cell.batch,
        "useful_per_s": tokens * useful_share() if cell.rule == "recorded" else None,
        "peak_gb": None if memory is None else memory / 1e9, "warm_s": timing.warm,
    }  # fmt: skip
