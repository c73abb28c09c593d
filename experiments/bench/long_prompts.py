"""What caches take of long prompts: ``python -m experiments.bench.long_prompts``.

A random model on one thread of a CPU. By prompt length: seconds of the CPU and FLOPs of a row's first forward (with the
chunks of its prompt) and of a later one, which a decode repeats; the most memory that its tensors took, the largest of
them, and what the session keeps, as in bfloat16. ``--whole`` decodes to the end: seconds of all forwards, their number
and FLOPs. ``--sizes`` computes nothing of large tensors: FLOPs and memory, in seconds instead of hours.

``--shape layer`` is one layer of LLaDA-8B, ``mini`` mini-llada; ``tiny`` has eight features: what has an entry for each
pair of columns outgrows all else there, and it counts queries and keys. FLOPs are those of LLaDA-8B, whose 32 layers
compute and attend as the mean layer here does. The last line of a case is the power of the length with which each
figure grows, fitted to all lengths. ``elastic`` drifts in no layer (``gamma=0``).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from dllm import part
from dllm.compose.fitted import Parts
from dllm.contract import ForwardCost, Turn
from dllm.contract.canvas import Request
from dllm.contract.setting import Sampling
from dllm.loop.runner import Runner
from dllm.loop.runtime.runtime import Runtime
from dllm.models.bundle import Model
from dllm.models.network.attention_order import FULL, AttentionKind
from dllm.models.network.visibility import BlockCausal
from dllm.parts.cache.base import Cache
from dllm.parts.eos.none import FullLength
from dllm.record.cost import CostModel
from experiments.bench.step import MODELS, bundled, prompt_of, random_model
from experiments.support import markdown
from experiments.support.tensor_sizes import TensorSizes

ANSWER = 32  # tokens, in one block; a forward commits four
LLADA = MODELS["llada-8b"]
LAYER = replace(LLADA, layers=1, vocab=1000, mask_id=998, eos_id=999, pad_id=999, max_length=1 << 17)
SHAPES = {
    "layer": LAYER,
    "mini": replace(
        LAYER, layers=4, width=128, heads=4, kv_heads=4, head_dim=32, rotary_dim=32, mlp_width=384, vocab=5532
    ),
    "tiny": replace(LAYER, width=8, heads=1, kv_heads=1, head_dim=8, rotary_dim=8, mlp_width=8),
}
CAUSAL: AttentionKind = BlockCausal(ANSWER)


@dataclass(frozen=True)
class Case:
    """A cache on a model of a kind."""

    cache: str  # its name
    later: int  # the turn that a decode repeats from then on, counted from 0
    kind: AttentionKind = FULL  # the model's attention
    options: tuple[tuple[str, Any], ...] = ()  # of the cache


CASES = {
    "none": Case("none", 1),
    "dual": Case("dual", 1),
    "elastic": Case("elastic", 1, options=(("gamma", 0.0),)),
    "sparse_dllm": Case("sparse_dllm", 2),
    "sparsed": Case("sparsed", 2, options=(("full_forwards", 2),)),
    "none, block-causal": Case("none", 1, CAUSAL),
    "finished, block-causal": Case("finished", 1, CAUSAL),
}
BY_FORWARD = ("first s", "later s", "first TFLOP", "later TFLOP")
OF_ALL = ("all s", "last s", "forwards", "all TFLOP")
MEMORY = ("most MiB", "largest MiB", "kept MiB a layer")


@dataclass(frozen=True)
class Taken:
    """What the first forward and a later one took."""

    seconds: tuple[float, float]
    flops: tuple[float, float]  # of LLaDA-8B, in 10^12
    most: float  # MiB of tensors that were alive at once, in float32, besides the weights
    largest: float  # MiB of the largest one
    kept: float  # MiB a layer of LLaDA-8B, with two bytes a number

    @property
    def figures(self) -> list[float]:
        return [*self.seconds, *self.flops, self.most, self.largest, self.kept]


def model_of(shape: str, kind: AttentionKind) -> Model:
    config = replace(SHAPES[shape], attention=kind)
    return bundled(random_model(config, torch.device("cpu"), torch.float32))


def taken(model: Model, case: Case, length: int, whole: bool = False, computed: bool = True) -> Taken:
    """Of a prompt of ``length`` tokens. whole: of all forwards; ``flops`` then are their number and what all took."""
    cache, sessions = part("cache", case.cache, **dict(case.options)), list[Any]()
    parts = Parts(
        part("sampler", "static", steps=ANSWER // 4),
        part("blocks", "fixed", block_length=ANSWER),
        noted(cache, sessions),
        FullLength(),
        Sampling(suppress_mask=False),
    )
    runner = Runner.of(model, parts, Runtime("eager"))
    request = Request.answer(prompt_of(length, below=900), ANSWER, model.ids.placeholder)
    seconds, turns, mib = list[float](), list[Turn](), 2.0**20
    with TensorSizes(computed) as sizes:
        running, began = runner.stream([request], 1, lambda place, joined: None), time.process_time()
        for turn in islice(running, None if whole else case.later + 1):
            now = time.process_time()
            seconds.append(now - began)
            turns = [*turns[:1], turn]
            began = time.process_time()
    spent = spent_by_llada(turns[0]), spent_by_llada(turns[-1])
    flops = (float(len(seconds)), spent[1]) if whole else (spent[0], flops_of_llada(turns[-1].cost))
    clock, kept = (sum(seconds) if whole else seconds[0], seconds[-1]), kept_by(sessions[0], model.config.width)
    return Taken(clock, flops, sizes.most / mib, sizes.largest / mib, kept / mib)


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


def spent_by_llada(turn: Turn) -> float:
    """The same of all that a row has computed, the chunks of its prompt included."""
    spent = turn.ledger.spent.mean(2, keepdim=True)
    alike = replace(turn.ledger, spent=spent, values=torch.zeros_like(spent[:, 0]))
    return float(CostModel(LLADA).spent_flops(alike).sum()) / 1e12


def kept_by(session: Any, width: int) -> float:
    """Bytes that the session of a model of this ``width`` keeps for a layer of LLaDA-8B: a number by column and feature
    counts two, as many times as LLaDA is wider; a pattern has one byte for each head and pair of blocks."""
    wider, kept = LLADA.width / width, session.kept
    names = [name for name in kept.besides if name != "counts"]  # counts: a number for each pair of blocks
    held = tree_leaves([kept.stores, *(kept[name].layers for name in names)])
    sizes = {one.data_ptr(): bytes_of(one, wider) for one in held if isinstance(one, Tensor) and one.numel()}
    return sum(sizes.values()) / int(session.config.layers)


def bytes_of(one: Tensor, wider: float) -> float:
    if one.dtype == torch.bool:
        return one.numel() / one.shape[1] * LLADA.heads
    return 2 * one.numel() * (wider if one.is_floating_point() and one.dim() > 2 else 1)


def power(lengths: Sequence[int], values: Sequence[float]) -> str:
    """The power of the length with which values grow, by least squares of logarithms."""
    if min(values) <= 0 or len(values) < 2:
        return ""
    return f"L^{np.polyfit(np.log(lengths), np.log(values), 1)[0]:.2f}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--caches", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--lengths", nargs="+", type=int, default=[1 << n for n in range(10, 16)])
    parser.add_argument("--whole", action="store_true", help="decode to the end")
    parser.add_argument("--sizes", action="store_true", help="FLOPs and memory alone, nothing computed")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    heads = *(OF_ALL if options.whole else BY_FORWARD), *MEMORY
    # Without numbers seconds say nothing, and nothing is kept of a row that has ended.
    shown = slice(2 if options.sizes else 0, -1 if options.whole else None)
    print(markdown.head(("cache", "prompt", *heads[shown])), flush=True)
    for name in options.caches:
        case, found = CASES[name], list[list[float]]()
        model = model_of(options.shape, case.kind)
        taken(model, case, 64)  # loads all code
        for length in options.lengths:
            found.append(taken(model, case, length, options.whole, not options.sizes).figures[shown])
            cells = f"`{name}`", f"{length:,}", *(f"{float(f'{figure:.3g}'):,g}" for figure in found[-1])
            print(markdown.line(cells), flush=True)
        columns = zip(*found, strict=True)
        print(markdown.line(("", "grows with", *(power(options.lengths, list(column)) for column in columns))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
