"""Launches of a turn by cache, counted without a GPU: ``python -m experiments.bench.launches``.

Our kernels count as one launch each, attention over rows of various lengths as one, and every other operation but
views. Of the kernels those of the head run in Triton's interpreter; the layers' leave zeros. Of a tiny model in two
depths: their difference is what a layer launches, the rest is what a turn launches outside. Where a cache can be
recorded, the stages around the network also count as the kernels that inductor makes of them (on this machine's CPU; a
GPU may split scans).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count as count_from
from itertools import islice
from typing import Any
from unittest.mock import patch

os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton

import torch
import torch.nn.attention.varlen as varlen
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from dllm.common import debug
from dllm.compose.config_choices import choices
from dllm.compose.fitted import Parts
from dllm.contract import Turn
from dllm.kernels.jit import Kernel
from dllm.loop.denoise import TakeTurn, take_turn
from dllm.loop.forward import Forward
from dllm.loop.recorded import empty, settle_into
from dllm.loop.recorded_turn import copy_all
from dllm.loop.rows import Rows
from dllm.loop.runtime.compiled_stages import CompiledStages
from experiments.bench.operations import Launches
from experiments.bench.step import TINY, Workload, decode, named, random_model
from experiments.support import markdown

# For models of another attention, or with a rule of their own.
LEFT_OUT = ("finished", "focus", "dkv_greedy", "flash_verify", "linear_spec")
WORK = Workload(1, 24, 32, 32, 1)
LAYERS, WARM, TURNS = 32, 3, 4
FEW, MORE = 2, 3  # layers of the two models
# Interpreted they take most of a minute.
IN_LAYERS = ("_add_norm", "_rope_scatter", "_silu_times", "_scores", "_drift_sums")
OUTPUTS = ("out", "total", "scores", "sums", "received", "alike")  # what these write anew


@contextmanager
def gpu_kernels(counter: Launches) -> Iterator[None]:
    """Each kernel of ours, and attention over rows of various lengths, counts as one launch."""
    launch = Kernel._launch

    def noted(kernel: Kernel, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
        counter.count += 1
        with _disable_current_modes():
            if kernel.function.__name__ in IN_LAYERS:
                named = zip(kernel.function.__code__.co_varnames, args, strict=False)
                for name, one in named:
                    if name in OUTPUTS and one is not None:
                        one.fill_(name == "alike")  # else every row would have drifted, and run again
            else:
                launch(kernel, grid, *args, **options)

    def attention(query: Tensor, *rest: Any, **named: Any) -> Tensor:
        return query.clone()  # one operation; what the network says does not matter here

    with (
        patch.object(Kernel, "_launch", noted),
        patch.object(varlen, "varlen_attn", attention),
        patch.object(debug, "ON", False),
    ):
        yield


class CountedStages:
    """Runs stages as they are, and counts the kernels that inductor makes of each instead of its operations."""

    def __init__(self, counter: Launches) -> None:
        self.counter, self.compiled = counter, CompiledStages()
        self.kernels: dict[Callable[..., Any], int] = {}  # of each stage, as it was compiled first

    def __call__(self, stage: Callable[..., Any], *args: Any) -> Any:
        from torch._inductor import metrics

        with _disable_current_modes():
            if stage not in self.kernels:
                metrics.reset()
                with torch._inductor.config.patch(force_disable_caches=True):  # else a cached graph has no kernels
                    self.compiled(stage, *args)
                assert stage not in self.compiled.failures, self.compiled.failures[stage]
                self.kernels[stage] = metrics.generated_kernel_count
            made = stage(*args)
        self.counter.count += self.kernels[stage]
        return made


@dataclass(frozen=True)
class Counted:
    """Launches of a usual turn of one row (``sampler=confidence``)."""

    layer: float  # in each layer
    outside: float  # outside the layers
    compiled: float | None  # outside, with compiled stages (None: its turns are not recorded)

    def totals(self) -> list[float]:
        """Of a model of ``LAYERS`` layers, and the same with compiled stages."""
        return [LAYERS * self.layer + one for one in (self.outside, self.compiled) if one is not None]


def count(cache: str) -> Counted:
    """The launches under a cache, with shapes as a GPU has them."""
    traits = named("cache", cache).traits
    lag = int(traits.bounds_late) if traits.bounded_shapes else None
    few, more = (of_turns(cache, lag, layers, False) for layers in (FEW, MORE))
    layer = (more - few) / (MORE - FEW)
    whole = traits.bounded_shapes
    compiled = of_turns(cache, lag, FEW, True) - FEW * layer if whole else None
    return Counted(layer, few - FEW * layer, compiled)


def of_turns(cache: str, lag: int | None, layers: int, compiled: bool) -> float:
    model = random_model(replace(TINY, layers=layers), torch.device("cpu"), torch.float32)
    model.use_kernels(True, varlen=True)
    counter = Launches()
    stages, turns = CountedStages(counter), count_from(0)

    def take(rows: Rows, forward: Forward, parts: Parts) -> tuple[Rows, Turn]:
        if next(turns) < WARM // 2:  # elastic's first turns change the shapes of what rows carry
            return take_turn(rows, forward, parts)
        rows, forward = rows.bounded(), replace(forward, stage=stages)
        outputs = [empty(one) for one in rows.tensors()]
        copy_all(outputs, rows.tensors())  # as a recording copies its outputs to its inputs
        after, turn, numbers = stages(settle_into, outputs, rows, forward(rows), forward, parts)
        after, finished = after.reported(numbers)
        return after, replace(turn, finished=finished)

    taking: TakeTurn = take if compiled else take_turn
    running = decode(model, cache, WORK, lag, (model, taking), named("sampler", "confidence"))
    with gpu_kernels(counter):
        for _ in islice(running, WARM):
            pass
        counter.count = 0  # of what was counted while stages were compiled
        with counter:
            for _ in islice(running, TURNS):
                pass
    return counter.count / TURNS


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caches", nargs="+", default=[one for one in choices("cache") if one not in LEFT_OUT])
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(markdown.head(("cache", "a layer", "plain", "compiled")))
    for cache in options.caches:
        found = count(cache)
        totals = ["" if one is None else f"{one:.0f}" for one in (*found.totals(), None)[:2]]
        print(markdown.line((cache, f"{found.layer:.0f}", *totals)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
