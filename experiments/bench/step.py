"""Decode random models turn by turn, and time the turns; alone, beside a plain loop in the style of the published code:
``python -m experiments.bench.step``.

The plain loop computes the whole canvas and the logits of every row in each forward. Both decode without a cache, with
a random model of 100 M parameters and LLaDA's vocabulary of 126,464, on a CPU: weights and tokens are the same.
``experiments.gpu_hour`` times the turns on a GPU.
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
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dllm import part
from dllm.common.rowwise import each_tensor
from dllm.compose.fitted import Parts
from dllm.contract import ForwardCost, Turn
from dllm.contract.canvas import Canvas, Request
from dllm.contract.setting import Sampling
from dllm.kernels.packed import can_pack, pack_weights
from dllm.laws.decodes import ids_of
from dllm.loop.denoise import TakeTurn, denoise
from dllm.loop.forward import Forward
from dllm.loop.recorded import build_runtime
from dllm.loop.runtime.runtime import FIXED, Network, Runtime
from dllm.models.bundle import Model
from dllm.models.config import ModelConfig
from dllm.models.network.attention import has_varlen
from dllm.models.network.fused import fuse_products
from dllm.models.network.transformer import Transformer
from dllm.models.weights.quantize import quantize_part
from dllm.parts.blocks.base import Blocks
from dllm.parts.eos.none import FullLength
from dllm.parts.samplers.base import Sampler
from dllm.record.cost import CostModel, Machine
from experiments.bench.random_checkpoint import SHAPES
from experiments.support.scripts import refusing

SMALL = ModelConfig(
    family="llada", width=768, layers=12, heads=12, kv_heads=12, head_dim=64, mlp_width=2304, vocab=126464,
    max_length=8192, eps=1e-5, theta=5e5, mask_id=126336, eos_id=126081, pad_id=126081, rotary_dim=64,
    rope_float32=True,
)  # fmt: skip
TINY = replace(
    SMALL, width=64, layers=2, heads=4, kv_heads=4, head_dim=16, mlp_width=96, vocab=300, mask_id=298, eos_id=299,
    pad_id=299, rotary_dim=16,
)  # fmt: skip
MODELS = {"small": SMALL} | {
    name: ModelConfig.from_published(SHAPES[name]) for name in ("llada-8b", "dream-7b", "llada2-mini", "llada2-flash")
}
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


def random_narrow(config: ModelConfig, device: torch.device, kind: str, triton: bool) -> Transformer:
    """The same with weights in few bits, one layer after the other: the rest of a model that fits only so has no
    memory yet."""
    with torch.device("meta"):
        model = Transformer(config).to(torch.bfloat16).eval().requires_grad_(False)
    noise = torch.Generator(device).manual_seed(0)
    for piece in (*model.layers, *(one for name, one in model.named_children() if name != "layers")):
        piece.to_empty(device=device)
        for weight in piece.parameters():
            weight.data.fill_(1.0) if weight.dim() == 1 else weight.data.normal_(std=0.02, generator=noise)
        fuse_products(piece)
        quantize_part(piece, kind, triton)
    model.use_kernels(triton, has_varlen(device, torch.bfloat16))
    return model


def random_model(config: ModelConfig, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Transformer:
    """The same with its products fused."""
    model = random_weights(config, device, dtype, seed)
    fuse_products(model)
    return model


def as_loaded(model: Transformer) -> Transformer:
    """The model, its weights packed where ``dllm.load`` packs them."""
    if can_pack(model.device, model.dtype):
        pack_weights(model)
    return model


def bundled(model: Transformer, name: str = "random") -> Model:
    """A network without a tokenizer as ``Decoder`` and servers take it."""
    return Model(model, model.config, None, ids_of(model.config), name, Path("random"))


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
    model: Transformer,
    kv: str,
    load: Workload,
    lag: int | None = None,
    runs: Runs | None = None,
    rule: Sampler | None = None,
    prompts: Sequence[list[int]] | None = None,
) -> Iterator[Turn]:
    """The turns of a decode that commits ``per_turn`` tokens each, the same for every cache, or what ``rule`` commits.

    lag: as ``denoise`` takes it. runs: what runs the model and takes the turns (None: the model itself, turn by turn).
    prompts: token ids (None: random ones); their canvas is padded to a multiple of 64, so that shapes repeat.
    """
    config = model.config
    sampler, blocks = parts_for(kv, load)
    sampler, step = rule or sampler, 1 if prompts is None else 64
    ids = ids_of(config)
    parts = Parts(sampler, blocks, named("cache", kv), KEEP, Sampling(suppress_mask=False))
    forward = Forward.of(model, ids, parts, runs and runs[0])
    prompts = prompts or [prompt_of(load.prompt, row, min(50_000, config.vocab)) for row in range(load.batch)]
    requests = [Request.answer(prompt, load.answer, ids.placeholder) for prompt in prompts]
    with torch.inference_mode():
        canvas = Canvas.of(requests, ids.eos, model.device, step=step)
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
    ours = as_loaded(copy.deepcopy(network))
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
    print(
        f"plain loop {load.answer / slow:7.2f} tokens/s   ours {load.answer / fast:7.2f} tokens/s   "
        f"{slow / fast:.2f}x   same tokens: {equal} (closest choice {closest:.0e} apart)"
    )


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


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("prompt", 64), ("answer", 64), ("per-turn", 1), ("repeats", 3), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args(arguments)
    if options.answer % options.per_turn:
        parser.error("--per-turn must divide --answer")
    torch.set_num_threads(options.threads)
    print(
        f"{options.threads} threads, prompt {options.prompt}, answer {options.answer}, blocks of 32, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    against_plain(Workload(1, options.prompt, options.answer, 32, options.per_turn), options.repeats)
    return 0


if __name__ == "__main__":
    sys.exit(main())
