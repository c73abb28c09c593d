"""Elastic-Cache beside what it decoded when it tested layer by layer, in the published order.

``tests/data/elastic_by_layer.json`` was recorded at commit 1465f3d4 with ``window_length=8`` and answers of 32: check
sums (CRC-32) of the tokens and commit turns of 30 prompts of the mini suite, and the sums by layer over all forwards of
what was computed. They were the same in float32 and float64, and in batches of 1 and 4.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest
import torch
from harness import DATA, full
from recording import FakeGraph
from torch import Tensor

from dllm import Decoder, Result, load
from dllm.parts import (
    DriftPass,
    Elastic,
    Forward,
    ForwardCost,
    Parts,
    RecordedTurns,
    Rows,
    Runtime,
    SplitTurn,
    TakeTurn,
    Transformer,
    Turn,
    each_tensor,
)
from dllm.tasks.mini import tasks as mini

RECORDED = json.loads((DATA / "elastic_by_layer.json").read_text())
CASES = [
    pytest.param(one, dtype, batch, id="-".join([one["model"], dtype, str(batch), *map(str, one["options"].items())]))
    for one, dtype, batch in product(RECORDED, ("float32", "float64"), (1, 4))
]


@pytest.mark.daily(2)
@pytest.mark.parametrize(("recorded", "dtype", "batch"), CASES)
def test_it_decodes_and_counts_what_layer_by_layer_did(recorded: dict[str, Any], dtype: str, batch: int) -> None:
    """All 30 prompts and the sums with ``DLLM_LAWS=all`` (4 minutes), else three prompts."""
    with counted() as costs:
        results = decoded(recorded, dtype, batch, 30 if full() else 3)
    check(results, costs, recorded)


@pytest.mark.daily(1)
@pytest.mark.parametrize(("recorded", "dtype", "batch"), CASES)
def test_recorded_in_two_parts_it_is_the_same(
    recorded: dict[str, Any], dtype: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``runtime=cudagraph`` through the recorder of a CPU: 30 prompts with ``DLLM_LAWS=all``, else four."""
    takes = list[Counted]()

    def counting(runtime: Runtime, model: Transformer, parts: Parts) -> tuple[Transformer, TakeTurn]:
        takes.append(Counted(RecordedTurns(model, lambda: FakeGraph([])), []))
        return model, takes[-1]

    monkeypatch.setattr("dllm.loop.runner.build_runtime", counting)
    results = decoded(recorded, dtype, batch, 30 if full() else 4, "static")
    check(results, [cost for take in takes for cost in take.costs], recorded)
    late = decoded(recorded, dtype, batch, 30 if full() else 4, Runtime("static", 1)) if ahead(recorded) else results
    assert [(one.tokens, one.turns) for one in late] == [(one.tokens, one.turns) for one in results]
    assert any(isinstance(one, SplitTurn) for take in takes for one in take.turns.recorded.values())


@dataclass(frozen=True)
class Counted:
    """Takes turns, and notes what their forwards computed."""

    turns: RecordedTurns
    costs: list[ForwardCost]

    def __call__(self, rows: Rows, forward: Forward, parts: Parts) -> tuple[Rows, Turn]:
        after, turn = self.turns(rows, forward, parts)
        self.costs.append(each_tensor(Tensor.clone, turn.cost))
        return after, turn


def ahead(recorded: dict[str, Any]) -> bool:
    """Whether the host may read late."""
    return bool(Elastic(**recorded["options"]).traits.bounds_late)


def decoded(
    recorded: dict[str, Any], dtype: str, batch: int, count: int, runtime: str | Runtime = "eager"
) -> list[Result]:
    """The first prompts."""
    samples = [sample for task in mini.SHORT_ANSWERS for sample in mini.generate(task, 3, 3)][:count]
    policy = Elastic(**{"window_length": 8, **recorded["options"]})
    decoder = Decoder(
        load(recorded["model"], dtype=dtype),
        "confidence",
        "whole",
        policy,
        "fill_after_block",
        gen_length=32,
        batch_size=batch,
        runtime=runtime,
    )
    return list(decoder([sample.messages for sample in samples]))


def check(results: list[Result], costs: list[ForwardCost], recorded: dict[str, Any]) -> None:
    assert [crc(one.tokens) for one in results] == recorded["tokens"][: len(results)]
    assert [crc(one.turns) for one in results] == recorded["turns"][: len(results)]
    if full():
        for name in ("queries", "keys", "refreshed", "scored"):
            assert sum(getattr(cost, name).sum(0) for cost in costs).reshape(-1).tolist() == recorded[name], name


def crc(numbers: list[int]) -> int:
    return zlib.crc32(str(numbers).encode())


@contextmanager
def counted() -> Iterator[list[ForwardCost]]:
    """What the forwards of a decode computed."""
    plain, costs = DriftPass.cost, list[ForwardCost]()

    def cost(forward: DriftPass, scored: Tensor) -> ForwardCost:
        costs.append(plain(forward, scored))
        return costs[-1]

    with patch.object(DriftPass, "cost", cost), torch.inference_mode():
        yield costs
