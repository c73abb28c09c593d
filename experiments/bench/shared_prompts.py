"""A server whose requests begin with one prompt, before and after: ``python -m experiments.bench.shared_prompts``.

A random block-causal model with grouped keys, requests of one long prompt and an end of their own, all at once.
Prints requests a CPU second, query rows, prompt tokens that were known, and whether all answers are equal; then, by
prompt length, the largest tensor of a whole prefill and of one in chunks.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from dllm.compose.fitted import Parts
from dllm.compose.parts import part
from dllm.contract.canvas import Request
from dllm.contract.setting import Sampling
from dllm.loop.prefill import Prefill
from dllm.loop.runner import Runner, beginning_of
from dllm.loop.runtime.runtime import Runtime
from dllm.models.bundle import Model
from dllm.models.network.visibility import BlockCausal
from dllm.record.stopwatch import machine_load
from dllm.serve.engine.jobs import Event, Job, JobResult, Limits, RequestParts
from dllm.serve.engine.scheduler import Scheduler
from experiments.bench.step import SMALL, bundled, random_model
from experiments.support import markdown
from experiments.support.scripts import counted, refusing
from experiments.support.tensor_sizes import TensorSizes

VOCAB = 4096


def model_of(width: int, layers: int) -> Model:
    """With blocks of four, and a key head for two heads."""
    config = replace(SMALL, width=width, layers=layers, heads=width // 32, kv_heads=width // 64, mlp_width=3 * width,
                     vocab=VOCAB, mask_id=VOCAB - 1, eos_id=VOCAB - 2, pad_id=VOCAB - 2,
                     max_length=1 << 16, attention=BlockCausal(4))  # fmt: skip
    return bundled(random_model(config, torch.device("cpu"), torch.float32))


def parts_of() -> Parts:
    made = part("sampler", "static", steps=None), part("blocks", "fixed", block_length=4), part("cache", "finished")
    return Parts(*made, part("eos", "none"), Sampling())


def served(model: Model, todo: list[Request], limits: Limits) -> tuple[float, list[JobResult], Scheduler]:
    """CPU seconds until all are answered, the answers, and the scheduler."""
    scheduler, parts, out = (
        Scheduler(model, "eager", limits),
        RequestParts(parts_of(), {}, "", ""),
        dict[int, JobResult](),
    )

    def listener(place: int) -> Callable[[Event], None]:
        return lambda event: out.update({place: event}) if isinstance(event, JobResult) else None

    for place, request in enumerate(todo):
        scheduler.submit(Job(request, parts, time.monotonic() + 1e6, follow=False), listener(place))
    began = time.process_time()
    while len(out) < len(todo):
        scheduler.step()
    return time.process_time() - began, [out[place] for place in range(len(todo))], scheduler


def largest_whole(model: Model, request: Request) -> int:
    """Of a forward that computes the whole prompt."""
    runner = Runner.of(model, parts_of(), Runtime("eager"))
    with TensorSizes() as seen, torch.inference_mode():
        next(runner.turns(runner.start([request])))
    return seen.largest


def largest_in_chunks(model: Model, request: Request, chunk: int) -> int:
    """Of its chunks, and of the forward after them."""
    prefill, runner = Prefill(model.transformer, request, None, chunk), Runner.of(model, parts_of(), Runtime("eager"))
    with TensorSizes() as seen, torch.inference_mode():
        while prefill.columns_to_compute:
            prefill.step()
        next(runner.turns(runner.start([request], prefixes=[prefill.prefix()])))
    return seen.largest


def seconds_of_prefix(model: Model, scheduler: Scheduler, request: Request) -> tuple[float, float]:
    """CPU seconds in which what is known of a prompt is copied out of its pages and into a row, and computed."""
    runner, prefill = Runner.of(model, parts_of(), Runtime("eager")), Prefill(model.transformer, request, None, 512)
    assert scheduler.pages is not None, "the last one shared prompts"
    began = time.process_time()
    known = scheduler.pages.find(beginning_of(request))
    found = time.process_time() - began
    assert known is not None, "it has served this prompt"
    row = [tuple(torch.zeros(1, one.shape[1], len(one) + 1, one.shape[2]) for one in pair) for pair in known.layers]
    session: Any = runner.start([request], prefixes=[known]).session
    session.stores[:] = row
    began = time.process_time()
    for layer in range(len(row)):
        session.kept.write_prefixes(layer)
    copied = found + time.process_time() - began
    began = time.process_time()
    while prefill.columns_to_compute:
        prefill.step()
    return copied, time.process_time() - began


def prompt_of(length: int) -> list[int]:
    dice = random.Random(length)
    return [dice.randrange(1, 1000) for _ in range(length)]


HEADS = ("prefix_gib", "prefill_chunk", "requests a CPU second", "query rows", "prompt tokens known", "answers")


@refusing
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"width": 128, "layers": 2, "count": 24, "prompt": 2048, "own": 32, "answer": 16}
    for name, usual in (*sizes.items(), ("whole", 8192)):  # whole: the longest prompt that is computed whole, too
        parser.add_argument(f"--{name}", type=counted, default=usual)
    parser.add_argument("--lengths", type=int, nargs="*", default=[1024, 2048, 4096, 8192, 16384, 32768])
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, dice = model_of(options.width, options.layers), random.Random(1)
    common, mask = prompt_of(options.prompt), model.ids.placeholder
    ends = [[dice.randrange(1, 1000) for _ in range(options.own)] for _ in range(options.count)]
    todo = [Request.answer([*common, *end], options.answer, mask, seed) for seed, end in enumerate(ends)]
    print(
        f"{len(todo)} requests of {options.prompt} common and {options.own} own tokens, answers of {options.answer}, "
        f"load {machine_load()} a core"
    )
    rows_of, answers = list[list[str]](), list[Any]()
    for gib, chunk in ((0.0, 1 << 20), (0.0, 512), (1.0, 1 << 20), (1.0, 512)):
        limits = Limits(prefix_gib=gib, prefill_chunk=chunk, max_tokens_in_flight=1 << 20, max_waiting=1 << 20)
        seconds, done, scheduler = served(model, todo, limits)
        answers.append([one.result.canvas for one in done])
        rows = sum(one.result.query_tokens for one in done)
        rate, cut = f"{len(todo) / seconds:.2f}", str(chunk) if chunk < 1 << 20 else "none"
        same = "equal" if answers[-1] == answers[0] else "differ"
        rows_of.append([f"{gib:g}", cut, rate, f"{rows}", f"{scheduler.figures().cached_tokens}", same])
    print("\n" + markdown.table(HEADS, rows_of, 2) + "\n")
    copied, computed = seconds_of_prefix(model, scheduler, todo[0])
    print(
        f"taking its known tokens over takes a request {1e3 * copied:.1f} ms of the CPU, and computing them "
        f"{1e3 * computed:.0f} ms"
    )
    rows_of = list[list[str]]()
    for length in options.lengths:
        request = Request.answer(prompt_of(length), 8, mask)
        whole = f"{largest_whole(model, request) / 2**20:.1f}" if length <= options.whole else "-"
        rows_of.append([f"{length}", whole, f"{largest_in_chunks(model, request, 256) / 2**20:.1f}"])
    print("\n" + markdown.table(("prompt", "largest tensor, whole, MiB", "in chunks of 256, MiB"), rows_of))
    return 0


if __name__ == "__main__":
    sys.exit(main())
