"""Which decodes are timed, and what each will take, by arithmetic.

The product of all axes would be thousands of cells. So one or two axes vary at a time, around one cell: LLaDA-8B,
dual, batch 1, cudagraph, lag 1, one token a turn, bfloat16. What decides most comes first, so that a short loan is
enough: real text, the peers, profiles and lags (parts of their own), then narrow weights and every cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import ceil

import torch

from dllm.common.errors import UserError
from dllm.compose.config_choices import choices
from dllm.compose.fitted import Parts
from dllm.contract import ForwardCost
from dllm.loop.runtime.runtime import COMPILED, FIXED, RECORDED, Runtime
from dllm.models.config import ModelConfig
from dllm.models.network.visibility import BlockCausal
from dllm.models.weights.quantize import QUANTIZATIONS, check_runtime
from dllm.parts.samplers.base import Sampler
from dllm.record.cost import CostModel, Machine
from experiments.bench.step import KEEP, MODELS, TINY, Workload, named, parts_for

TEXT = "text-8b"  # mini-llada in LLaDA-8B's shape: ``experiments.support.inflate``
TINY_TEXT = replace(TINY, width=256, layers=6, heads=8, kv_heads=8, head_dim=32, mlp_width=384, vocab=5600)
ROUTED = MODELS["llada2-mini"]
TINY_ROUTED = replace(
    ROUTED, width=64, layers=2, heads=4, kv_heads=2, head_dim=16, rotary_dim=8, mlp_width=96, vocab=300, mask_id=298,
    eos_id=299, pad_id=299, attention=BlockCausal(8),
    moe=ROUTED.moe and replace(ROUTED.moe, experts=8, top_k=2, width=16, shared_width=16, sparse_layers=(1,)),
)  # fmt: skip
CONFIGS: dict[str, ModelConfig] = {
    **MODELS,
    TEXT: MODELS["llada-8b"],
    "tiny": TINY,
    "tiny-text": TINY_TEXT,
    "tiny-routed": TINY_ROUTED,
}
PLAIN = ("bfloat16", "float32")  # weights that are not narrowed
EXPECTED = Machine("H100 80 GB, reached rates", 600e12, 3.0e12)
REACHED = 0.6  # of the floor, cautiously
HOST = {"eager": 0.015, "static": 0.015, "compile": 0.008}  # seconds a turn on the host where nothing is recorded
COMPILE = 40.0  # seconds: one layer, at two widths, and once more with the width as a variable
RECORD = 3.0  # seconds: some ten recordings, what surrounds the network compiled, our kernels' first launches
BUILD = 6.0  # seconds: 8 billion random numbers on the device
WARM, FRESH = 3, 6  # prompts of a decode of texts, at least: those that warm it up, and those that are timed
ROWS = {"elastic": 0.5, "dllm_cache": 0.5, "window": 0.25}  # rows of the answer that a turn computes, roughly


@dataclass(frozen=True)
class Cell:
    """One decode to time. rule: ``fixed`` (one token a turn) or ``threshold`` (0.9, as ``sampler=confidence``).
    weights: ``bfloat16`` or a kind of ``model.quantize``. Decodes of texts have prompts of the mini suite, others
    random ones of ``prompt`` tokens."""

    model: str = "llada-8b"
    cache: str = "dual"
    batch: int = 1
    runtime: str = "cudagraph"
    lag: int = 1
    rule: str = "fixed"
    weights: str = "bfloat16"
    prompt: int = 768
    answer: int = 256
    block: int = 32

    @property
    def name(self) -> str:
        lag = "" if self.runtime == "eager" else f" lag {self.lag}"
        return f"{self.model} {self.weights} {self.cache} batch {self.batch} {self.runtime}{lag} {self.rule}"

    @property
    def load(self) -> Workload:
        return Workload(self.batch, self.prompt, self.answer, self.block, 1)

    @property
    def texts(self) -> bool:
        """Whether it decodes real prompts."""
        return self.model in (TEXT, "tiny-text")

    @property
    def sampler(self) -> Sampler:
        found: Sampler = named("sampler", "confidence")
        return found if self.rule == "threshold" else parts_for(self.cache, self.load)[0]

    @property
    def parts(self) -> Parts:
        return Parts(self.sampler, parts_for(self.cache, self.load)[1], named("cache", self.cache), KEEP)

    @property
    def turns(self) -> int:
        """How many turns are timed: two blocks, fewer where a turn takes long."""
        usual = 2 * self.block + 2
        return max(min(usual, 8), min(usual, ceil(4.0 / self.turn_seconds)))

    @property
    def build(self) -> float:
        """Seconds in which its weights are made: LLaDA2.0-flash has 103 billion numbers."""
        return BUILD * (13 if self.model == "llada2-flash" else 1)

    @property
    def turn_seconds(self) -> float:
        """What a turn takes on an H100, roughly: its floor and the share of it that we expect, or the host's time."""
        answer, length = self.answer, self.prompt + self.answer
        rows = {"none": length, "dual": self.block, "prefix": (answer + self.block) / 2}.get(
            self.cache, ROWS.get(self.cache, 1.0) * answer
        )
        floor = floor_of(CONFIGS[self.model], self.batch, rows, length, self.block)
        if self.cache in ("prefix", "dual"):
            floor += floor_of(CONFIGS[self.model], self.batch, length, length, self.block) / self.block
        return max(floor / REACHED, HOST.get(self.runtime, 0.0))

    @property
    def seconds(self) -> float:
        """What the cell takes: it decodes twice, and once more where that compiles or records."""
        passes = 3 if self.runtime in FIXED else 2
        once = COMPILE * (self.runtime in COMPILED) + RECORD * (self.runtime in RECORDED) + 0.5
        turns = passes * self.turns
        if self.texts:  # two and a half tokens a turn
            turns = (2 * max(WARM, self.batch) + 2 * max(FRESH, self.batch)) // self.batch * self.answer * 2 // 5
        return turns * self.turn_seconds + once


def floor_of(config: ModelConfig, batch: int, rows: float, keys: float, scored: float) -> float:
    """The least seconds of a turn that computes ``rows`` of every request, on the machine that we plan for."""
    one = torch.tensor([[float(rows)]])
    cost = ForwardCost(one, torch.full_like(one, keys), one, one, torch.tensor([float(min(scored, rows))]))
    account = CostModel(config)
    return account.floor(batch * float(account.flops(cost)), batch * float(account.bytes(cost)), EXPECTED)


def check(cell: Cell, device: torch.device) -> Runtime:
    """The cell's runtime. Raises UserError where its parts, weights or device cannot run under it."""
    runtime = Runtime(cell.runtime, 0 if cell.runtime == "eager" else cell.lag)
    if cell.weights not in PLAIN:
        check_runtime(cell.weights, cell.runtime, device)
    recorded = GPU if cell.runtime in RECORDED else device  # a CPU has a stand-in
    runtime.check(cell.parts, CONFIGS[cell.model], recorded)
    return runtime


def accepted(cell: Cell, device: torch.device) -> bool:
    """Whether a cell will run; a refused one takes no time."""
    try:
        check(cell, device)
    except UserError:
        return False
    return True


BASE = Cell()
REAL = Cell(TEXT, rule="threshold", prompt=64, answer=128)
GPU = torch.device("cuda")
OWN_RULES = ("flash_verify", "linear_spec", "dkv_greedy")  # caches that need a rule of their own


def eager(cell: Cell) -> Cell:
    return replace(cell, runtime="eager", lag=0)


def best(cell: Cell) -> Cell:
    """The cell recorded if its parts can be, else static, else under ``eager``; with lag 0 where the host must read
    every report at once. Their traits say it."""
    cell = cell if named("cache", cell.cache).traits.bounds_late else replace(cell, lag=0)
    ways = (cell, replace(cell, runtime="static"))
    return next((one for one in ways if accepted(one, GPU)), eager(cell))


def texts() -> list[Cell]:
    """Real text: our caches at batch 1 and 16, recorded and eager, and elastic."""
    one = [replace(REAL, cache=cache) for cache in ("dual", "prefix", "window", "none")]
    many = [replace(REAL, cache=cache, batch=16) for cache in ("dual", "window")]
    drifting = [replace(REAL, cache="elastic", batch=batch) for batch in (1, 4)]
    return list(dict.fromkeys([*map(best, [*one, *many, *drifting]), *map(eager, [one[0], *many, *drifting])]))


def lags() -> list[Cell]:
    """How late the host reads: 1 against 0. Batch 4 is between the two, and would be the 10 s over nine minutes."""
    return [replace(BASE, batch=batch, lag=lag) for batch in (1, 16) for lag in (1, 0)]


def grid() -> list[Cell]:
    """Random weights: narrow ones, routed experts, every cache, batches, Dream. What compiles takes long, and is last.
    ``lags`` has the lines to compare with."""
    rest = [one for one in (*quantised(), *experts(), *flash(), *caches(), *batches(), *dream()) if one not in lags()]
    return sorted(dict.fromkeys([eager(BASE), *rest]), key=lambda cell: cell.runtime in COMPILED)


def quantised() -> Iterator[Cell]:
    """Narrow weights under the two runtimes that a kind may need; the report says which one refuses it."""
    for kind, batch, runtime in product(QUANTIZATIONS, (1, 16), RECORDED):
        yield replace(BASE, weights=kind, batch=batch, runtime=runtime)


def experts() -> Iterator[Cell]:
    """The shape of LLaDA2.0-mini and LLaDA2.1-mini, with the exact cache of its attention and without one."""
    for weights, batch, cache in product(("bfloat16", "int4"), (1, 16), ("finished", "none")):
        yield best(replace(BASE, model="llada2-mini", cache=cache, weights=weights, batch=batch))


def flash() -> Iterator[Cell]:
    """LLaDA2.0-flash, whose int4 are 67 GB: one card of 80 GB holds them."""
    yield from (best(replace(BASE, model="llada2-flash", cache="finished", weights="int4", batch=n)) for n in (1, 8))


def caches() -> Iterator[Cell]:
    """Every cache, recorded where it can be."""
    for cache in choices("cache"):
        if cache not in (*OWN_RULES, "finished", "focus"):  # which are for causal models
            yield best(replace(BASE, cache=cache))


def batches() -> Iterator[Cell]:
    for cache, batch in product(("dual", "none", "prefix", "window", "elastic"), (4, 16, 32)):
        if batch == 16 or cache == "dual":
            yield best(replace(BASE, cache=cache, batch=batch))
    yield from (eager(replace(BASE, cache=cache, batch=16)) for cache in ("dual", "window"))
    yield from (replace(BASE, batch=batch, runtime="compile_cudagraph") for batch in (1, 16))


def dream() -> Iterator[Cell]:
    base = replace(BASE, model="dream-7b")
    yield from (base, replace(base, batch=16), eager(base))
    yield from (best(replace(base, cache=cache)) for cache in ("none", "prefix", "elastic"))


def tiny(cell: Cell) -> Cell:
    """The cell on a CPU: a tiny model, short texts, at most two rows, and nothing that only a compiler makes."""
    runtime = cell.runtime.removeprefix("compile_").replace("compile", "static")
    cell = replace(cell, batch=min(cell.batch, 2), weights="float32", runtime=runtime)
    if cell.texts:
        return replace(cell, model="tiny-text", answer=32, block=16)
    if cell.model.startswith("llada2"):  # only our kernel of routed experts can be recorded, and a CPU has none
        return replace(cell, model="tiny-routed", prompt=16, answer=16, block=8, runtime="static")
    return replace(cell, model="tiny", prompt=9, answer=16, block=8)
