"""Whole turns recorded once per shape and replayed: what ``runtime=cudagraph`` does for all rules that ask nothing.

A turn is one forward, the rule's step, and some hundred small operations around them, which take the host longer than
the GPU. With shapes that the host knows beforehand and nothing asked, a turn is a function of tensors: those of the
rows. They lie at fixed addresses, once as they are before the turn (``inputs``) and once as they are after it
(``outputs``). A recording copies outputs to inputs, takes the turn from there, and copies what has become of the rows
to the outputs. So one recording follows upon another, and the host launches one replay a turn, and the copy of what the
rows report.

What the host decides is in the key of a recording: how many columns of each row are computed, the shapes of the rows'
tensors, what the cache's session knows, and where its buffers lie. The first turn of each kind runs as it is.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from dllm.cache.base import AnySession
from dllm.cache.calls import RowNumbers
from dllm.compose.fitted import Parts
from dllm.contract import Turn
from dllm.loop.denoise import TakeTurn, advance, take_turn
from dllm.loop.forward import Forward
from dllm.loop.rows import Rows
from dllm.models.transformer import Transformer
from dllm.runtime.graphs import MAX_RECORDINGS, BufferPools, Recorder, Recording, remember
from dllm.runtime.runtime import RECORDED, Network, Runtime

Key = tuple[Hashable, ...]


def build_runtime(runtime: Runtime, model: Transformer, parts: Parts) -> tuple[Network, TakeTurn]:
    """The model as the loop calls it under a runtime, and what takes its turns. Raises UserError for a model that the
    runtime cannot run."""
    whole = runtime.name in RECORDED and not (parts.sampler.traits.syncs or parts.eos.traits.syncs)
    network = runtime.network(model, whole)
    return network, RecordedTurns(model, Recorder(model.device)) if whole else take_turn


@dataclass(frozen=True)
class StaticBuffers:
    """The tensors of rows at fixed addresses."""

    inputs: list[Tensor]  # as they are before a turn
    outputs: list[Tensor]  # as they are after it, and so before the next one

    def copy_in(self, tensors: Sequence[Tensor]) -> None:
        """Make the ``tensors`` those before the coming turn. A turn that was not recorded may have taken an output over
        in another place, whose copy must come first."""
        taken = {one.data_ptr() for one in self.outputs}
        moved = [
            one if one is place or one.data_ptr() not in taken else one.clone()
            for one, place in zip(tensors, self.outputs, strict=True)
        ]
        copy_all(self.outputs, moved)


@dataclass(frozen=True)
class RecordedTurn:
    """A turn that was recorded, on tensors of its own."""

    recording: Recording  # what is replayed
    buffers: StaticBuffers  # the rows' tensors
    after: Rows  # what the turn makes of the rows
    turn: Turn  # the turn
    numbers: Tensor  # [k, B] what the rows report
    held: Any  # what else it reads at fixed addresses, which must not be freed before it

    def replay(self, rows: Rows) -> tuple[Rows, Turn, Tensor]:
        """The turn of these rows."""
        self.buffers.copy_in(rows.tensors())
        self.recording.replay()
        # New values on the same tensors: what a canvas has cached of its masks was true of an earlier turn.
        after, turn = self.after.with_tensors(self.buffers.outputs), self.turn
        view = replace(turn.view, canvas=replace(turn.view.canvas))
        turn = replace(turn, view=view, tried=replace(turn.tried), candidates=replace(turn.candidates))
        return after.on_host_as(rows), turn, self.numbers


class RecordedTurns:
    """Takes turns as ``take_turn`` does; a turn's tensors last until the next one."""

    def __init__(self, model: Transformer, recorder: Callable[[], Recording], most: int = MAX_RECORDINGS) -> None:
        self.model, self.recorder, self.most = model, recorder, most
        self.pools = BufferPools(model)
        self.recorded: OrderedDict[Key, RecordedTurn] = OrderedDict()
        self.seen: OrderedDict[Key, None] = OrderedDict()
        self.buffers: OrderedDict[Key, StaticBuffers] = OrderedDict()
        self.owners: list[Callable[[], RowNumbers | None]] = []  # which decode has each slot of static buffers
        self.parts: Parts | None = None

    def __call__(self, rows: Rows, forward: Forward, parts: Parts) -> tuple[Rows, Turn]:
        self.parts = self.parts or parts
        assert self.parts == parts, "one setting"
        if forward.offers or not rows.constraints.free:  # the host takes part in their turns
            return take_turn(rows, forward, parts)
        rows = rows.bounded()
        for pool in self.pools.attach_buffers(rows.session.static):
            self._forget(pool)
        slot = self._slot(rows.session.row_numbers)
        key = slot, *recording_key(rows, forward)
        if key in self.recorded or key in self.seen:
            if key not in self.recorded:
                own = [one.clone() for one in rows.tensors()]  # recording writes to those that are there
                rows = rows.with_tensors(own)
                made = self._record(rows, slot, forward, parts)
                for old in remember(self.recorded, key, made, self.most):
                    old.recording.release()
            self.recorded.move_to_end(key)
            after, turn, numbers = self.recorded[key].replay(rows)
        else:
            after, turn = advance(rows, forward, parts)
            numbers = after.numbers()
            if shapes_of(after) == shapes_of(rows):  # else the next turn is of another kind
                remember(self.seen, key, None, 4 * self.most)
        after, finished = after.reported(numbers)
        return after, replace(turn, finished=finished)

    def _record(self, rows: Rows, slot: int, forward: Forward, parts: Parts) -> RecordedTurn:
        buffers, own, made = self._buffers(rows, slot), rows.tensors(), list[Any]()

        def work() -> None:
            copy_all(buffers.inputs, buffers.outputs)
            after, turn = advance(rows.with_tensors(buffers.inputs), forward, parts)
            numbers = after.numbers()
            copy_all(buffers.outputs, after.tensors())
            made[:] = after, turn, numbers

        recording = self.recorder()
        recording.record(work, lambda: copy_all(buffers.outputs, own))
        after, turn, numbers = made
        scores, config = turn.view.scores, self.model.config
        small = {one: found for one, found in scores.readings.items() if one.width(config) == 1}
        turn = replace(turn, view=replace(turn.view, scores=replace(scores, readings=small)))
        held = dict(rows.session.row_numbers.made), [dict(one.tables) for one in self.model.rotations], forward.shared
        after = replace(after, session=AnySession())
        return RecordedTurn(recording, buffers, after, turn, numbers, held)

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
            inputs, outputs = ([empty(one) for one in rows.tensors()] for _ in range(2))
            remember(self.buffers, key, StaticBuffers(inputs, outputs), self.most)
        self.buffers.move_to_end(key)
        return self.buffers[key]

    def _forget(self, pool: int) -> None:
        """Free the recordings that use the memory at an address."""
        for key in [key for key in self.recorded if pool in key]:
            self.recorded.pop(key).recording.release()


def recording_key(rows: Rows, forward: Forward) -> Key:
    """What two turns must have in common to share a recording."""
    shapes = rows.blocks.shapes
    return (shapes_of(rows), shapes, forward.proposer.wanted, *rows.session.static.graph_key())


def empty(like: Tensor) -> Tensor:
    """A tensor of the same shape with memory of its own."""
    return torch.empty(like.shape, dtype=like.dtype, device=like.device)


def shapes_of(rows: Rows) -> Key:
    """Kinds and shapes of all tensors of the rows."""
    return tuple((one.dtype, one.shape) for one in rows.tensors())


def copy_all(into: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    """Copy tensors to others of the same shapes, in one launch for each kind of number. An empty one would make it a
    launch for each tensor."""
    pairs = [(one, other) for one, other in zip(into, source, strict=True) if one is not other and one.numel()]
    for _, same in groupby(sorted(pairs, key=lambda pair: str(pair[0].dtype)), key=lambda pair: pair[0].dtype):
        targets, sources = zip(*same, strict=True)
        torch._foreach_copy_(list(targets), list(sources))
