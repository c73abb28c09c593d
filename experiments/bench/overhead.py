"""Measure the share of a decode that is spent outside the model: ``python -m experiments.bench.overhead``.

Decodes a prompt of every task of the mini suite whose answer is short, at batch 1 (cache=none, no live view, prompts as
token ids), and times the network (transformer and head) apart from the whole. Prints the share of all else per sampler,
threads, load.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dllm import Decoder, load
from dllm.models.bundle import Model
from dllm.tasks.mini.tasks import SHORT_ANSWERS, generate
from experiments.support.scripts import refusing


class Stopwatch:
    """Adds up the seconds of the calls it wraps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            out = call(*args, **kwargs)
            self.seconds += time.perf_counter() - began
            return out

        return timed


def share_outside(model: Model, sampler: str, repeats: int) -> tuple[float, float]:
    """The share of the decode outside the model, and the model's milliseconds per forward."""
    decoder, watch, network = Decoder(model, sampler=sampler, gen_length=32), Stopwatch(), model.transformer
    prompts: list[Any] = [decoder.encode(generate(task, 0, 1)[0].prompt) for task in SHORT_ANSWERS]
    decoder(prompts)  # warm up
    forward, head = network.forward, network.head
    network.forward, network.head = watch.around(forward), watch.around(head)  # type: ignore[method-assign]
    began, turns = time.perf_counter(), 0
    for _ in range(repeats):
        turns += sum(result.nfe for result in decoder(prompts))
    whole = time.perf_counter() - began
    network.forward, network.head = forward, head  # type: ignore[method-assign]
    return 1 - watch.seconds / whole, 1000 * watch.seconds / turns


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini-llada")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--samplers", nargs="+", default=["confidence", "static", "factor", "localleap"])
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    print(f"{options.model}, batch 1, answer 32, threads {options.threads}, load {os.getloadavg()[0]:.1f}")
    model = load(options.model)
    for sampler in options.samplers:
        outside, per_forward = share_outside(model, sampler, options.repeats)
        print(f"{sampler:12} outside the model {100 * outside:4.1f} %   model {per_forward:.2f} ms per forward")
    return 0


if __name__ == "__main__":
    sys.exit(main())
