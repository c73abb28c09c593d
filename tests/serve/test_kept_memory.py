"""The memory that a server counts before a row joins others is what the row's cache then keeps."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from harness import Combination, allowed, choices, model, parts_of
from torch import Tensor

from dllm.parts import Cache, Ids, Model, Parts, Request, RowNumbers, Runner, Runtime, Sampling, Visible, part
from experiments.bench.long_prompts import LAYER
from experiments.bench.step import prompt_of, random_model

COLUMNS, ROWS = 1024, 16
WIDE = replace(LAYER, layers=2, width=256, heads=8, kv_heads=8, head_dim=64, rotary_dim=64, mlp_width=8, vocab=1000)


def tensors(held: Any, seen: set[int]) -> Iterator[Tensor]:
    """Every tensor that an object of the package holds."""
    if id(held) in seen or isinstance(held, (Cache, Visible, RowNumbers)):
        return
    seen.add(id(held))
    if isinstance(held, Tensor):
        yield held
    elif isinstance(held, (list, tuple, dict)):
        for one in held.values() if isinstance(held, dict) else held:
            yield from tensors(one, seen)
    elif type(held).__module__.startswith("dllm.parts.cache"):
        for one in vars(held).values():
            yield from tensors(one, seen)


def kept_bytes(session: Any) -> int:
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors(session, set())}
    return sum(storages.values())


def decoding(bundle: Model, parts: Parts, rows: int, prompt: int, answer: int) -> Iterator[Any]:
    """The session after each turn of rows that began together."""
    runner = Runner.of(bundle, parts, Runtime("eager"))
    asked = [Request.answer(prompt_of(prompt, seed, 50), answer, bundle.ids.placeholder) for seed in range(rows)]
    batch = runner.start(asked)
    for _ in runner.turns(batch):
        yield batch.session


ON = (("fixed", "tiny-llada"), ("fixed", "tiny-dream"), ("fixed", "sdar_b4"), ("whole", "tiny-llada"))
CASES = [Combination("static", blocks, cache, "none", name) for cache in choices("cache") for blocks, name in ON]
# How many times what is kept a count may be: a block of sparse_dllm may be as wide as the row, and it keeps columns
# only where rows may be cut; sparsed keeps bytes, which are counted as numbers of two.
MORE = {("fixed", "sparse_dllm"): 1.25, ("whole", "sparse_dllm"): 2.5, ("fixed", "sparsed"): 5, ("whole", "sparsed"): 5}


@pytest.mark.daily(6)
@pytest.mark.parametrize("case", [one for one in CASES if allowed(one)], ids=str)
def test_what_is_counted_is_what_is_kept(case: Combination) -> None:
    """Never less, and no more but for what the host does not know. Keys and values alone would be half of what elastic
    keeps."""
    network, parts = model(case.model), parts_of(case)
    config = network.config
    bundle = Model(network, config, None, Ids(config.mask_id or 0, config.eos_id or 0, ()), "tiny", Path("tiny"))
    held = [kept_bytes(session) for session in decoding(bundle, parts, 3, 40, 12)]
    counted = 3 * parts.kept_numbers(52, config) * network.dtype.itemsize
    assert max(held) <= counted <= MORE.get((case.blocks, case.cache), 1) * max(held)


def resident() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


@pytest.mark.program
@pytest.mark.parametrize("cache", ["none", "dual", "elastic", "dllm_cache", "sparse_dllm"])
def test_what_is_counted_is_what_becomes_resident(cache: str) -> None:
    """Of 16 rows of 1,024 columns, 0 to 224 MiB within 10."""
    network = random_model(WIDE, torch.device("cpu"), torch.float32)
    bundle = Model(network, WIDE, None, Ids(998, 999, ()), "random", Path("random"))
    parts = Parts(
        part("sampler", "static", steps=8),
        part("blocks", "fixed", block_length=32),
        part("cache", cache),
        part("eos", "none"),
        Sampling(suppress_mask=False),
    )
    list(decoding(bundle, parts, 1, 96, 32))  # loads all code
    before, most = resident(), 0
    for _ in decoding(bundle, parts, ROWS, COLUMNS - 32, 32):
        most = max(most, resident() - before)
    counted = ROWS * parts.kept_numbers(COLUMNS, WIDE) * 4
    print(f"\n{cache}: counted {counted / 2**20:.1f} MiB, resident {most / 2**20:.1f}")
    assert abs(most - counted) < 10 << 20
