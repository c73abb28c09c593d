"""A forward of LLaDA-8B's shape on a CPU, by the kind of its weights: ``python -m experiments.bench.forward_kinds``.

Random weights. A few layers are timed, each kind in turn, and stand for all 32; the head is timed on at most 32 rows,
since no more are scored at once. CPU seconds, the least of several runs. Prints a Markdown table, the processor and
its own figures (how fast one thread reads, and multiplies in bfloat16 and in bytes), what share of them a kind reaches,
and what ``model.quantize=auto`` takes here. ``--llama-bench PROGRAM`` adds llama.cpp's columns.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from dllm.kernels.rounded_machine import exact_levels
from dllm.kernels.rounded_rows import PackedBytes, in_steps, with_bytes
from dllm.models.config import ModelConfig
from dllm.models.fastest import Kinds, Residence, settled_kinds
from dllm.models.weights.footprint import PER_WEIGHT
from dllm.record.environment import processor_name
from experiments.bench import llama_cpp
from experiments.bench.laptop import network
from experiments.bench.random_checkpoint import config_of
from experiments.support import markdown
from experiments.support.scripts import counted, refusing

ROW_COUNTS = (1, 8, 32, 124, 256)
WEIGHTS = ("bfloat16", "int8", "int4", "int8-rows", "int4-rows")  # rows: ``model.activations=int8``
ALL_LAYERS, SCORED = 32, 32


def least_seconds(act: Callable[[], object], runs: int) -> float:
    """CPU seconds of the fastest of several runs."""
    found = []
    for _ in range(runs):
        began = time.process_time()
        act()
        found.append(time.process_time() - began)
    return min(found)


def layer_weights(config: ModelConfig) -> int:
    """Weights of a layer's products."""
    queries, keys = config.attention_widths(0)
    return config.width * (2 * queries + 2 * keys + 3 * config.mlp_width)


@torch.inference_mode()
def forward_seconds(weights: str, layers: int, runs: int) -> list[float]:
    """Seconds of a forward of all layers and the head, for each number of rows."""
    model = network(ModelConfig.from_published(config_of("llada-8b", layers)), weights).transformer
    found = []
    for count in ROW_COUNTS:
        tokens = torch.randint(0, 50_000, (1, count))
        hidden: Tensor = model.encode(tokens)
        body = least_seconds(lambda tokens=tokens: model.encode(tokens), runs)  # type: ignore[misc]
        scored = hidden[:, :SCORED]
        head = least_seconds(lambda scored=scored: model.head(scored), runs)  # type: ignore[misc]
        found.append(body * ALL_LAYERS / layers + head)
    return found


class Peaks(NamedTuple):
    """What a thread of this machine does at best, a second."""

    read: float  # bytes
    bfloat16: float  # FLOP
    whole: float  # operations of bytes; 0: there are none that are exact

    def __str__(self) -> str:
        products = f"{self.bfloat16 / 1e9:,.0f} GFLOP/s in bfloat16, {self.whole / 1e9:,.0f} GOP/s in bytes"
        return f"{self.read / 1e9:.1f} GB/s read, {products}"

    def floor(self, kind: str, rows: int, layer: int, head: int) -> float:
        """Seconds of a forward that reads its weights, or multiplies them, at the peak. layer, head: weights."""
        per_weight = PER_WEIGHT[kind.removesuffix("-rows")]
        multiplied = self.whole if kind.endswith("-rows") and self.whole else self.bfloat16
        scored = min(rows, SCORED)
        return max(layer * per_weight / self.read, 2 * rows * layer / multiplied) + max(
            head * PER_WEIGHT["bfloat16"] / self.read, 2 * scored * head / self.bfloat16
        )


@torch.inference_mode()
def machine() -> Peaks:
    """What one thread of this machine does at best."""
    numbers = torch.ones(1 << 28, dtype=torch.bfloat16)
    read = numbers.nbytes / least_seconds(lambda: numbers.view(torch.int32).max(), 3)
    square = torch.randn(2048, 2048).to(torch.bfloat16)
    product = 2 * 2048**3 / least_seconds(lambda: square @ square.t(), 5)
    most, whole = exact_levels(), 0.0
    if most:
        packed, rows = PackedBytes(torch.ones(4096, 4096, dtype=torch.int8), torch.ones(4096), most), square[:256]
        (part,) = in_steps(torch.cat([rows, rows], 1), most).bytes(most + 1)
        seconds = least_seconds(lambda: with_bytes(part, most + 1, packed.packed, packed.scale, packed.bias), 5)
        whole = 2 * len(part) * 4096**2 / seconds
    return Peaks(read, product, whole)


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=counted, default=4)
    parser.add_argument("--weights", nargs="+", choices=WEIGHTS, default=WEIGHTS)
    parser.add_argument("--runs", type=counted, default=5)
    parser.add_argument("--threads", type=counted, default=1)
    parser.add_argument("--llama-bench", type=Path, metavar="PROGRAM", help="llama.cpp's benchmark, measured beside")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    peaks, config = machine(), ModelConfig.from_published(config_of("llada-8b", ALL_LAYERS))
    there = f"{processor_name()}, {options.threads} threads, torch {torch.__version__}"
    print(f"{there}, {peaks}, load {os.getloadavg()[0]:.1f}\n", flush=True)
    by_kind = {kind: forward_seconds(kind, options.layers, options.runs) for kind in options.weights}
    if options.llama_bench:
        by_kind |= llama_cpp.forward_seconds(options.llama_bench, ROW_COUNTS, ALL_LAYERS, options.runs, options.threads)
    rows = [[str(count), *(f"{found[at]:.2f}" for found in by_kind.values())] for at, count in enumerate(ROW_COUNTS)]
    names = [f"llama.cpp {kind}" if kind in llama_cpp.KINDS else kind for kind in by_kind]
    print(markdown.table(("rows", *names), rows))
    layer, head = ALL_LAYERS * layer_weights(config), config.vocab * config.width
    shares = [
        [str(count), *(f"{peaks.floor(kind, count, layer, head) / by_kind[kind][at]:.0%}" for kind in options.weights)]
        for at, count in enumerate(ROW_COUNTS)
    ]
    print("\nThe least that reading or multiplying at the machine's own peak takes, as a share:\n")
    print(markdown.table(("rows", *options.weights), shares))
    taken = settled_kinds(config, Kinds("auto"), Residence(torch.bfloat16, torch.device("cpu"), memory_gib=100))
    print(f"\nmodel.quantize=auto takes {taken} where all fit; load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
