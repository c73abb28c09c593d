"""A recorded turn, and one that is recorded in two parts because the host reads in between how its forward goes on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from dllm.contract import Turn
from dllm.loop.forward import NetworkRun
from dllm.loop.rows import HostReport, Rows
from dllm.loop.runtime.graphs import Recording, remember

Key = tuple[Hashable, ...]
Widths = tuple[int, ...]  # of the rows of a turn, from the widest to the narrowest, then ``Bounded.most``

MAX_RESTS = 40  # second parts of one turn that are kept: rows that run again, by number and first layer


@dataclass(frozen=True)
class StaticBuffers:
    """The tensors of rows at fixed addresses."""

    inputs: list[Tensor]  # as they are before a turn
    outputs: list[Tensor]  # as they are after it, and so before the next one
    order: Tensor  # [B] the rows from the widest to the narrowest
    order_on_host: list[int] = field(default_factory=list)  # what the host last wrote there

    def place(self, needed_widths: Sequence[int], widths: Widths) -> None:
        """Order rows that need such widths for a turn of these ``widths``. An order that serves is left alone."""
        if any(needed_widths[row] > width for row, width in zip(self.order_on_host, widths, strict=False)):
            self.order_on_host[:] = sorted_by_width(needed_widths)
            numbers = torch.tensor(self.order_on_host)
            self.order.copy_(numbers.pin_memory() if self.order.is_cuda else numbers, non_blocking=True)

    def copy_in(self, tensors: Sequence[Tensor]) -> None:
        """Make the ``tensors`` those before the coming turn. A turn that was not recorded may have taken an output over
        in another place, whose copy must come first."""
        addresses = {tensor.data_ptr() for tensor in self.outputs}
        sources = [
            tensor if tensor is place or tensor.data_ptr() not in addresses else tensor.clone()
            for tensor, place in zip(tensors, self.outputs, strict=True)
        ]
        copy_all(self.outputs, sources)


@dataclass(frozen=True)
class RecordedTurn:
    """A turn that was recorded, on tensors of its own."""

    recording: Recording  # what is replayed
    buffers: StaticBuffers  # the rows' tensors
    after: Rows  # what the turn makes of the rows
    turn: Turn  # the turn
    numbers: Tensor  # [k, B] what the rows report
    also_read: Any  # what else it reads at fixed addresses, which must not be freed before it

    def replay(self, rows: Rows) -> tuple[Rows, Turn, Tensor]:
        """The turn of these rows, whose order is placed."""
        self.buffers.copy_in(rows.tensors())
        return self.replay_in_place(rows)

    def replay_in_place(self, rows: Rows) -> tuple[Rows, Turn, Tensor]:
        """The same of rows whose tensors are those of the buffers."""
        self.recording.replay()
        return self.after_replay(rows)

    def after_replay(self, rows: Rows) -> tuple[Rows, Turn, Tensor]:
        """What its replay has made of these rows."""
        # New values on the same tensors: what a canvas has cached of its masks was true of an earlier turn.
        after, turn = self.after.with_tensors(self.buffers.outputs), self.turn
        view = replace(turn.view, canvas=replace(turn.view.canvas))
        turn = replace(turn, view=view, tried=replace(turn.tried), candidates=replace(turn.candidates))
        return after.on_host_as(rows), turn, self.numbers

    def release(self) -> None:
        self.recording.release()


@dataclass(frozen=True)
class Ran:
    """In the place of a recording: what was met for the first time runs as it is."""

    def record(self, work: Callable[[], None], reset: Callable[[], None] = lambda: None) -> None:
        work()

    def replay(self) -> None:
        """Do nothing: it has run."""

    def release(self) -> None:
        """Do nothing: it holds nothing."""


@dataclass(frozen=True)
class SplitTurn:
    """A turn recorded in two parts. Between them the host reads how the forward goes on (``CacheTraits.asks``): the
    second part is recorded for each way, once that is met again. The usual one is launched before the host has read,
    so that the device does not wait; it reads the inputs and writes the outputs alone, so another can follow it."""

    recording: Recording  # of the first part
    buffers: StaticBuffers  # the rows' tensors
    run: NetworkRun  # what the first part makes
    recorder: Callable[[], Recording]  # makes recordings of second parts
    # (the first part, what was asked of its calls, the recording to make) -> the second part
    record_second_part: Callable[[NetworkRun, Sequence[Any], Recording], RecordedTurn]
    second_parts: OrderedDict[Key, RecordedTurn] = field(default_factory=OrderedDict)  # by what was asked, rounded

    def replay(self, rows: Rows) -> tuple[Rows, Turn, Tensor]:
        """The turn of these rows."""
        self.buffers.copy_in(rows.tensors())
        self.recording.replay()
        questions = [inputs.memory.question() for inputs in self.run.inputs]
        reports = [None if question is None else HostReport.of(question[None]) for question in questions]
        usual = tuple(inputs.memory.usual for inputs in self.run.inputs)
        ahead = None if None in reports else self.second_parts.get(usual)
        if ahead is not None and isinstance(ahead.recording, Ran):
            ahead = None
        if ahead is not None:
            ahead.recording.replay()
        read = [None if report is None else report.read_row() for report in reports]
        answers = host_answers(self.run, rows, read)
        key = tuple(inputs.memory.rounded(question) for inputs, question in zip(self.run.inputs, answers, strict=True))
        second = self.second_parts.get(key)
        if ahead is not None and second is ahead:
            self.second_parts.move_to_end(key)
            return ahead.after_replay(rows)
        if ahead is not None:  # as the turn began
            copy_all(self.buffers.outputs, self.buffers.inputs)
        if second is None or isinstance(second.recording, Ran):
            by, recording = (answers, Ran()) if second is None else (key, self.recorder())
            second = self.record_second_part(self.run, by, recording)
            for old in remember(self.second_parts, key, second, MAX_RESTS):
                old.release()
        self.second_parts.move_to_end(key)
        return second.replay_in_place(rows)

    def release(self) -> None:
        self.recording.release()
        for second in self.second_parts.values():
            second.release()


def host_answers(run: NetworkRun, rows: Rows, reports: Sequence[Sequence[int] | None] | None = None) -> list[Hashable]:
    """What the host must know of each call before it goes on, of ``rows`` that are as they were when it began. reports:
    by call, what it has read already."""
    memories, facts = [inputs.memory for inputs in run.inputs], rows.blocks.shapes.facts
    pairs = zip(memories, reports or [None] * len(memories), strict=True)
    return [memory.answer(facts, report) for memory, report in pairs]


def with_answers(run: NetworkRun, answers: Sequence[Any]) -> NetworkRun:
    """The run whose calls have gone on by the host's ``answers``, one for each."""
    for inputs, answer in zip(run.inputs, answers, strict=True):
        inputs.memory.resume(answer)
    return run


def renew(run: NetworkRun) -> NetworkRun:
    """The same on canvases that have computed nothing of themselves yet: what a recording keeps is its own."""
    work, rows = run.work, run.rows.with_tensors(run.rows.tensors())
    work_rows = rows if work.rows is run.rows else work.rows.with_tensors(work.rows.tensors())
    work = replace(work, rows=work_rows, canvas=replace(work.canvas), shown=replace(work.shown))
    return replace(run, rows=rows, work=work)


def sorted_by_width(needed_widths: Sequence[int]) -> list[int]:
    """Row numbers from the widest row to the narrowest."""
    return sorted(range(len(needed_widths)), key=lambda row: -needed_widths[row])


def copy_all(into: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    """Copy tensors to others of the same shapes, in one launch for each kind of number. An empty one would make it a
    launch for each tensor."""
    pairs = [(to, of) for to, of in zip(into, source, strict=True) if to is not of and to.numel()]
    for _, same in groupby(sorted(pairs, key=lambda pair: str(pair[0].dtype)), key=lambda pair: pair[0].dtype):
        targets, sources = zip(*same, strict=True)
        torch._foreach_copy_(list(targets), list(sources))
