"""Time the turns of a decode beside the least time that the machine needs: ``python -m experiments.bench.step``.

On a CUDA machine: an 8B LLaDA-shaped and a 7B Dream-shaped model in bfloat16, with seeded random weights. Prints
forwards/s, tokens/s, median and 95th percentile of a turn for every cache, batch size and runtime, and the floor that
``dllm.record.cost`` computes from the turn's cost and the machine's measured rates. On a CPU the same for a model of
100 M parameters and shorter texts. ``--plain`` compares the decode without a cache with a plain loop in the style of
the published code, for LLaDA's vocabulary of 126,464: the weights and the tokens are the same.
"""

from __future__ import annotations

import argparse
import copy
import functools
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any

import torch
from torch import Tensor

from dllm import part
from dllm.blocks.base import Blocks
from dllm.common.rowwise import each_tensor
from dllm.compose.fitted import Parts
from dllm.contract import ForwardCost, Turn
from dllm.contract.canvas import Canvas, Request
from dllm.contract.setting import Sampling
from dllm.eos.none import FullLength
from dllm.kernels.dispatch import KERNEL_CHOICES, use_triton
from dllm.kernels.packed import can_pack, pack_weights
from dllm.loop.denoise import TakeTurn, denoise
from dllm.loop.forward import Forward
from dllm.loop.recorded import build_runtime
from dllm.models.attention import has_varlen
from dllm.models.config import ModelConfig
from dllm.models.fused import fuse_products
from dllm.models.ids import Ids
from dllm.models.transformer import Transformer
from dllm.record.cost import CostModel, Machine, measured
from dllm.runtime.runtime import FIXED, RUNTIMES, Network, Runtime
from dllm.samplers.base import Sampler
from experiments.support.scripts import refusing

SMALL = ModelConfig(
    family="llada", width=768, layers=12, heads=12, kv_heads=12, head_dim=64, mlp_width=2304, vocab=126464,
    max_length=8192, eps=1e-5, theta=5e5, mask_id=126336, eos_id=126081, pad_id=126081, rotary_dim=64,
    rope_float32=True,
)  # fmt: skip
MODELS = {
    "small": SMALL,
    "llada-8b": replace(SMALL, width=4096, layers=32, heads=32, kv_heads=32, head_dim=128, mlp_width=12288,
                        rotary_dim=128),
    "dream-7b": replace(SMALL, family="dream", width=3584, layers=28, heads=28, kv_heads=4, head_dim=128,
                        mlp_width=18944, vocab=152064, eps=1e-6, theta=1e6, mask_id=151666, eos_id=151643,
                        pad_id=151643, rotary_dim=128, rope_float32=False, qkv_bias=True, prediction_shift=1),
}  # fmt: skip
WHOLE = ("elastic", "window")  # caches without blocks in their papers


@dataclass(frozen=True)
class Workload:
    """Rows, prompt and answer in tokens, block length, and how many tokens a row commits per turn."""

    batch: int
    prompt: int
    answer: int
    block: int
    per_turn: int


def random_weights(config: ModelConfig, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Transformer:
    """A network whose weights are made on its device: an 8B model never passes through the host."""
    with torch.device("meta"):
        model = Transformer(config).to(dtype).eval().requires_grad_(False)
    model = model.to_empty(device=device)
    noise = torch.Generator(device).manual_seed(seed)
    for name, weight in model.named_parameters():
        weight.data.fill_(1.0) if "norm" in name else weight.data.normal_(std=0.02, generator=noise)
    return model


def random_model(config: ModelConfig, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Transformer:
    """The same with its products fused."""
    model = random_weights(config, device, dtype, seed)
    fuse_products(model)
    return model


def prompt_of(length: int, seed: int = 0, below: int = 50_000) -> list[int]:
    return torch.randint(0, below, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


Runs = tuple[Network, TakeTurn]
KEEP = FullLength()
named: Any = functools.cache(part)  # composing a configuration takes 0.1 s, and a recorded turn belongs to its parts


def parts_for(kv: str, load: Workload) -> tuple[Sampler, Blocks]:
    """The rule and schedule of a workload, made once."""
    blocks = named("blocks", "whole") if kv in WHOLE else named("blocks", "fixed", block_length=load.block)
    return named("sampler", "static", steps=load.answer // load.per_turn), blocks


def decode(
    model: Transformer, kv: str, load: Workload, lag: int | None = None, runs: Runs | None = None,
    rule: Sampler | None = None,
) -> Iterator[Turn]:  # fmt: skip
    """The turns of a decode that commits ``per_turn`` tokens each, the same for every cache, or what ``rule`` commits.

    lag: as ``denoise`` takes it. runs: what runs the model and takes the turns (None: the model itself, turn by turn).
    """
    config = model.config
    sampler, blocks = parts_for(kv, load)
    sampler = rule or sampler
    ids = Ids(config.mask_id or 0, config.eos_id or 0, ())
    parts = Parts(sampler, blocks, named("cache", kv), KEEP, Sampling(suppress_mask=False))
    forward = Forward.of(model, ids, parts, runs and runs[0])
    prompts = (prompt_of(load.prompt, row, min(50_000, config.vocab)) for row in range(load.batch))
    requests = [Request.answer(prompt, load.answer, ids.placeholder) for prompt in prompts]
    with torch.inference_mode():
        canvas = Canvas.of(requests, ids.eos, model.device)
        yield from denoise(canvas, forward, parts, lag, runs and runs[1])


def plain(model: Transformer, prompt: list[int], load: Workload) -> tuple[Tensor, float]:
    """The plain loop: a forward of the whole canvas, logits of every row, a float64 softmax over all of them.

    Returns the tokens, and the closest choice: the least log-ratio of the last confidence that was committed and the
    first that was not (rounding moves them by 1e-5).
    """
    config, closest = model.config, float("inf")
    x = torch.tensor([prompt + [config.mask_id or 0] * load.answer])
    with torch.inference_mode():
        for begin in range(load.prompt, load.prompt + load.answer, load.block):
            end = min(begin + load.block, load.prompt + load.answer)
            for _ in range((end - begin) // load.per_turn):
                logits = model.head(model.encode(x))
                proposal = logits.argmax(-1)
                p = logits.double().softmax(-1)
                confidence = p.gather(-1, proposal.unsqueeze(-1)).squeeze(-1)
                confidence[x != config.mask_id] = -torch.inf
                confidence[:, end:] = -torch.inf
                ranked, order = confidence[0].topk(load.per_turn + 1)
                chosen = order[:-1]
                x[0, chosen] = proposal[0, chosen]
                closest = min(closest, float((ranked[-2] / ranked[-1]).log())) if ranked[-1] > 0 else closest
    return x[0], closest


def against_plain(load: Workload, repeats: int) -> None:
    """Time both loops in turn, ``repeats`` times, so that a busy machine slows both."""
    network = random_model(SMALL, torch.device("cpu"), torch.float32)
    ours = copy.deepcopy(network)
    if can_pack(ours.device, ours.dtype):  # as ``dllm.load`` does
        pack_weights(ours)
    prompt, equal = prompt_of(load.prompt), True
    times: tuple[list[float], list[float]] = [], []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        expected, closest = plain(network, prompt, load)
        between = time.perf_counter()
        *_, last = decode(ours, "none", load)
        ended = time.perf_counter()
        equal &= torch.equal(last.candidates.tokens[0], expected)
        times[0].append(between - began)
        times[1].append(ended - between)
    slow, fast = (statistics.median(some[1:]) for some in times)
    print(f"plain loop {load.answer / slow:7.2f} tokens/s   ours {load.answer / fast:7.2f} tokens/s   "
          f"{slow / fast:.2f}x   same tokens: {equal} (closest choice {closest:.0e} apart)")  # fmt: skip


@dataclass(frozen=True)
class Timing:
    """Of each turn: its seconds, its FLOPs and the bytes that it moves beside the weights, summed over the batch, and
    how many tokens it committed. warm: seconds of the decodes before."""

    times: list[float]
    flops: list[float]
    moved: list[float]
    tokens: list[int]
    warm: float

    def floors(self, account: CostModel, machine: Machine) -> list[float]:
        """The least seconds of each turn."""
        return [account.floor(flops, moved, machine) for flops, moved in zip(self.flops, self.moved, strict=True)]

    @property
    def median(self) -> float:
        return statistics.median(self.times)

    @property
    def late(self) -> float:
        """The 95th percentile."""
        return sorted(self.times)[int(0.95 * (len(self.times) - 1))]


def time_turns(
    model: Transformer, cache: str, load: Workload, limit: int, runtime: Runtime, rule: Sampler | None = None
) -> Timing:
    """The first ``limit`` turns of a decode but one, after others to warm up: these compile and record on the way, and
    the last of them is counted. The very first turn waits until the host has laid out the decode, and is not timed.

    A GPU times its turns by events on its stream: waiting for every turn would hide what a runtime gains by running
    ahead.
    """
    began = time.perf_counter()
    sampler, blocks = parts_for(cache, load)
    runs = build_runtime(runtime, model, Parts(rule or sampler, blocks, named("cache", cache), KEEP))

    def first(turns: int) -> Iterator[Turn]:
        return islice(decode(model, cache, load, runtime.reads, runs, rule), turns)

    if runtime.name in FIXED:
        deque(first(limit), 0)
    costs, tokens = list[ForwardCost](), list[Tensor]()
    for turn in first(limit):
        costs.append(each_tensor(torch.clone, turn.cost))  # it lasts until the next turn
        tokens.append(turn.step.commit.sum())
    counted, warm = [int(one) for one in tokens[1:]], time.perf_counter() - began
    marks = [Mark(model.device) for _ in first(limit)]
    times, account = [begin.until(end) for begin, end in pairwise(marks)], CostModel(model.config, model.dtype.itemsize)
    flops, moved = ([float(count(one).sum()) for one in costs[1:]] for count in (account.flops, account.bytes))
    return Timing(times, flops, moved, counted, warm)


def measure(model: Transformer, cache: str, load: Workload, machine: Machine, limit: int, runtime: Runtime) -> str:
    """One line of the table."""
    timing = time_turns(model, cache, load, limit, runtime)
    floors, total = timing.floors(CostModel(model.config, model.dtype.itemsize), machine), sum(timing.times)
    rate = len(timing.times) / total
    return (f"{cache:8} {runtime.name:9} {load.batch:5} {rate:10.2f} {rate * load.batch * load.per_turn:10.1f} "
            f"{1000 * timing.median:10.2f} {1000 * timing.late:10.2f} {1000 * statistics.median(floors):10.2f} "
            f"{100 * sum(floors) / total:8.1f} %")  # fmt: skip


class Mark:
    """A moment on the device's clock."""

    def __init__(self, device: torch.device) -> None:
        self.event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        self.now = time.perf_counter()
        if self.event is not None:
            self.event.record()

    def until(self, other: Mark) -> float:
        """Seconds to a later moment. Waits for it."""
        if self.event is None or other.event is None:
            return other.now - self.now
        other.event.synchronize()
        return self.event.elapsed_time(other.event) / 1000


def runtimes(chosen: Sequence[str] | None, cache: str, gpu: bool) -> Iterator[Runtime]:
    """Those of ``chosen`` that a cache supports. None: all on a GPU, on a CPU those that compile nothing."""
    for name in chosen or (RUNTIMES[1:] if gpu else ("eager", "static")):
        traits = named("cache", cache).traits
        if name == "eager" or traits.bounded_shapes:
            yield Runtime(name, int(name != "eager" and traits.bounds_late))


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plain", action="store_true", help="against the plain loop, on the CPU")
    parser.add_argument("--models", nargs="+", choices=MODELS, help="default: small on a CPU, the others on a GPU")
    parser.add_argument("--caches", nargs="+", default=["none", "prefix", "dual", "elastic", "window"])
    parser.add_argument("--batches", type=int, nargs="+", default=None, help="default: 1 4 16 on a GPU, 1 2 on a CPU")
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES, help="default: all on a GPU, eager static on a CPU")
    parser.add_argument("--kernels", nargs="+", choices=KERNEL_CHOICES, default=["auto"])
    parser.add_argument("--prompt", type=int, default=None)
    parser.add_argument("--answer", type=int, default=None)
    parser.add_argument("--per-turn", type=int, default=1)
    parser.add_argument("--turns", type=int, default=None, help="turns to time in each line")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    if options.answer is not None and options.answer % options.per_turn:
        parser.error("--per-turn must divide --answer")
    torch.set_num_threads(options.threads)
    gpu = torch.cuda.is_available() and not options.plain
    device, dtype = (torch.device("cuda"), torch.bfloat16) if gpu else (torch.device("cpu"), torch.float32)
    prompt, answer = options.prompt or (768 if gpu else 64), options.answer or (256 if gpu else 64)
    name = torch.cuda.get_device_name() if gpu else f"CPU, {options.threads} threads"
    print(f"{name}, {str(dtype)[6:]}, prompt {prompt}, answer {answer}, block 32, load {os.getloadavg()[0]:.1f}")
    if options.plain:
        against_plain(Workload(1, prompt, answer, 32, options.per_turn), options.repeats)
        return 0
    machine = measured(device, dtype)
    print(f"measured ceiling: {machine.flops / 1e12:.2f} TFLOP/s, {machine.bytes / 1e9:.0f} GB/s")
    for model_name in options.models or (["llada-8b", "dream-7b"] if gpu else ["small"]):
        model = random_model(MODELS[model_name], device, dtype)
        if can_pack(device, dtype) and "compile" not in (options.runtimes or ()):
            pack_weights(model)
        for kernels in options.kernels:
            model.use_kernels(use_triton(kernels, device), has_varlen(device, dtype))
            print(f"\n{model_name}, kernels={kernels}\n"
                  f"cache    runtime   batch forwards/s   tokens/s     p50 ms     p95 ms "
                  f"  floor ms  floor/time")  # fmt: skip
            for cache in options.caches:
                for batch in options.batches or ([1, 4, 16] if gpu else [1, 2]):
                    load = Workload(batch, prompt, answer, 32, options.per_turn)
                    for runtime in runtimes(options.runtimes, cache, gpu):
                        limit = options.turns or (64 if gpu else 34)
                        print(measure(model, cache, load, machine, limit, runtime), flush=True)
        del model
    return 0


if __name__ == "__main__":
    sys.exit(main())
