"""What decodes take of memory beside what ``dllm check`` says: ``python -m experiments.bench.memory``.

Random models of several shapes, on one thread of a CPU. ``allocated``: the most bytes that PyTorch's allocator had
given out at once in three turns, which is exact; the weights are not among them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch.profiler import ProfilerActivity, profile

from dllm import part
from dllm.compose.fitted import Parts
from dllm.contract.canvas import Request
from dllm.contract.setting import Sampling
from dllm.loop.runner import Runner
from dllm.loop.runtime.runtime import Runtime
from dllm.models.bundle import Model
from dllm.models.network.moe import MoEConfig
from dllm.record.decode_memory import MemoryModel
from experiments.bench.step import SMALL, bundled, prompt_of, random_model
from experiments.support import markdown

TURNS, ANSWER = 3, 64
LLADA = replace(
    SMALL, layers=3, width=512, heads=8, kv_heads=8, mlp_width=1536, vocab=8000, mask_id=998, eos_id=999, pad_id=999
)
SHAPES = {
    "llada": LLADA,
    "dream": replace(
        LLADA, kv_heads=2, mlp_width=2700, rope_float32=False, qkv_bias=True, prediction_shift=1, vocab=20000
    ),
    "qwen3": replace(LLADA, kv_heads=2, rope_float32=False, qk_norm=True),
    "experts": replace(
        LLADA,
        rope_float32=False,
        moe=MoEConfig(experts=8, top_k=4, width=256, router="softmax", sparse_layers=(0, 1, 2)),
    ),
    "shared": replace(
        LLADA,
        rope_float32=False,
        qk_norm=True,
        mlp_width=1200,
        moe=MoEConfig(experts=64, top_k=8, width=128, router="sigmoid", shared_width=128, sparse_layers=(1, 2)),
    ),
}


@dataclass(frozen=True)
class MemoryCase:
    """A decode whose memory is measured."""

    shape: str = "llada"
    cache: str = "none"
    rows: int = 4
    length: int = 512
    dtype: str = "float32"
    temperature: float = 0.0

    def model(self) -> Model:
        return bundled(random_model(SHAPES[self.shape], torch.device("cpu"), getattr(torch, self.dtype)))

    def parts(self, model: Model) -> Parts:
        whole = self.cache == "elastic"
        made = Parts(
            part("sampler", "confidence"),
            part("blocks", "whole") if whole else part("blocks", "fixed", block_length=32),
            part("cache", self.cache),
            part("eos", "none"),
            Sampling(self.temperature, suppress_mask=False),
        )
        return made.fitted(model, ANSWER)


def predicted(case: MemoryCase, model: Model) -> int:
    """Bytes of a case by the formula, without the weights."""
    size = model.transformer.dtype.itemsize
    return MemoryModel(model.config, case.parts(model), 0, size, ANSWER).use(case.rows, case.length).most


def decode(case: MemoryCase, model: Model, rows: int) -> None:
    """A few turns, the widest forward among them."""
    runner = Runner.of(model, case.parts(model), Runtime("eager"))
    asked = [
        Request.answer(prompt_of(case.length - ANSWER, seed, 900), ANSWER, model.ids.placeholder)
        for seed in range(rows)
    ]
    for _ in islice(runner.turns(runner.start(asked)), TURNS):
        pass


def allocated(case: MemoryCase, model: Model) -> int:
    """The most bytes that PyTorch's allocator had given out at once."""
    decode(case, model, 1)  # builds the tables that stay
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        decode(case, model, case.rows)
    assert found.profiler is not None and found.profiler.kineto_results is not None
    events = [one for one in found.profiler.kineto_results.events() if one.name() == "[memory]"]
    held = most = 0
    for one in sorted(events, key=lambda one: one.start_ns()):
        held += one.nbytes()
        most = max(most, held)
    return most


CASES = [
    *(
        MemoryCase(shape, cache, rows, length, dtype)
        for shape in ("llada", "dream")
        for cache in ("none", "dual", "elastic")
        for rows, length in ((1, 2048), (4, 512), (12, 256))
        for dtype in ("float32", "bfloat16")
    ),
    *(
        MemoryCase(shape, cache, dtype=dtype)
        for shape in ("qwen3", "experts", "shared")
        for cache in ("none", "dual")
        for dtype in ("float32", "bfloat16")
    ),
    MemoryCase(temperature=0.7),
    MemoryCase("dream", "dual", temperature=0.7),
    MemoryCase("dream", "dual", rows=1, length=128, dtype="bfloat16"),
]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args(arguments)
    torch.set_num_threads(1)
    heads = ("model", "cache", "rows x length", "kind", "temperature", "said MiB", "allocated MiB", "ratio")
    print(markdown.head(heads), flush=True)
    for case in CASES:
        model = case.model()
        said, found = predicted(case, model), allocated(case, model)
        kind = case.shape, case.cache, f"{case.rows} x {case.length}", case.dtype, f"{case.temperature:g}"
        sizes = f"{said / 2**20:.1f}", f"{found / 2**20:.1f}", f"{said / found:.2f}"
        print(markdown.line((*kind, *sizes)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
