"""A forward of LLaDA-8B's shape on a CPU, by the kind of its weights: ``python -m experiments.bench.forward_kinds``.

Random weights. A few layers are timed, each kind in turn, and stand for all 32; the head is timed on at most 32 rows,
since no more are scored at once. CPU seconds, the least of several runs. Prints a Markdown table, and the machine's
own figures: how fast one thread reads, and multiplies in bfloat16. ``--llama-bench PROGRAM`` adds llama.cpp's columns.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from dllm.models.config import ModelConfig
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


def machine() -> str:
    """What one thread of this machine does at best."""
    numbers = torch.ones(1 << 28, dtype=torch.bfloat16)
    read = numbers.nbytes / least_seconds(lambda: numbers.view(torch.int32).max(), 3) / 1e9
    square = torch.randn(1024, 1024).to(torch.bfloat16)
    product = 2 * 1024**3 / least_seconds(lambda: square @ square.t(), 5) / 1e9
    return f"{read:.0f} GB/s read, {product:.0f} GFLOP/s in bfloat16"


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
    print(
        f"{options.threads} threads, torch {torch.__version__}, {machine()}, load {os.getloadavg()[0]:.1f}\n",
        flush=True,
    )
    by_kind = {kind: forward_seconds(kind, options.layers, options.runs) for kind in options.weights}
    if options.llama_bench:
        by_kind |= llama_cpp.forward_seconds(options.llama_bench, ROW_COUNTS, ALL_LAYERS, options.runs, options.threads)
    rows = [[str(count), *(f"{found[at]:.2f}" for found in by_kind.values())] for at, count in enumerate(ROW_COUNTS)]
    names = [f"llama.cpp {kind}" if kind in llama_cpp.KINDS else kind for kind in by_kind]
    print(markdown.table(("rows", *names), rows))
    print(f"\nload {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
