"""Whole turns recorded once per shape and replayed: what ``runtime=cudagraph`` does for all rules that ask nothing.

A turn is one forward, the rule's step, and some hundred small operations around them, which take the host longer than
the GPU. With shapes that the host knows beforehand and nothing asked, a turn is a function of tensors: those of the
rows. They lie at fixed addresses, once as they are before the turn (``here``) and once as they are after it
(``there``). A recording copies ``there`` to ``here``, takes the turn from ``here``, and copies what has become of the
rows to ``there``. So one recording follows upon another, and the host launches one replay a turn, and the copy of what
the rows report.

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

from dllm.blocks.base import Blocks
from dllm.cache.base import Session
from dllm.cache.calls import RowNumbers
from dllm.common.rowwise import each_tensor
from dllm.contract import Turn
from dllm.eos.base import EndOfText
from dllm.loop.denoise import TakeTurn, advance, take_turn
from dllm.loop.forward import Forward
from dllm.loop.rows import Rows
from dllm.models.transformer import Transformer
from dllm.runtime.graphs import MAX_RECORDINGS, BufferPools, Recorder, Recording, remember
from dllm.runtime.runtime import RECORDED, Network, Runtime
from dllm.samplers.base import Sampler

Kind = tuple[Hashable, ...]


def build_runtime(runtime: Runtime, model: Transformer, sampler: Sampler, eos: EndOfText) -> tuple[Network, TakeTurn]:
    """The model as the loop calls it under a runtime, and what takes its turns. Raises UserError for a model that the
    runtime cannot run."""
    whole = runtime.name in RECORDED and not (sampler.asks or eos.asks)
    network = runtime.network(model, whole)
    return network, RecordedTurns(model, Recorder(model.device)) if whole else take_turn


@dataclass(frozen=True)
class StaticBuffers:
    """The tensors of rows at fixed addresses, before a turn and after it."""

    here: list[Tensor]
    there: list[Tensor]

    def copy_in(self, tensors: Sequence[Tensor]) -> None:
        """Copy the tensors ``there``, but for those that are there. A turn that was not recorded may have taken one of
        them over in another place, whose copy must come first."""
        taken = {one.data_ptr() for one in self.there}
        moved = [
            one if one is place or one.data_ptr() not in taken else one.clone()
            for one, place in zip(tensors, self.there, strict=True)
        ]
        copy_all(self.there, moved)


@dataclass(frozen=True)
class RecordedTurn:
    """after, turn: what the turn makes of the rows, without their session, on the recording's own tensors. numbers:
    what the rows report. held: what else it reads at fixed addresses, which must not be freed before it."""

    recording: Recording
    ground: StaticBuffers
    after: Rows
    turn: Turn
    numbers: Tensor
    held: Any

    def replay(self, rows: Rows) -> tuple[Rows, Turn, Tensor]:
        """The turn of these rows."""
        self.ground.copy_in(tensors_of(rows))
        self.recording.replay()
        after = with_tensors(replace(self.after, session=rows.session, known=rows.known, paces=rows.paces,
                             reports=rows.reports, constraints=rows.constraints), self.ground.there)  # fmt: skip
        return after, self.turn, self.numbers


class RecordedTurns:
    """Takes turns as ``take_turn`` does; a turn's tensors last until the next one."""

    def __init__(self, model: Transformer, recorder: Callable[[], Recording], most: int = MAX_RECORDINGS) -> None:
        self.model, self.recorder, self.most = model, recorder, most
        self.pools = BufferPools(model)
        self.recorded: OrderedDict[Kind, RecordedTurn] = OrderedDict()
        self.seen: OrderedDict[Kind, None] = OrderedDict()
        self.grounds: OrderedDict[Kind, StaticBuffers] = OrderedDict()
        self.tenants: list[Callable[[], RowNumbers | None]] = []  # who decodes on each lane of grounds
        self.parts: tuple[object, ...] = ()

    def __call__(
        self, rows: Rows, forward: Forward, sampler: Sampler, blocks: Blocks, eos: EndOfText
    ) -> tuple[Rows, Turn]:
        self.parts = self.parts or (sampler, blocks, eos)
        assert all(one is other for one, other in zip(self.parts, (sampler, blocks, eos), strict=True)), "one setting"
        if not rows.constraints.free:  # the host takes part in their turns
            return take_turn(rows, forward, sampler, blocks, eos)
        rows = rows.bounded()
        for pool in self.pools.attach_buffers(rows.session):
            self._forget(pool)
        lane = self._lane(rows.session.row_numbers)
        kind = lane, *kind_of(rows, forward)
        if kind in self.recorded or kind in self.seen:
            if kind not in self.recorded:
                rows = with_tensors(
                    rows, [one.clone() for one in tensors_of(rows)]
                )  # recording writes to those that are there
                made = self._record(rows, lane, lambda given: advance(given, forward, sampler, blocks, eos))
                for old in remember(self.recorded, kind, made, self.most):
                    old.recording.release()
            self.recorded.move_to_end(kind)
            after, turn, numbers = self.recorded[kind].replay(rows)
        else:
            after, turn = advance(rows, forward, sampler, blocks, eos)
            numbers = after.numbers()
            if shapes_of(after) == shapes_of(rows):  # else the next turn is of another kind
                remember(self.seen, kind, None, 4 * self.most)
        after, finished = after.reported(numbers)
        return after, replace(turn, finished=finished)

    def _record(self, rows: Rows, lane: int, take: Callable[[Rows], tuple[Rows, Turn]]) -> RecordedTurn:
        ground, own, made = self._ground(rows, lane), tensors_of(rows), list[Any]()

        def work() -> None:
            copy_all(ground.here, ground.there)
            after, turn = take(with_tensors(rows, ground.here))
            numbers = after.numbers()
            copy_all(ground.there, tensors_of(after))
            made[:] = after, turn, numbers

        recording = self.recorder()
        recording.record(work, lambda: copy_all(ground.there, own))
        after, turn, numbers = made
        with_tensors(rows, own)  # recording has moved their session on
        scores = replace(turn.view.scores, logits=None, lookup=None)
        turn = replace(turn, view=replace(turn.view, scores=scores))
        held = dict(rows.session.row_numbers.made), dict(self.model.rotary.tables)
        return RecordedTurn(recording, ground, replace(after, session=Session()), turn, numbers, held)

    def _lane(self, tenant: RowNumbers) -> int:
        """A number for a decode, other than those of all decodes that are still under way."""
        for number, other in enumerate(self.tenants):
            if other() is tenant:
                return number
        free = next((number for number, other in enumerate(self.tenants) if other() is None), len(self.tenants))
        self.tenants[free : free + 1] = [weakref.ref(tenant)]
        return free

    def _ground(self, rows: Rows, lane: int) -> StaticBuffers:
        """The fixed tensors for rows of such shapes."""
        shapes = lane, *shapes_of(rows)
        if shapes not in self.grounds:
            here, there = ([empty(one) for one in tensors_of(rows)] for _ in ("here", "there"))
            remember(self.grounds, shapes, StaticBuffers(here, there), self.most)
        self.grounds.move_to_end(shapes)
        return self.grounds[shapes]

    def _forget(self, pool: int) -> None:
        """Free the recordings that use the memory at an address."""
        for kind in [kind for kind in self.recorded if pool in kind]:
            self.recorded.pop(kind).recording.release()


def kind_of(rows: Rows, forward: Forward) -> Kind:
    """What two turns must have in common to share a recording."""
    shapes = rows.blocks.shapes
    return (shapes_of(rows), shapes, forward.proposer.wanted, *rows.session.graph_key())


def tensors_of(rows: Rows) -> list[Tensor]:
    """All tensors of the rows, those of the session's state included, in a fixed order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    for part in (
        rows.candidates,
        rows.owner,
        rows.blocks,
        rows.state,
        rows.session.state,
        rows.next_positions,
        rows.ledger,
    ):
        each_tensor(note, part)
    return found


def empty(like: Tensor) -> Tensor:
    """A tensor of the same shape with memory of its own."""
    return torch.empty(like.shape, dtype=like.dtype, device=like.device)


def shapes_of(rows: Rows) -> Kind:
    """Kinds and shapes of all tensors of the rows."""
    return tuple((one.dtype, one.shape) for one in tensors_of(rows))


def with_tensors(rows: Rows, tensors: Sequence[Tensor]) -> Rows:
    """The rows on other tensors. Their session changes in place."""
    left = iter(tensors)

    def other(tensor: Tensor) -> Tensor:
        return next(left)

    candidates, owner = each_tensor(other, rows.candidates), each_tensor(other, rows.owner)
    blocks, state = each_tensor(other, rows.blocks), each_tensor(other, rows.state)
    rows.session.state = each_tensor(other, rows.session.state)
    next_positions, ledger = each_tensor(other, rows.next_positions), each_tensor(other, rows.ledger)
    return replace(
        rows,
        candidates=candidates,
        owner=owner,
        blocks=blocks,
        state=state,
        next_positions=next_positions,
        ledger=ledger,
    )


def copy_all(into: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    """Copy tensors to others of the same shapes, in one launch for each kind of number."""
    pairs = [(one, other) for one, other in zip(into, source, strict=True) if one is not other]
    for _, same in groupby(sorted(pairs, key=lambda pair: str(pair[0].dtype)), key=lambda pair: pair[0].dtype):
        targets, sources = zip(*same, strict=True)
        torch._foreach_copy_(list(targets), list(sources))
