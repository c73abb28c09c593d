"""Whole turns recorded once per shape and replayed: what ``runtime=cudagraph`` does for all rules that ask nothing.

A turn is one forward, the rule's step, and some hundred small operations around them, which take the host longer than
the GPU. With shapes that the host knows beforehand and nothing asked, a turn is a function of tensors: those of the
rows. They have fixed addresses, once as they are before the turn (``inputs``) and once as they are after it
(``outputs``). A recording copies outputs to inputs, takes the turn from there, and writes what has become of the rows
to the outputs. So one recording follows another, and the host launches one replay a turn, and the copy of what the rows
report. What surrounds the network is compiled (``runtime.compiled_stages``); it then writes the outputs in place,
and is recorded only where it gives what the plain turn gives.

What the host decides is in the key of a recording: how many columns rows compute, the shapes of the rows' tensors, what
the cache's session knows, and where its buffers lie. Which row is how wide is not: rows are sorted by the width of
their call, and their numbers are an input. A recording of wider rows serves a turn, too. The first turn of each kind
runs as it is.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from operator import ge
from typing import Any

import torch
from torch import Tensor

from dllm.common.errors import Refusal, Set
from dllm.common.terminal import complain_folded
from dllm.compose.fitted import Parts
from dllm.contract import Turn
from dllm.contract.shapes import as_bounded
from dllm.loop.denoise import TakeTurn, advance, settle, take_turn
from dllm.loop.forward import Forward, NetworkRun, RunStage, run_plainly
from dllm.loop.head import ScoredHead
from dllm.loop.recorded_turn import (
    Key,
    RecordedTurn,
    SplitTurn,
    StaticBuffers,
    Widths,
    copy_all,
    host_answers,
    renew,
    sorted_by_width,
    with_answers,
)
from dllm.loop.rows import Rows
from dllm.loop.runtime.compiled_stages import CompiledStages
from dllm.loop.runtime.graphs import MAX_RECORDINGS, BufferPools, Recorder, Recording, remember
from dllm.loop.runtime.runtime import RECORDED, Network, Runtime
from dllm.models.network.transformer import Transformer
from dllm.parts.cache.base import Session
from dllm.parts.cache.calls import RowNumbers, padded_widths

# Columns of a recorded turn beside those that are needed, at most: of one that serves a turn whose like was met before;
# of one that serves a turn whose like was not, which without it takes twice as long or more (8B, H200).
NEAR, FAR = 1.25, 2.0
STEPS = (64, 48, 32)  # what is met once is recorded for widths up to multiples of the first of these that is near


def build_runtime(runtime: Runtime, model: Transformer, parts: Parts) -> tuple[Network, TakeTurn]:
    """The model as the loop calls it under a runtime, and what takes its turns. Raises UserError for a model that the
    runtime cannot run."""
    whole = runtime.name in RECORDED and not (parts.sampler.traits.syncs or parts.eos.traits.syncs)
    shared = model.config.ranks.size > 1
    if shared and runtime.name in RECORDED and not whole:
        raise Refusal(
            "{model.tp} with {runtime}: a part asks the device, so turns are not recorded whole, and ranks agree on "
            "whole turns alone.",
            [model.config.ranks.size, runtime.name],
            (Set("runtime", "static"),),
        )
    network = runtime.network(model, whole)
    if not whole:
        return network, take_turn
    stage = run_plainly if shared else CompiledStages()  # a stage may look logits up, which ranks add up
    return network, RecordedTurns(model, Recorder(model.device), stage=stage)


class RecordedTurns:
    """Takes turns as ``take_turn`` does; a turn's tensors last until the next one."""

    def __init__(
        self,
        model: Transformer,
        recorder: Callable[[], Recording],
        most: int = MAX_RECORDINGS,
        stage: RunStage = run_plainly,
    ) -> None:
        self.model, self.recorder, self.most, self.stage = model, recorder, most, stage
        self.pools = BufferPools(model)
        # By a number for the kind of turn (``recording_key``) and the widths of its rows.
        self.recorded: OrderedDict[tuple[int, Widths], RecordedTurn | SplitTurn] = OrderedDict()
        self.turns_met: OrderedDict[tuple[int, Widths], None] = OrderedDict()
        self.kinds: OrderedDict[Key, int] = OrderedDict()
        self.count = count()
        self.buffers: OrderedDict[Key, StaticBuffers] = OrderedDict()
        self.owners: list[Callable[[], RowNumbers | None]] = []  # which decode has each slot of static buffers
        self.parts: Parts | None = None

    def __call__(self, rows: Rows, forward: Forward, parts: Parts) -> tuple[Rows, Turn]:
        self.parts = self.parts or parts
        assert self.parts == parts, "one setting"
        if forward.offers or not rows.constraints.free:  # the host takes part in their turns
            return take_turn(rows, forward, parts)
        rows = rows.bounded()
        for pool in self.pools.attach_buffers(rows.session.kept):
            self._forget(pool)
        slot = self._slot(rows.session.row_numbers)
        needed_widths, widths = widths_of(rows)
        kind = self.kind_of(rows, forward, slot)
        near, is_met = (None, True) if rows.leaders else self.lookup(kind, widths)  # who leads whom is in no recording
        if near is not None:
            buffers = self._buffers(rows, slot)
            buffers.place(needed_widths, near)
            if (kind, near) not in self.recorded:
                # recording writes to those there
                rows = rows.with_tensors([tensor.clone() for tensor in rows.tensors()])
                recording = self._record(rows_as_wide(rows, near, buffers.order), buffers, forward, parts)
                for old in remember(self.recorded, (kind, near), recording, self.most):
                    old.release()
            self.recorded.move_to_end((kind, near))
            after, turn, numbers = self.recorded[kind, near].replay(rows)
        else:
            after, turn = advance(rows, forward, parts)
            numbers = after.numbers()
        if not is_met:
            self.meet(kind, widths, rows, after)
        after, finished = after.reported(numbers)
        return after, replace(turn, finished=finished)

    def lookup(self, kind: int, widths: Widths) -> tuple[Widths | None, bool]:
        """The recorded widths that serve a turn, or those to record for it (None: it runs as it is), and whether its
        like was met before."""
        near = covering(self.recorded, kind, widths, NEAR) or covering(self.turns_met, kind, widths, NEAR)
        return near or covering(self.recorded, kind, widths, FAR), near is not None

    def meet(self, kind: int, widths: Widths, rows: Rows, after: Rows) -> None:
        """Remember a turn of ``rows``, which became ``after``: the next one like it is recorded."""
        if shapes_of(after) == shapes_of(rows):  # else the next turn is of another kind
            wider = widths_to_record(widths, len(rows.candidates.columns))
            remember(self.turns_met, (kind, wider), None, 4 * self.most)

    def kind_of(self, rows: Rows, forward: Forward, slot: int) -> int:
        """A number for the turns of a decode's ``slot`` that differ in the widths of their rows alone."""
        key = slot, *recording_key(rows, forward)
        if key not in self.kinds:
            remember(self.kinds, key, next(self.count), 8 * self.most)
        self.kinds.move_to_end(key)
        return self.kinds[key]

    def _record(self, rows: Rows, buffers: StaticBuffers, forward: Forward, parts: Parts) -> RecordedTurn | SplitTurn:
        inputs, results, asks = rows.tensors(), list[Any](), rows.session.traits.asks
        rows = replace(rows, session=rows.session.apart()) if asks else rows
        compared = rows.session.kept.compared_tensors()
        before = [tensor.clone() for tensor in compared]

        def reset() -> None:
            copy_all([*buffers.outputs, *compared], [*inputs, *before])

        forward = replace(forward, stage=self._choose_stage(rows, buffers, forward, parts, reset))

        def work() -> None:
            run = begin_from(buffers, rows, forward)
            results[:] = [run] if asks else end_into(buffers, run, host_answers(run, rows), forward, parts)

        recording = self.recorder()
        recording.record(work, reset)
        copy_all(compared, before)
        if asks:
            record_second_part = partial(self._record_second_part, buffers, forward, parts)
            return SplitTurn(recording, buffers, results[0], self.recorder, record_second_part)
        return self._as_recorded(recording, buffers, results, forward)

    def _record_second_part(
        self,
        buffers: StaticBuffers,
        forward: Forward,
        parts: Parts,
        run: NetworkRun,
        answers: Sequence[Any],
        recording: Recording,
    ) -> RecordedTurn:
        """Record the second part of a turn, which the host's ``answers`` decide."""
        results = list[Any]()

        def work() -> None:
            results[:] = end_into(buffers, renew(run), answers, forward, parts)

        recording.record(work)
        return self._as_recorded(recording, buffers, results, forward)

    def _as_recorded(
        self, recording: Recording, buffers: StaticBuffers, results: Sequence[Any], forward: Forward
    ) -> RecordedTurn:
        """The turn of a recording, with the ``results`` that it writes."""
        after, turn, numbers = results
        scores, config = turn.view.scores, self.model.config
        small = {readout: value for readout, value in scores.readings.items() if readout.width(config) == 1}
        turn = replace(turn, view=replace(turn.view, scores=replace(scores, readings=small)))
        row_numbers = dict(after.session.row_numbers.made)
        also_read = row_numbers, [dict(readout.tables) for readout in self.model.rotations], forward.shared
        after = replace(after, session=Session.__new__(Session))
        return RecordedTurn(recording, buffers, after, turn, numbers, also_read)

    def _choose_stage(
        self, rows: Rows, buffers: StaticBuffers, forward: Forward, parts: Parts, reset: Callable[[], None]
    ) -> RunStage:
        """What runs the stages of these rows' turn: compiled, if that gives what they give as they are. A compiler that
        errs would change texts and say nothing: torch 2.13 reads a mask before it is scattered."""
        if self.stage is run_plainly:
            return self.stage
        outcomes = []
        for stage in (run_plainly, self.stage):
            reset()
            _, _, numbers = turn_into(buffers, rows, replace(forward, stage=stage), parts)
            outcomes.append([tensor.clone() for tensor in (*buffers.outputs, numbers)])
        if all(torch.allclose(tensor, other, 0, 0, True) for tensor, other in zip(*outcomes, strict=True)):
            return self.stage
        complain_folded("torch.compile changes what a turn decides: turns are recorded without it.")
        self.stage = run_plainly
        return self.stage

    def _slot(self, decode: RowNumbers) -> int:
        """A number for a decode, other than those of all decodes that are still under way."""
        for number, other in enumerate(self.owners):
            if other() is decode:
                return number
        free = next((number for number, other in enumerate(self.owners) if other() is None), len(self.owners))
        self.owners[free : free + 1] = [weakref.ref(decode)]
        return free

    def _buffers(self, rows: Rows, slot: int) -> StaticBuffers:
        """The fixed tensors for rows of such shapes."""
        key = slot, *shapes_of(rows)
        if key not in self.buffers:
            inputs, outputs = ([empty(tensor) for tensor in rows.tensors()] for _ in range(2))
            order = torch.arange(len(rows), device=rows.next_positions.device)
            remember(self.buffers, key, StaticBuffers(inputs, outputs, order, list(range(len(rows)))), self.most)
        self.buffers.move_to_end(key)
        return self.buffers[key]

    def _forget(self, pool: int) -> None:
        """Free the recordings that use the memory at an address."""
        kinds = {kind for key, kind in self.kinds.items() if pool in key}
        for key in [key for key in self.recorded if key[0] in kinds]:
            self.recorded.pop(key).release()


def widths_of(rows: Rows) -> tuple[list[int], Widths]:
    """What each row needs, padded as its call pads it, and the widths of the turn."""
    shapes, numbers = as_bounded(rows.blocks.shapes), rows.session.row_numbers
    needed_widths = padded_widths(shapes.bounds, numbers.price(rows.next_positions.device))
    return needed_widths, (*(needed_widths[row] for row in sorted_by_width(needed_widths)), *shapes.most)


def widths_to_record(widths: Widths, length: int) -> Widths:
    """Widths that other turns need as well, on a canvas of ``length`` columns."""
    wider = (tuple(min(length, -(-width // step) * step) for width in widths) for step in STEPS)
    return next((offer for offer in wider if sum(offer) <= NEAR * sum(widths)), widths)


def covering(candidates: Iterable[tuple[int, Widths]], kind: int, widths: Widths, spare: float) -> Widths | None:
    """The least of the known widths that suffice for a turn and are at most ``spare`` times what it needs."""
    most = spare * sum(widths)
    enough = (offer for other, offer in candidates if other == kind and sum(offer) <= most)
    return min((offer for offer in enough if all(map(ge, offer, widths))), key=sum, default=None)


def rows_as_wide(rows: Rows, widths: Widths, order: Tensor) -> Rows:
    """The rows for a recorded turn of these widths, whose order is read from ``order`` [B]."""
    size = len(rows)
    shapes = replace(as_bounded(rows.blocks.shapes), bounds=widths[:size], most=widths[size:], order=order)
    return replace(rows, blocks=replace(rows.blocks, shapes=shapes))


def turn_into(buffers: StaticBuffers, rows: Rows, forward: Forward, parts: Parts) -> tuple[Rows, Turn, Tensor]:
    """A turn from the outputs of the last one to new outputs, as rows on these, with the numbers that it reports."""
    run = begin_from(buffers, rows, forward)
    return end_into(buffers, run, host_answers(run, rows), forward, parts)


def begin_from(buffers: StaticBuffers, rows: Rows, forward: Forward) -> NetworkRun:
    """The first part of such a turn: until the host knows how the forward goes on."""
    copy_all(buffers.inputs, buffers.outputs)
    return forward.run(rows.with_tensors(buffers.inputs))


def end_into(
    buffers: StaticBuffers, run: NetworkRun, answers: Sequence[Any], forward: Forward, parts: Parts
) -> tuple[Rows, Turn, Tensor]:
    """The second part, by the host's ``answers`` to the calls."""
    head = forward.head(with_answers(run, answers))
    return forward.stage(settle_into, buffers.outputs, run.rows, head, forward, parts)


def settle_into(
    outputs: Sequence[Tensor], rows: Rows, head: ScoredHead, forward: Forward, parts: Parts
) -> tuple[Rows, Turn, Tensor]:
    """What follows from a forward, with the rows' tensors written to ``outputs``, which hold what the turn began with:
    what no turn changes is there."""
    after, turn = settle(rows, head, forward, parts)
    triples = zip(outputs, after.tensors(), rows.tensors(), strict=True)
    writes = [(place, tensor) for place, tensor, before in triples if tensor is not before]
    if torch.compiler.is_compiling():  # the kernels that make them write them there
        for place, tensor in writes:
            place.copy_(tensor)
    else:
        copy_all([place for place, _ in writes], [tensor for _, tensor in writes])
    return after, turn, after.numbers()


def recording_key(rows: Rows, forward: Forward) -> Key:
    """What two turns must have in common to share a recording, besides the widths of their rows."""
    shapes = as_bounded(rows.blocks.shapes)
    kind = replace(shapes, bounds=(), most=())
    return (shapes_of(rows), kind, len(shapes.most), forward.proposer.statistics, *rows.session.graph_key())


def empty(like: Tensor) -> Tensor:
    """A tensor of the same shape with memory of its own."""
    return torch.empty(like.shape, dtype=like.dtype, device=like.device)


def shapes_of(rows: Rows) -> Key:
    """Kinds and shapes of all tensors of the rows."""
    return tuple((tensor.dtype, tensor.shape) for tensor in rows.tensors())
