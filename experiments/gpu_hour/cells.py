"""Which decodes are timed, and what each will take, by arithmetic.

The product of all axes (2 models x 5 caches x 4 batches x 5 runtimes x 2 lags x 3 rules x 4 kinds of weights) would be
4,800 cells. So one or two axes vary at a time, around one cell: LLaDA-8B, dual, batch 1, cudagraph, lag 1, one token a
turn, bfloat16. Which axes vary together: caches with batches (what scales), runtimes with lags (what the host costs),
rules with caches (what a decode gains in tokens), weights with batches (where reading them is the limit).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import ceil

import torch

from dllm.contract import ForwardCost
from dllm.models.config import ModelConfig
from dllm.models.quantize import QUANTIZATIONS
from dllm.record.cost import CostModel, Machine
from dllm.runtime.runtime import COMPILED, FIXED, RECORDED
from experiments.bench.step import MODELS, SMALL, Workload, named

TINY = replace(SMALL, width=64, layers=2, heads=4, kv_heads=4, head_dim=16, mlp_width=96, vocab=300, mask_id=298,
               eos_id=299, pad_id=299, rotary_dim=16)  # fmt: skip
CONFIGS: dict[str, ModelConfig] = {**MODELS, "tiny": TINY}
PROMPT, ANSWER, BLOCK = 768, 256, 32
EXPECTED = Machine("H100 80 GB, reached rates", 600e12, 3.0e12)
REACHED = 0.6  # of the floor, cautiously
HOST = {"eager": 0.015, "static": 0.015, "compile": 0.008}  # seconds a turn on the host where nothing is recorded
COMPILE = 40.0  # seconds: one layer, at two widths, and once more with the width as a variable
RECORD = 1.5  # seconds: some ten recordings, and our kernels' first launches
BUILD = 4.0  # seconds: 8 billion random numbers on the device
LONG = 12.0  # seconds
ROWS = {"elastic": 0.5, "window": 0.25}  # rows of the answer that a turn computes, roughly


@dataclass(frozen=True)
class Cell:
    """One decode to time. rule: ``fixed`` (one token a turn), ``adaptive`` (a threshold of 0.9; with random weights one
    token a turn, too, at the price of the rule) or ``recorded`` (a recorded trace is followed). weights: ``bfloat16``
    or a kind of ``model.quantize``."""

    model: str = "llada-8b"
    cache: str = "dual"
    batch: int = 1
    runtime: str = "cudagraph"
    lag: int = 1
    rule: str = "fixed"
    weights: str = "bfloat16"
    prompt: int = PROMPT
    answer: int = ANSWER
    block: int = BLOCK

    @property
    def name(self) -> str:
        lag = "" if self.runtime == "eager" else f" lag {self.lag}"
        return f"{self.model} {self.weights} {self.cache} batch {self.batch} {self.runtime}{lag} {self.rule}"

    @property
    def load(self) -> Workload:
        return Workload(self.batch, self.prompt, self.answer, self.block, 1)

    @property
    def turns(self) -> int:
        """How many turns are timed: two blocks, fewer where a turn takes long."""
        usual = 2 * self.block + 2
        return max(min(usual, 8), min(usual, ceil(4.0 / self.turn_seconds)))

    @property
    def turn_seconds(self) -> float:
        """What a turn takes on an H100, roughly: its floor and the share of it that we expect, or the host's time."""
        answer, length = self.answer, self.prompt + self.answer
        rows = {"none": length, "dual": self.block, "prefix": (answer + self.block) / 2}.get(
            self.cache, ROWS.get(self.cache, 1.0) * answer)  # fmt: skip
        floor = floor_of(CONFIGS[self.model], self.batch, rows, length, self.block)
        if self.cache in ("prefix", "dual"):
            floor += floor_of(CONFIGS[self.model], self.batch, length, length, self.block) / self.block
        return max(floor / REACHED, HOST.get(self.runtime, 0.0))

    @property
    def seconds(self) -> float:
        """What the cell takes: it decodes twice, and once more where that compiles or records."""
        passes = 3 if self.runtime in FIXED else 2
        once = COMPILE * (self.runtime in COMPILED) + RECORD * (self.runtime in RECORDED) + 0.5
        return passes * self.turns * self.turn_seconds + once


def floor_of(config: ModelConfig, batch: int, rows: float, keys: float, scored: float) -> float:
    """The least seconds of a turn that computes ``rows`` of every request, on the machine that we plan for."""
    one = torch.tensor([[float(rows)]])
    cost = ForwardCost(one, torch.full_like(one, keys), one, one, torch.tensor([float(min(scored, rows))]))
    account = CostModel(config)
    return account.floor(batch * float(account.flops(cost)), batch * float(account.bytes(cost)), EXPECTED)


BASE = Cell()
STATIC_CACHES = ("none", "prefix", "dual", "window")
UNTIMED = ("vicinity", "streaming", "delayed", "dpad")  # they are recorded, and were not timed on 2026-11-26
NEVER_RECORDED = ("dkv", "dkv_prefill", "flash_dllm", "d2cache", "recap", "entropy", "sliding")  # before 2026-11-27


def grid() -> list[Cell]:
    """All cells, each once. What was never measured comes first, and what takes long last, so that a short loan decides
    most; between these lines, those of one model and its weights stand side by side."""
    rest = sorted([*llada(), *dream(), *quantised()], key=lambda cell: cell.seconds > LONG)
    return list(dict.fromkeys(map(read_in_time, [*unmeasured(), *rest])))


def read_in_time(cell: Cell) -> Cell:
    """The cell, with lag 0 where the host must read every report at once."""
    return cell if named("cache", cell.cache).traits.bounds_late else replace(cell, lag=0)


def unmeasured() -> Iterator[Cell]:
    """A line to compare with, then every cache that was never timed and narrow weights."""
    yield from (BASE, replace(BASE, runtime="eager", lag=0))
    yield replace(BASE, batch=16, rule="recorded")
    yield from (replace(BASE, cache=cache) for cache in UNTIMED)
    yield from (replace(BASE, cache=cache) for cache in NEVER_RECORDED)
    yield replace(BASE, cache="dllm_cache", runtime="eager", lag=0)
    yield from quantised()


def llada() -> Iterator[Cell]:
    yield from (replace(BASE, runtime=name, lag=lag) for name, lag in (
        ("cudagraph", 1), ("cudagraph", 0), ("eager", 0), ("static", 1), ("static", 0), ("compile", 1),
        ("compile_cudagraph", 1)))  # fmt: skip
    for cache, batch in product(STATIC_CACHES, (1, 4, 16, 32)):
        yield replace(BASE, cache=cache, batch=batch)
    yield from (replace(BASE, cache="elastic", batch=batch, runtime="eager", lag=0) for batch in (1, 4, 16, 32))
    yield replace(BASE, batch=16, lag=0)
    yield replace(BASE, batch=16, runtime="compile_cudagraph")
    for cache, batch in (("none", 1), ("prefix", 1), ("window", 1), ("dual", 16), ("window", 16)):
        yield replace(BASE, cache=cache, batch=batch, runtime="eager", lag=0)
    yield from followed("llada-8b", ((cache, 1) for cache in STATIC_CACHES), "adaptive")
    yield from (replace(BASE, rule=rule, lag=0) for rule in ("adaptive", "recorded"))
    yield replace(BASE, rule="adaptive", batch=16)
    more = (("prefix", 16), ("dual", 16), ("dual", 32))
    yield from followed("llada-8b", (*((cache, 1) for cache in STATIC_CACHES), *more), "recorded")
    yield replace(BASE, cache="elastic", runtime="eager", lag=0, rule="recorded")


def dream() -> Iterator[Cell]:
    base = replace(BASE, model="dream-7b")
    yield from (replace(base, cache=cache, batch=batch) for cache, batch in product(STATIC_CACHES, (1, 16)))
    yield from (replace(base, batch=batch) for batch in (4, 32))
    yield from (replace(base, cache="elastic", batch=batch, runtime="eager", lag=0) for batch in (1, 16))
    yield replace(base, runtime="eager", lag=0)
    yield replace(base, runtime="compile_cudagraph")
    yield replace(base, rule="adaptive")
    yield from followed("dream-7b", (("dual", 1), ("dual", 16)), "recorded")


def quantised() -> Iterator[Cell]:
    """Narrow weights under the two runtimes that a kind may need; the report says which one refuses it."""
    for kind, batch, runtime in product(QUANTIZATIONS, (1, 16), RECORDED):
        yield replace(BASE, weights=kind, batch=batch, runtime=runtime)


def followed(model: str, pairs: Iterator[tuple[str, int]] | tuple[tuple[str, int], ...], rule: str) -> Iterator[Cell]:
    yield from (replace(BASE, model=model, cache=cache, batch=batch, rule=rule) for cache, batch in pairs)


def dry_grid() -> list[Cell]:
    """Cells of every kind for a CPU: every rule, exact and bounded shapes, and a runtime that a CPU cannot have."""
    tiny = Cell("tiny", "dual", 1, "static", 1, "fixed", "float32", prompt=9, answer=16, block=8)
    return [
        tiny, replace(tiny, batch=2), replace(tiny, runtime="eager", lag=0), replace(tiny, lag=0),
        replace(tiny, cache="none", rule="adaptive"), replace(tiny, cache="elastic", runtime="eager", rule="recorded"),
        replace(tiny, batch=2, rule="recorded"), replace(tiny, cache="window", lag=0, rule="recorded"),
        replace(tiny, runtime="cudagraph"),
    ]  # fmt: skip
