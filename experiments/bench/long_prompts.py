"""What caches take of long prompts: ``python -m experiments.bench.long_prompts``.

Forwards of a random model on a CPU: the first of a row, and a later one, which a decode repeats. By prompt length:
seconds of one thread, and what the session keeps, as in bfloat16. ``--shape layer`` is one layer of LLaDA-8B;
``tiny`` has eight features, and counts queries and keys where the layer would take hours. FLOPs are those of
LLaDA-8B, whose 32 layers compute and attend as the mean layer here does. The last line of a cache is the power of the
length with which each figure grows, fitted to all lengths. ``elastic`` drifts in no layer (``gamma=0``).
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from dllm import part
from dllm.cache.base import Cache
from dllm.compose.fitted import Parts
from dllm.contract import ForwardCost
from dllm.contract.canvas import Canvas, Request
from dllm.contract.setting import Sampling
from dllm.eos.none import FullLength
from dllm.loop.denoise import denoise
from dllm.loop.forward import Forward
from dllm.models.ids import Ids
from dllm.models.transformer import Transformer
from dllm.record.cost import CostModel
from experiments.bench.step import MODELS, prompt_of, random_model
from experiments.support import markdown

LLADA = MODELS["llada-8b"]
LAYER = replace(LLADA, layers=1, vocab=1000, mask_id=998, eos_id=999, pad_id=999, max_length=1 << 16)
SHAPES = {
    "layer": LAYER,
    "tiny": replace(LAYER, width=8, heads=1, kv_heads=1, head_dim=8, rotary_dim=8, mlp_width=8),
}
# Options, and the turn that a decode repeats from then on.
CACHES: dict[str, tuple[dict[str, Any], int]] = {
    "none": ({}, 1), "dual": ({}, 1), "elastic": ({"gamma": 0.0}, 1), "sparse_dllm": ({}, 2),
    "sparsed": ({"full_forwards": 2}, 2),
}  # fmt: skip
ANSWER = 32  # tokens, in one block; a forward commits four
HEADS = ("cache", "prompt", "first s", "later s", "first TFLOP", "later TFLOP", "kept MiB a layer")


@dataclass(frozen=True)
class Taken:
    """What the first forward and a later one took."""

    seconds: tuple[float, float]
    flops: tuple[float, float]  # of LLaDA-8B, in 10^12
    kept: float  # MiB a layer of LLaDA-8B, with two bytes a number

    @property
    def figures(self) -> list[float]:
        return [*self.seconds, *self.flops, self.kept]


def taken(model: Transformer, name: str, length: int) -> Taken:
    options, repeated = CACHES[name]
    cache, config, sessions = part("cache", name, **options), model.config, list[Any]()
    parts = Parts(
        part("sampler", "static", steps=ANSWER // 4), part("blocks", "fixed", block_length=ANSWER),
        noted(cache, sessions), FullLength(), Sampling(suppress_mask=False),
    )  # fmt: skip
    forward = Forward.of(model, Ids(config.mask_id or 0, config.eos_id or 0, ()), parts)
    request = Request.answer(prompt_of(length, below=900), ANSWER, config.mask_id or 0)
    seconds, costs = list[float](), list[ForwardCost]()
    with torch.inference_mode():
        running, began = denoise(Canvas.of([request], config.eos_id or 0), forward, parts), time.process_time()
        for turn in islice(running, repeated + 1):
            now = time.process_time()
            seconds.append(now - began)
            costs.append(turn.cost)
            began = time.process_time()
    flops = [flops_of_llada(one) for one in costs]
    return Taken((seconds[0], seconds[-1]), (flops[0], flops[-1]), kept_by(sessions[0], model) / 2**20)


def noted(cache: Cache, sessions: list[Any]) -> Cache:
    """The same cache, whose sessions are noted."""
    start = cache.start

    def noting(*given: Any) -> Any:
        sessions.append(start(*given))
        return sessions[-1]

    cache.start = noting  # type: ignore[method-assign, assignment]
    return cache


def flops_of_llada(cost: ForwardCost) -> float:
    """10^12 FLOPs of LLaDA-8B whose layers all cost what the mean layer does."""
    queries, keys = (one.double().mean(1, keepdim=True) for one in (cost.queries, cost.keys))
    alike = replace(cost, queries=queries, keys=keys, values=torch.zeros_like(queries))
    return float(CostModel(LLADA).flops(alike).sum()) / 1e12


def kept_by(session: Any, model: Transformer) -> float:
    """Bytes that the session keeps for a layer of LLaDA-8B: a number by column and feature counts two, as many times as
    LLaDA is wider; a pattern has one byte for each head and pair of blocks."""
    wider, config = LLADA.width / model.config.width, model.config
    kept = {**vars(session), "counts": ()}  # a number for each pair of blocks
    held = [one for value in kept.values() for one in tree_leaves(getattr(value, "layers", value))]
    held += [one for rows in getattr(session, "kept", ()) for one in rows.layers]
    sizes = {one.data_ptr(): bytes_of(one, wider) for one in held if isinstance(one, Tensor) and one.numel()}
    return sum(sizes.values()) / config.layers


def bytes_of(one: Tensor, wider: float) -> float:
    if one.dtype == torch.bool:
        return one.numel() / one.shape[1] * LLADA.heads
    return 2 * one.numel() * (wider if one.is_floating_point() and one.dim() > 2 else 1)


def power(lengths: Sequence[int], values: Sequence[float]) -> str:
    """The power of the length with which values grow, by least squares of logarithms."""
    if min(values) <= 0 or len(values) < 2:
        return ""
    x, y = ([math.log(one) for one in some] for some in (lengths, values))
    mean = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - mean[0]) * (b - mean[1]) for a, b in zip(x, y, strict=True)) / sum((a - mean[0]) ** 2 for a in x)
    return f"L^{slope:.2f}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--caches", nargs="+", choices=CACHES, default=list(CACHES))
    parser.add_argument("--lengths", nargs="+", type=int, default=[1 << n for n in range(10, 16)])
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model = random_model(SHAPES[options.shape], torch.device("cpu"), torch.float32)
    taken(model, "none", 64)
    print(markdown.head(HEADS), flush=True)
    for cache in options.caches:
        found = list[Taken]()
        for length in options.lengths:
            found.append(one := taken(model, cache, length))
            print(
                markdown.line((f"`{cache}`", f"{length:,}", *(f"{figure:.3g}" for figure in one.figures))), flush=True
            )
        columns = zip(*(one.figures for one in found), strict=True)
        print(markdown.line(("", "grows with", *(power(options.lengths, list(column)) for column in columns))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
