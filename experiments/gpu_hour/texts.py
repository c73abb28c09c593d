"""Decodes of real prompts: each turn timed, in a decode of prompts that are new to shapes that are not."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from dllm import load
from dllm.common.rowwise import each_tensor
from dllm.contract import ForwardCost, Turn
from dllm.loop.recorded import RecordedTurns, build_runtime
from dllm.loop.runtime.graphs import Graphs, Recording
from dllm.loop.runtime.runtime import Runtime
from dllm.models.bundle import Model
from dllm.record.cost import CostModel
from dllm.tasks.mini import tasks
from experiments.bench.step import Mark, Runs, Timing, decode
from experiments.gpu_hour.cells import FRESH, WARM, Cell

SMALL = "mini-llada"
SEED = 3


def prompts(model: Model, count: int, seed: int = SEED) -> list[list[int]]:
    """Token ids of prompts of the mini suite, its tasks in turn."""
    assert model.tokenizer is not None
    each = -(-count // len(tasks.TASKS))
    drawn = zip(*(tasks.generate(task, seed, each) for task in tasks.TASKS), strict=True)
    return [model.tokenizer.encode_chat(one.messages) for some in drawn for one in some][:count]


@dataclass
class Counted:
    """Makes recordings, and counts what becomes of them."""

    make: Callable[[], Recording]
    records: int = 0  # how many were made
    replays: int = 0  # how often one ran, also just after it was made

    def __call__(self) -> Recording:
        return CountedRecording(self, self.make())

    @property
    def hits(self) -> int:
        """How often a recording ran that was there."""
        return self.replays - self.records


@dataclass
class CountedRecording:
    """A recording whose uses are counted."""

    of: Counted
    recording: Recording

    def record(self, work: Callable[[], None], reset: Callable[[], None] = lambda: None) -> None:
        self.of.records += 1
        self.recording.record(work, reset)

    def replay(self) -> None:
        self.of.replays += 1
        self.recording.replay()

    def release(self) -> None:
        self.recording.release()


def watched(runs: Runs) -> tuple[Runs, Counted]:
    """The same, its recordings counted."""
    for one in runs:
        if isinstance(one, RecordedTurns | Graphs):
            one.recorder = counted = Counted(one.recorder)
            return runs, counted
    return runs, Counted(nothing)


def nothing() -> Recording:
    raise AssertionError("this runtime records nothing")


@dataclass(frozen=True)
class Batches:
    """Batches of prompts that a cell decodes."""

    cell: Cell
    model: Model
    runtime: Runtime
    runs: Runs

    def turns(self, asked: Sequence[list[int]]) -> Iterator[Turn]:
        """The turns of all batches."""
        cell, network = self.cell, self.model.transformer
        for begin in range(0, len(asked), cell.batch):
            some = asked[begin : begin + cell.batch]
            yield from decode(network, cell.cache, cell.load, self.runtime.reads, self.runs, cell.sampler, some)

    def times(self, asked: Sequence[list[int]]) -> list[float]:
        """Seconds of each turn; the first one of a batch has the host's time to lay it out."""
        device = self.model.transformer.device
        marks = [Mark(device), *(Mark(device) for _ in self.turns(asked))]
        return [begin.until(end) for begin, end in pairwise(marks)]

    def answers(self, asked: Sequence[list[int]]) -> tuple[list[list[int]], list[ForwardCost], list[int]]:
        """The answers in the order in which they end, and of each turn its cost and how many tokens it committed."""
        out, costs, counts = list[list[int]](), list[ForwardCost](), list[int]()
        for turn in self.turns(asked):
            costs.append(each_tensor(torch.clone, turn.cost))
            counts.append(int(turn.step.commit.sum()))
            for row in turn.finished:
                begin, end = int(turn.candidates.start[row]), int(turn.candidates.end[row])
                out.append(turn.candidates.tokens[row, begin:end].tolist())
        return out, costs, counts


def time_texts(cell: Cell, model: Model, runtime: Runtime) -> tuple[Timing, dict[str, Any]]:
    """The first decode of prompts that follow on others of the same shapes, and what else it shows: the share of turns
    that replayed a recording, the share of the committed tokens that is text (the rest follows its end), and how many
    turns of a row drifted, in which layer."""
    warm, fresh = max(WARM, cell.batch), max(FRESH, cell.batch)
    asked = prompts(model, warm + fresh)
    runs, counted = watched(build_runtime(runtime, model.transformer, cell.parts))
    batches, began = Batches(cell, model, runtime, runs), time.perf_counter()
    for _ in range(2):  # compiles and records
        deque(batches.turns(asked[:warm]), 0)
    spent, before = time.perf_counter() - began, counted.hits
    times = batches.times(asked[warm:])
    hits = (counted.hits - before) / len(times) if counted.records else None
    answers, costs, tokens = batches.answers(asked[warm:])
    account = CostModel(model.config, model.transformer.dtype.itemsize)
    flops, moved = ([float(count(one).sum()) for one in costs] for count in (account.flops, account.bytes))
    useful = sum(len(text_of(one, model.config.eos_id)) for one in answers) / sum(tokens)
    return Timing(times, flops, moved, tokens, spent), {"hits": hits, "useful": useful, **drifts(costs)}


def text_of(answer: list[int], end: int | None) -> list[int]:
    """The tokens up to the end of the text, that end included."""
    return answer[: answer.index(end) + 1] if end in answer else answer


def drifts(costs: Sequence[ForwardCost]) -> dict[str, float | None]:
    """Of the turns of a row that began narrow: which share computed the whole canvas from some layer on, and the mean
    number of that layer."""
    layers, narrow = list[int](), 0
    for cost in costs:
        for refreshed in (cost.refreshed > 0).tolist():
            narrow += not refreshed[0]
            layers += [refreshed.index(True)] if True in refreshed and not refreshed[0] else []
    return {
        "drifted": len(layers) / narrow if narrow else None,
        "drift_layer": statistics.mean(layers) if layers else None,
    }


def equal_texts(cell: Cell, large: Model, count: int = 8) -> dict[str, Any]:
    """How many texts the inflated model decodes as mini-llada itself, in the same kind of numbers."""
    network = large.transformer
    small = load(SMALL, device=str(network.device), dtype=str(network.dtype).removeprefix("torch."), pack=False)
    asked, found = prompts(large, count), list[list[list[int]]]()
    for model in (small, large):
        eager = Runtime("eager", 0)
        batches = Batches(cell, model, eager, build_runtime(eager, model.transformer, cell.parts))
        found.append([text_of(one, model.config.eos_id) for one in batches.answers(asked)[0]])
    return {"texts": count, "equal": sum(one == other for one, other in zip(*found, strict=True))}
