"""The cells of ``profile``: where the time of a turn goes, by torch.profiler."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from dllm.loop.recorded import build_runtime
from experiments.bench.step import decode
from experiments.gpu_hour.cells import BASE, Cell, best, check
from experiments.gpu_hour.switches import stand_in
from experiments.gpu_hour.timed import Models

TURNS, TOP = 8, 16


def profile_cells() -> list[Cell]:
    pairs = (("dual", 1), ("dual", 16), ("none", 1), ("window", 16), ("elastic", 1))
    return [best(replace(BASE, cache=cache, batch=batch)) for cache, batch in pairs]


def profiled(cell: Cell, models: Models) -> dict[str, Any]:
    """The cell's name, milliseconds of a turn in all and by kernel, launches, and milliseconds in which the device
    waits."""
    runtime, rule, model = check(cell, models.device), cell.sampler, models.network(cell)
    with stand_in(models.device):
        runs = build_runtime(runtime, model, cell.parts)
    for _ in range(2):  # compiles and records
        for _ in islice(decode(model, cell.cache, cell.load, runtime.reads, runs, rule), cell.turns):
            pass
    turns = decode(model, cell.cache, cell.load, runtime.reads, runs, rule)
    for _ in islice(turns, 4):  # after the forward that opens the block
        pass
    gpu = models.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * gpu]) as seen:
        count = sum(1 for _ in islice(turns, min(TURNS, cell.block - 5)))
        if gpu:
            torch.cuda.synchronize(models.device)
    figures = summary(
        (
            (one.name, one.time_range.start, one.time_range.end)
            for one in seen.events()
            if not gpu or "CUDA" in str(one.device_type)
        ),
        count,
    )
    return {"cell": cell.name, **figures}


def summary(events: Iterable[tuple[str, float, float]], turns: int) -> dict[str, Any]:
    """Of events (name, begin, end) in microseconds: what each name takes, and what is between them."""
    listed = sorted(events, key=lambda one: one[1])
    if not listed:
        raise RuntimeError("The profiler saw nothing run: it needs CUPTI, which this machine does not let it use")
    spent, launches = defaultdict[str, float](float), defaultdict[str, int](int)
    busy, reached = 0.0, listed[0][1]
    for name, begin, end in listed:
        spent[name] += end - begin
        launches[name] += 1
        busy += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    whole = reached - listed[0][1]
    top = sorted(spent, key=lambda name: -spent[name])[:TOP]
    return {
        "turns": turns,
        "turn_ms": whole / turns / 1000,
        "idle_ms": (whole - busy) / turns / 1000,
        "launches": len(listed) / turns,
        "kernels": [
            {"name": name[:90], "ms": spent[name] / turns / 1000, "launches": launches[name] / turns} for name in top
        ],
    }
