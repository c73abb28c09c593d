"""The cells of ``texts``, ``steps`` and ``lags``: one decode, timed turn by turn, beside the least time and the
memory that it takes."""

from __future__ import annotations

import statistics
import sys
from typing import Any

import torch

from dllm import load
from dllm.kernels.dispatch import use_triton
from dllm.models.bundle import Model
from dllm.models.network.attention import has_varlen
from dllm.models.network.transformer import Transformer
from dllm.models.weights.quantize import check_quantize, quantize_part
from dllm.record.cost import CostModel, Machine
from experiments.bench.step import random_model, random_narrow, time_turns
from experiments.gpu_hour.cells import CONFIGS, PLAIN, Cell, check
from experiments.gpu_hour.switches import stand_in
from experiments.gpu_hour.texts import SMALL, time_texts
from experiments.gpu_hour.work import tidy
from experiments.support.inflate import inflated


class Models:
    """Models on a device: seeded random weights, or a small model's text. One is kept: cells of the same model follow
    each other."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.kept: tuple[tuple[str, str], Transformer | Model] | None = None

    def network(self, cell: Cell) -> Transformer:
        """Raises UserError for weights that the model or the device does not take."""
        found = self._found(cell)
        return found.transformer if isinstance(found, Model) else found

    def text(self, cell: Cell) -> Model:
        """The model of a cell that decodes texts."""
        found = self._found(cell)
        assert isinstance(found, Model), cell.name
        return found

    def _found(self, cell: Cell) -> Transformer | Model:
        key = cell.model, cell.weights
        if self.kept is None or self.kept[0] != key:
            self.kept = None  # the old one goes before the new one comes, and what was compiled for it
            if "torch._dynamo" in sys.modules:
                torch.compiler.reset()
            tidy()
            self.kept = key, self._made(cell)
        return self.kept[1]

    def _made(self, cell: Cell) -> Transformer | Model:
        config = CONFIGS[cell.model]
        dtype, triton = torch.float32 if cell.weights == "float32" else torch.bfloat16, use_triton("auto", self.device)
        if cell.weights not in PLAIN:
            check_quantize(cell.weights, config, dtype, self.device, triton)
        if cell.weights not in PLAIN and not cell.texts:
            return random_narrow(config, self.device, cell.weights, triton)
        if cell.texts:
            small = load(SMALL, device=str(self.device), dtype="float32", pack=False)
            made: Transformer | Model = inflated(small, config, self.device, dtype)
        else:
            made = random_model(config, self.device, dtype)
        network = made.transformer if isinstance(made, Model) else made
        network.use_kernels(triton, has_varlen(self.device, dtype))
        if cell.weights not in PLAIN:
            for layer in network.layers:
                quantize_part(layer, cell.weights, network.triton)
        return made


def time_cell(cell: Cell, models: Models, machine: Machine, peak: float | None) -> dict[str, Any]:
    """The figures of a cell. peak: bytes/s of the card's data sheet."""
    device, extra = models.device, dict[str, Any]()
    runtime, model = check(cell, device), models.network(cell)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with stand_in(device):
        if cell.texts:
            timing, extra = time_texts(cell, models.text(cell), runtime)
        else:
            timing = time_turns(model, cell.cache, cell.load, cell.turns, runtime, cell.sampler)
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    account = CostModel(model.config, model.dtype.itemsize)
    floors, total = timing.floors(account, machine), sum(timing.times)
    moved = account.weights() + statistics.median(timing.moved)
    tokens = sum(timing.tokens) / total
    return {
        "turns": len(timing.times),
        "forwards_per_s": len(timing.times) / total,
        "tokens_per_s": tokens,
        "p50_ms": 1000 * timing.median,
        "p95_ms": 1000 * timing.late,
        "floor_ms": 1000 * statistics.median(floors),
        "share": sum(floors) / total,
        "share_weights": account.weights() / machine.bytes / timing.median,
        "gbps": moved / timing.median / 1e9,
        "share_copy": moved / timing.median / machine.bytes,
        "share_peak": moved / timing.median / peak if peak else None,
        "tpf": sum(timing.tokens) / len(timing.tokens) / cell.batch,
        "useful_per_s": tokens * extra["useful"] if extra else None,
        "peak_gb": None if memory is None else memory / 1e9,
        "warm_s": timing.warm,
        **extra,
    }
