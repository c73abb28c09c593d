"""What an update costs: seconds and memory of the log-probabilities of rollouts and their gradient, against rows,
answer length and vocabulary, on a network of random weights.

    python -m experiments.bench.rollout_updates [--repeats 3] [--times 1 2 4]

``whole`` is ``trajectory_logprobs`` and one backward pass, which holds the graph of all canvases; ``batches`` is
``trajectory_backward``, which holds one batch. Every cell runs in a process of its own; memory is what its peak rises
above the network, its gradients and the rollouts; seconds are the processor's, of one thread. A line is fitted over
each dimension, the others at their least.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import linear_regression, median
from time import process_time

import torch

from dllm.common.terminal import say
from dllm.compose.parts import part
from dllm.decoder import Decoder
from dllm.models.bundle import Model
from dllm.models.ids import Ids
from dllm.models.shipped import CHECKPOINTS
from dllm.models.transformer import Transformer
from dllm.models.weights import read_model_config
from dllm.rl import Rollouts, trajectory_backward, trajectory_logprobs

DIMENSIONS = {"rows": 4, "length": 64, "vocabulary": 16_384}  # at their least
WAYS = ("whole", "batches")
WIDTH, LAYERS, PROMPT, FORWARDS, CANVASES = 64, 2, 16, 4, 4  # of the network, a row's decode and a batch


def network(vocabulary: int) -> Model:
    """Random weights that learn."""
    config = replace(
        read_model_config(CHECKPOINTS / "mini-llada"), width=WIDTH, layers=LAYERS, heads=2, kv_heads=2, head_dim=32,
        rotary_dim=32, mlp_width=4 * WIDTH, vocab=vocabulary, mask_id=vocabulary - 1, eos_id=vocabulary - 2, pad_id=0,
        max_length=4096,
    )  # fmt: skip
    torch.manual_seed(0)
    return Model(Transformer(config), config, None, Ids(vocabulary - 1, vocabulary - 2, ()), "random", Path())


def rolled(model: Model, rows: int, length: int) -> Rollouts:
    decoder = Decoder(
        model, part("sampler", "static", steps=FORWARDS), "whole", eos="none", gen_length=length, batch_size=rows,
        temperature=1.0,
    )  # fmt: skip
    prompts = [[1 + (row + at) % 100 for at in range(PROMPT)] for row in range(rows)]
    return decoder.rollouts(prompts)


def update(model: Model, rollouts: Rollouts, way: str) -> None:
    if way == "whole":
        trajectory_logprobs(model, rollouts, rows=CANVASES).sum().backward()  # type: ignore[no-untyped-call]
    else:
        trajectory_backward(model, rollouts, lambda values, row, column: values.sum(), rows=CANVASES)


def status(name: str) -> int:
    """A number of this process in /proc, bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def cell(rows: int, length: int, vocabulary: int, way: str, repeats: int) -> dict[str, float]:
    """Median seconds of the processor, and the highest rise of memory in bytes, of an update; the first is not
    counted."""
    torch.set_num_threads(1)
    model = network(vocabulary)
    rollouts = rolled(model, rows, length)
    update(model, rollouts.select([0]), way)  # makes the gradients
    seconds, rises = [], []
    for _ in range(repeats):
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
        before, began = status("VmRSS"), process_time()
        update(model, rollouts, way)
        seconds.append(process_time() - began)
        rises.append(status("VmHWM") - before)
    return {"seconds": median(seconds), "bytes": max(rises)}


def cells(times: Sequence[int]) -> Iterator[dict[str, int]]:
    """The least one, and every dimension by itself."""
    yield dict(DIMENSIONS)
    for name, least in DIMENSIONS.items():
        yield from ({**DIMENSIONS, name: least * factor} for factor in times if factor > 1)


def in_process(chosen: dict[str, int], repeats: int) -> list[dict[str, float]]:
    """Both ways of a cell."""
    words = [sys.executable, "-m", "experiments.bench.rollout_updates", "--cell", json.dumps([chosen, repeats])]
    # What is freed goes back at once, so that the peak is of what is held together.
    freed = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    found = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, **freed})
    return list(json.loads(found.stdout.splitlines()[-1]))


def fitted(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """By how much the value grows from one to twice the least, as a share of it, and the largest error of the line, as
    a share of the largest value."""
    line = linear_regression([x for x, _ in points], [y for _, y in points])
    least, values = points[0][0], [y for _, y in points]
    off = max(abs(line.slope * x + line.intercept - y) for x, y in points)
    return line.slope * least / (line.slope * least + line.intercept), off / max(values)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="updates of each cell")
    parser.add_argument("--times", type=int, nargs="+", default=[1, 2, 4], help="factors of each dimension")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.cell:
        chosen, repeats = json.loads(given.cell)
        say(json.dumps([cell(**chosen, way=way, repeats=repeats) for way in WAYS]))
        return
    found = {}
    say("| rows | length | vocabulary | whole: s | MB | batches: s | MB |\n|---:|---:|---:|---:|---:|---:|---:|")
    for chosen in cells(given.times):
        both = in_process(chosen, given.repeats)
        found[tuple(chosen.values())] = both
        numbers = " | ".join(f"{one['seconds']:.2f} | {one['bytes'] / 1e6:.0f}" for one in both)
        say(f"| {' | '.join(f'{value:,}' for value in chosen.values())} | {numbers} |", flush=True)
    say("\n| grows with | whole: s | MB | batches: s | MB |\n|---|---|---|---|---|")
    for at, (name, least) in enumerate(DIMENSIONS.items()):
        told = []
        for number, _ in enumerate(WAYS):
            for what in ("seconds", "bytes"):
                keys = [tuple(least * factor if at == place else value for place, value in
                              enumerate(DIMENSIONS.values())) for factor in given.times]  # fmt: skip
                share, off = fitted([(key[at], found[key][number][what]) for key in keys])
                told.append(f"{share:+.0%} a doubling, {off:.0%} off")
        say(f"| {name} | {' | '.join(told)} |")


if __name__ == "__main__":
    main()
