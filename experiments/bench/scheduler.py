"""Continuous batching beside static batches and one request after the other: ``python -m experiments.bench.scheduler``.

One random model, one set of requests of many lengths, one clock: a step takes the CPU time that it took, and requests
arrive by that clock, so that other jobs on the machine change nothing but the cache's warmth. ``--load`` counts in
requests that one by one can just serve. Prints throughput (one by one = 1), median and 95th percentile of the latency,
and rows computed for each row wanted. Static batches twice: as the published loops decode them, every row as long as
the longest and to its last position, and as this package does, where a row leaves when it is done. Lengths scatter
widely, as those of conversations do, so a median of fewer than some 200 requests is chance: with 96 of them its ratio
scatters by 0.13 from seed to seed.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dllm.compose.fitted import Parts
from dllm.compose.parts import part
from dllm.contract import Step, View
from dllm.contract.canvas import Canvas, Request
from dllm.contract.traits import EosTraits
from dllm.models.bundle import Model
from dllm.parts.eos.base import EndOfText
from dllm.record.measures import quantile
from dllm.record.stopwatch import machine_load
from dllm.serve.engine.jobs import Event, Job, JobResult, Limits, RequestParts
from dllm.serve.engine.scheduler import Scheduler
from experiments.bench.step import SMALL, as_loaded, bundled, random_model
from experiments.support import markdown
from experiments.support.scripts import counted, refusing

ROWS, BLOCK = 8, 8


@dataclass(frozen=True)
class Outcome:
    """seconds: of the clock, from the first arrival to the last answer. latencies: of each request."""

    seconds: float
    latencies: list[float]
    wanted: int
    computed: int


@dataclass(frozen=True)
class Way:
    """rows: most rows at once. together: no row joins a batch that runs. whole: all rows of a batch are as long
    as its longest and are decoded to the last position."""

    rows: int
    together: bool = False
    whole: bool = False


class EndsEarly(EndOfText):
    """A row ends as soon as the first ``lengths[number]`` tokens of its answer stand: what an end of text does, which a
    random model does not say."""

    traits = EosTraits(at_once=True, fills=True, shrinks=False)

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = torch.tensor(lengths)

    def cut(self, candidates: Canvas, view: View, step: Step, ends: tuple[int, ...], full: Tensor) -> Canvas:
        end = candidates.start + self.lengths[candidates.param_index]
        open_ = (candidates.undecided & (candidates.columns < end[:, None])).any(1)
        return candidates.stop_at(end, ~open_ & (end < candidates.end), attended=True)


def model_of(width: int = 512, layers: int = 6, vocab: int = 8192) -> Model:
    config = replace(
        SMALL,
        width=width,
        layers=layers,
        heads=width // 64,
        kv_heads=width // 64,
        mlp_width=3 * width,
        vocab=vocab,
        mask_id=vocab - 1,
        eos_id=vocab - 2,
        pad_id=vocab - 2,
    )
    network = random_model(config, torch.device("cpu"), torch.float32)
    named = f"{sum(weight.numel() for weight in network.parameters()) / 1e6:.0f} M random parameters"
    return bundled(as_loaded(network), named)


def chosen(sampler: str, lengths: Sequence[int]) -> RequestParts:
    options = {"steps": None} if sampler == "static" else {"threshold": 0.02}  # of a random model's flat confidences
    rule, eos = part("sampler", sampler, **options), EndsEarly(lengths)
    blocks = part("blocks", "fixed", block_length=BLOCK)
    return RequestParts(Parts(rule, blocks, part("cache", "dual"), eos), {}, sampler, f"{sampler} {id(eos)}")


def requests(count: int, model: Model, noise: random.Random) -> tuple[list[Request], list[int]]:
    """Prompts of 8 to 96 tokens and answers of 16 to 256, every doubling as likely as another; and where each answer
    ends: half of them early, at a place drawn evenly."""
    out, lengths = list[Request](), list[int]()
    for number in range(count):
        prompt = [noise.randrange(1, 1000) for _ in range(int(8 * 12 ** noise.random()))]
        length = int(16 * 16 ** noise.random())
        out.append(replace(Request.answer(prompt, length, model.ids.placeholder, number), param_index=number))
        lengths.append(length if number % 2 else noise.randint(1, length))
    return out, lengths


def stretched(request: Request, length: int) -> Request:
    """The request with that many masks."""
    start, mask = request.answer_start, request.tokens[-1]
    return replace(
        request, tokens=[*request.tokens[:start], *[mask] * length], masked=[False] * start + [True] * length
    )


def decode(
    scheduler: Scheduler, todo: Sequence[Request], parts: RequestParts, arrivals: Sequence[float], way: Way
) -> Outcome:
    """Decode requests that arrive at these times."""
    clock, latencies, wanted, computed, left = 0.0, dict[int, float](), 0, 0, list(enumerate(todo))
    finished: list[tuple[int, JobResult]] = []

    def listener(place: int) -> Callable[[Event], None]:
        return lambda event: finished.append((place, event)) if isinstance(event, JobResult) else None

    while left or scheduler.queue or scheduler.lanes:
        if left and not scheduler.lanes and not scheduler.queue:
            clock = max(clock, arrivals[left[0][0]])
        if not (way.together and scheduler.lanes):
            come = [one for one in left if arrivals[one[0]] <= clock]
            come = come[: way.rows] if way.together else come
            longest = max((sum(request.masked) for _, request in come), default=0)
            for place, request in come:
                asked = stretched(request, longest) if way.whole else request
                scheduler.submit(Job(asked, parts, time.monotonic() + 1e6, follow=False), listener(place))
            left = left[len(come) :]
        began = time.thread_time()
        scheduler.step()
        clock += time.thread_time() - began
        for place, done in finished:
            latencies[place] = clock - arrivals[place]
            wanted, computed = wanted + done.result.query_tokens, computed + done.result.computed_tokens
        finished.clear()
    return Outcome(clock - arrivals[0], [latencies[place] for place in range(len(todo))], wanted, computed)


WAYS = {
    "one by one": Way(1),
    "static, as published": Way(ROWS, True, True),
    "static": Way(ROWS, True),
    "continuous": Way(ROWS),
}
NEVER = 1 << 30


@refusing
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=counted, default=192)
    parser.add_argument("--sampler", default="static", choices=("static", "confidence"))
    parser.add_argument("--load", type=float, nargs="*", default=[0.8])
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = model_of()
    todo, lengths = requests(options.count, model, random.Random(0))
    print(
        f"{model.name}, sampler={options.sampler}, cache=dual, blocks of {BLOCK}, {len(todo)} requests, {ROWS} rows, "
        f"one thread, load {machine_load()} a core of {os.cpu_count()}"
    )
    table = list[list[str]]()
    alone: Outcome | None = None
    for load in (None, *options.load):
        for name, way in WAYS.items():
            if load is not None and (way.rows == 1 or way.whole):
                continue
            arrivals = [0.0] * len(todo)
            if load is not None and alone is not None:
                pace, at = random.Random(0), 0.0
                arrivals = [at := at + pace.expovariate(load * len(todo) / alone.seconds) for _ in todo]
            limits = Limits(max_rows=way.rows, max_tokens_in_flight=NEVER, max_waiting=NEVER)
            ends = [NEVER] * len(lengths) if way.whole else lengths
            parts = chosen(options.sampler, ends)
            found = decode(Scheduler(model, "eager", limits), todo, parts, arrivals, way)
            alone = alone or found
            when, speed = "saturated" if load is None else str(load), alone.seconds / found.seconds
            waits = (f"{1e3 * quantile(found.latencies, share):.0f}" for share in (0.5, 0.95))
            table.append([when, name, f"{speed:.2f}", *waits, f"{found.computed / alone.wanted:.2f}"])
    print("\n" + markdown.table(("load", "way", "throughput", "p50 ms", "p95 ms", "computed / wanted"), table, 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
