"""Measure how much time every cache saves, beside the FLOPs it saves: ``python -m experiments.bench.cache``.

The model is LLaDA-shaped with seeded random weights (width 768, 12 layers, MLP 2304, 32,768 tokens, float32). The
prompt has 512 tokens, and every step commits one. The first, a middle and the last block of the answer are decoded and
timed, with all before them already decided. The time of the others is interpolated, for each kind of forward (refresh
or reuse). ``cache=none`` is timed beside every cache, since other work on the machine slows both. With one thread the
time is that of the CPU, which other work slows less.

Prints tokens/s, speed-up, FLOP ratio and their quotient, the share of the saving that is reached; peak memory over
1.2 x (model + buffers); threads and load.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dllm import part
from dllm.compose.fitted import Parts
from dllm.contract import Turn
from dllm.contract.canvas import Canvas, Request
from dllm.laws.decodes import ids_of
from dllm.loop.denoise import denoise
from dllm.loop.forward import Forward
from dllm.models.config import ModelConfig
from dllm.models.network.transformer import Transformer
from dllm.parts.cache.base import Cache
from dllm.parts.eos.none import FullLength
from dllm.parts.samplers.base import Sampler
from dllm.record.cost import CostModel
from experiments.bench.step import as_loaded
from experiments.support import markdown
from experiments.support.scripts import refusing

PROMPT, BLOCK = 512, 32
CONFIG = ModelConfig(
    family="llada", width=768, layers=12, heads=12, kv_heads=12, head_dim=64, mlp_width=2304, vocab=32768,
    max_length=8192, eps=1e-5, theta=5e5, mask_id=32767, eos_id=32766, pad_id=32766, rotary_dim=64,
)  # fmt: skip
POLICIES = ("none", "prefix", "dual", "dkv", "dkv_greedy", "recap", "dllm_cache", "d2cache", "elastic", "window")
# The others have no blocks in their papers.
BLOCKWISE = ("prefix", "dual", "dkv", "dkv_greedy", "recap", "dllm_cache", "d2cache")
BY_WEIGHTS = ("d2cache", "elastic")  # what they compute depends on what the model attends to
BY_LAYER = ("dllm_cache",)  # layers compute rows of their own
# Timed at each place; of the others a block.
MAX_FORWARDS = {"none": 2, "prefix": 5, "recap": 5, "dkv": 12, "dkv_greedy": 5, "dllm_cache": 9}


@dataclass(frozen=True)
class Sample:
    """One forward: the position of the answer it began at, whether it computed the whole canvas, FLOPs and seconds."""

    place: int
    full: bool
    flops: float
    seconds: float


def random_model(config: ModelConfig, seed: int = 0) -> Transformer:
    torch.manual_seed(seed)
    with torch.device("cpu"):
        model = Transformer(config).eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.02)
    return as_loaded(model)


def parameters(config: ModelConfig) -> int:
    """The number of a model's parameters. Packed weights are none, so a model without storage is counted."""
    with torch.device("meta"):
        return sum(p.numel() for p in Transformer(config).parameters())


def request(answer: int, done: int, vocab: int) -> Request:
    """A prompt and an answer whose first ``done`` tokens are committed."""
    tokens = torch.randint(0, vocab - 2, (PROMPT + done,), generator=torch.Generator().manual_seed(1)).tolist()
    rest = answer - done
    return Request([*tokens, *[vocab - 1] * rest], [False] * len(tokens) + [True] * rest, start=PROMPT)


def parts_of(name: str, **options: Any) -> tuple[Sampler, Any, Cache]:
    sampler = part("sampler", "order" if name == "dkv_greedy" else "static")
    blocks = part("blocks", "fixed", block_length=BLOCK) if name in (*BLOCKWISE, "none") else part("blocks", "whole")
    return sampler, blocks, part("cache", name, **options)


def forwards(model: Transformer, name: str, answer: int, done: int, **options: Any) -> Iterator[Sample]:
    """Decode from position ``done`` on, and time every forward with the step that follows it."""
    sampler, blocks, cache = parts_of(name, **options)
    config, cost, ids = model.config, CostModel(model.config, 4), ids_of(model.config)
    parts = Parts(sampler, blocks, cache, FullLength())
    canvas = Canvas.of([request(answer, done, config.vocab)], ids.eos)
    loop = denoise(canvas, Forward.of(model, ids, parts), parts)
    place = done
    while True:
        with torch.inference_mode():
            began = clock()
            turn = next(loop, None)
            seconds = clock() - began
        if turn is None:
            return
        full = bool(turn.cost.refreshed[:, -1].any()) or turn.view.blocks.turn.item() == 1 or name == "none"
        flops = float(cost.flops(turn.cost))
        if name == "d2cache":
            flops += rollout(turn, config)
        elif name == "elastic" and not full:
            flops += drift(turn, config)
        yield Sample(place, full, flops, seconds)
        place += int(turn.step.commit.sum())


def clock() -> float:
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def drift(turn: Turn, config: ModelConfig) -> float:
    """FLOPs of Elastic-Cache's own test in a reuse forward, which the general account leaves out: the old scores of the
    tracked rows. The new ones, and those of the window, are attention's own."""
    window = min(16, int(turn.canvas.masked.sum()))
    tracked = int(turn.cost.queries[0, 0]) - window - 1  # one position was committed by the last forward
    keys, width = int(turn.cost.keys[0, 0]), config.heads * config.head_dim
    return config.layers * 2 * width * keys * tracked


def rollout(turn: Turn, config: ModelConfig) -> float:
    """FLOPs of d2Cache's attention rollout: in each layer a product with the rows' weights, averaged over heads."""
    return config.layers * 2 * float((turn.cost.queries * turn.cost.keys).sum())


def places(answer: int) -> list[int]:
    """The begin of the first, a middle and the last block."""
    return [0, answer // 2 // BLOCK * BLOCK, answer - BLOCK]


def measure(model: Transformer, name: str, answer: int) -> tuple[list[Sample], list[Sample]]:
    """Forwards of a cache, and at the same places and time some of ``cache=none``: a busy machine slows both."""
    samples: dict[str, list[Sample]] = {name: [], "none": []}
    for done in places(answer):
        for other in dict.fromkeys((name, "none")):
            count = min(MAX_FORWARDS.get(other, BLOCK + 1), answer - done)
            samples[other] += islice(forwards(model, other, answer, done), count)
    return samples[name], samples["none"]


def plan(name: str, answer: int, samples: Sequence[Sample]) -> list[tuple[int, bool, float]]:
    """Place, kind and FLOPs of every forward of a whole decode.

    What most caches compute does not depend on the weights, so a tiny model under the same cache tells. Of the others
    the forwards are those that were timed.
    """
    if name in BY_WEIGHTS:
        reuse = [(s.place, s.flops) for s in samples if not s.full]
        first = next(s.flops for s in samples if s.full)
        return [(0, True, first), *((place, False, at(sorted(reuse), place)) for place in range(1, answer))]
    tiny = replace(
        CONFIG,
        width=16,
        layers=CONFIG.layers if name in BY_LAYER else 1,
        heads=1,
        kv_heads=1,
        head_dim=16,
        mlp_width=16,
        rotary_dim=16,
        vocab=64,
        mask_id=63,
        eos_id=62,
        pad_id=62,
    )
    model, cost, out, place = random_model(tiny), CostModel(CONFIG, 4), [], 0
    parts = Parts(*parts_of(name), FullLength())
    forward = Forward.of(model, ids_of(tiny), parts)
    with torch.inference_mode():
        for turn in denoise(Canvas.of([request(answer, 0, 64)], 62), forward, parts):
            full = bool(turn.cost.refreshed[:, -1].any()) or turn.view.blocks.turn.item() == 1 or name == "none"
            out.append((place, full, float(cost.flops(turn.cost))))
            place += int(turn.step.commit.sum())
    return out


def integrate(samples: Sequence[Sample], whole: Sequence[tuple[int, bool, float]]) -> float:
    """Seconds of the whole decode. The rate (seconds per FLOP) of each kind is linear between the measured places."""
    rates: dict[bool, list[tuple[float, float]]] = {}
    for kind in (True, False):
        by_place: dict[int, list[Sample]] = {}
        for sample in samples:
            if sample.full is kind:
                by_place.setdefault(sample.place // BLOCK, []).append(sample)
        rates[kind] = [
            (statistics.mean(s.place for s in group), statistics.median(s.seconds / s.flops for s in group))
            for group in by_place.values()
        ]
    return sum(flops * at(rates[full] or rates[not full], place) for place, full, flops in whole)


def at(points: Sequence[tuple[float, float]], place: float) -> float:
    """Linear interpolation between the points, constant outside."""
    return float(np.interp(place, [x for x, _ in points], [y for _, y in points]))


def peak(model: Transformer, name: str, answer: int) -> tuple[float, float]:
    """Peak resident bytes beyond those before the first forward, and the bytes of the buffers. Linux only."""
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    for _ in islice(forwards(model, name, answer, answer - BLOCK), 3):
        pass
    rows = PROMPT + answer
    c = model.config
    buffers = 0 if name == "none" else 2 * c.layers * rows * c.kv_width * 4
    # elastic: inputs and queries of each layer; dllm_cache: what its attention and its MLP gave
    buffers += 2 * c.layers * rows * c.width * 4 if name in ("elastic", "dllm_cache") else 0
    return status("VmHWM") - before, buffers


def status(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * float(next(line for line in lines if line.startswith(key)).split()[1])


HEADS = ("cache, answer", "tokens/s", "speed-up", "FLOPs saved", "of the saving reached", "memory")


def row(model: Transformer, name: str, answer: int) -> list[str]:
    """The cells of a cache. The model must have run once, so that no first-time costs count."""
    samples, beside = measure(model, name, answer)
    whole, plain, weights = plan(name, answer, samples), plan("none", answer, ()), 4 * parameters(CONFIG)
    seconds, flops = integrate(samples, whole), sum(entry[2] for entry in whole)
    extra, buffers = peak(model, name, answer)
    ratio, speed = sum(entry[2] for entry in plain) / flops, integrate(beside, plain) / seconds
    memory = (weights + extra) / (1.2 * (weights + buffers))
    shares = f"{speed:.1f}x", f"{ratio:.1f}x", f"{100 * speed / ratio:.0f} %"
    return [f"{name}, {answer}", f"{answer / seconds:.2f}", *shares, f"{memory:.2f}"]


def flatness(model: Transformer, answers: Sequence[int]) -> Iterator[str]:
    """Window: seconds of a reuse forward early in answers of growing length, and seconds per FLOP along the longest."""
    longest = max(answers, default=0)
    later = (longest // 4, longest // 2, 3 * longest // 4, longest - 2 * BLOCK)
    for answer, done in (*((answer, 0) for answer in answers), *((longest, done) for done in later if longest)):
        samples = [s for s in islice(forwards(model, "window", answer, done), 2 * BLOCK) if not s.full]
        step = 1e3 * statistics.median(s.seconds for s in samples)
        rate = 1e15 * statistics.median(s.seconds / s.flops for s in samples)
        yield f"window, answer {answer}, at {done}: {step:.1f} ms a step, {rate:.1f} ns per MFLOP"


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--caches", nargs="+", default=list(POLICIES), choices=POLICIES, metavar="CACHE")
    parser.add_argument("--window", type=int, nargs="*", default=[128, 256, 512, 1024, 2048])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    model = random_model(CONFIG)
    load = os.getloadavg()[0]
    size = parameters(CONFIG) / 1e6
    print(f"{size:.0f} M parameters, {options.threads} threads, load {load:.1f}, torch {torch.__version__}")
    for _ in islice(forwards(model, "dual", 256, 0), 2):
        pass
    print(markdown.head(HEADS))
    for answer in options.answers:
        for name in options.caches:
            print(markdown.line(row(model, name, answer)), flush=True)
    for line in flatness(model, options.window):
        print(line)
    print(f"load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
