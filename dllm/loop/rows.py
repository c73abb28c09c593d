"""The rows of a running batch: everything that belongs to a request, in one value.

Rows leave when they finish, and others join between turns. What the parts remember of a row leaves and joins with it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dllm.common.errors import name_of
from dllm.common.rowwise import Owner, each_tensor, join, select
from dllm.compose.fitted import Parts
from dllm.constraints.decoding.batch import ConstrainedBatch
from dllm.contract import BlockState, ForwardPlan, Ledger, State, Step, Turn
from dllm.contract.canvas import Canvas
from dllm.contract.checks import checked_start
from dllm.contract.reshape import Reshape, reshaped
from dllm.contract.shapes import HostView, Shapes, as_bounded
from dllm.contract.traits import Soft
from dllm.loop.pace import Pace
from dllm.models.text.ids import Ids
from dllm.parts.cache.base import Session


@dataclass(frozen=True)
class HostReport:
    """Numbers of the rows after a turn, on their way to the host."""

    numbers: Tensor  # [k, B] on the host, once ``arrival`` is reached
    arrival: Any  # event after which the numbers are there (None: they are there); papers: CUDA event
    rows: tuple[int, ...]  # which of the numbers each row of the batch has (-1: it joined later)

    @staticmethod
    def of(numbers: Tensor) -> HostReport:
        """Send the numbers [k, B]. The device goes on meanwhile."""
        copy = numbers.to("cpu", non_blocking=True, copy=True)  # from a GPU into pinned memory
        arrival = None
        if numbers.is_cuda and torch.cuda.is_available():
            arrival = torch.cuda.Event()
            arrival.record(torch.cuda.current_stream(numbers.device))
        return HostReport(copy, arrival, tuple(range(numbers.shape[1])))

    def read(self) -> list[list[int] | None]:
        """The numbers of each row (None: it joined later). Waits until they have arrived."""
        if self.arrival is not None:
            self.arrival.synchronize()
        numbers = self.numbers.T.tolist()
        return [None if row < 0 else numbers[row] for row in self.rows]

    def read_row(self) -> list[int]:
        """The only number of each row, of rows that are all there."""
        return [numbers[0] for numbers in self.read() if numbers is not None]

    def select(self, rows: Sequence[int]) -> HostReport:
        return replace(self, rows=tuple(self.rows[row] for row in rows))

    def join(self, count: int) -> HostReport:
        return replace(self, rows=(*self.rows, *(-1,) * count))


@dataclass(frozen=True)
class Rows:
    """The N candidates of B rows, with everything that belongs to them. In papers: batch, running requests.

    The session changes in place: use only the result after selecting or joining rows.
    """

    # What each turn makes, all on the device (``ON_DEVICE``).

    candidates: Canvas  # [N] their canvases; papers: drafts
    owner: Owner  # the row of each candidate
    blocks: BlockState  # [B] where the blocks stand
    state: State  # [B, ...] what the sampler remembers of the rows
    cache_state: State  # [B, ...] what the cache remembers of the rows
    lengths: State  # [B, ...] what the part that says how long they are remembers of the rows
    next_positions: Tensor  # [B, L] what the sampler said it will commit next
    ledger: Ledger  # [B] what is recorded of them
    # [B, ...] what a turn of a row hands to the next forward of its block, by the block's columns; empty where that
    # takes nothing. In papers: self-conditioning, soft tokens
    carried: State
    # [B] the plan of the coming forward, whose ``state`` is ``cache_state``, if the host learns its widths from the
    # rows (None: it is made when the forward begins)
    plan: ForwardPlan | None

    # What the host holds.

    session: Session  # the cache's buffers
    constraints: ConstrainedBatch  # the constraints that the rows are under
    host_views: tuple[HostView, ...]  # what the host knows of each row (empty if shapes are exact)
    paces: tuple[Pace, ...]  # what each row has left to decide, and its turns without progress
    reports: tuple[HostReport, ...] = ()  # of the last turns, those that the host has not read yet, the oldest first
    leaders: tuple[int, ...] = ()  # of the coming forward (``Shapes.leaders``)

    @staticmethod
    def start(
        canvas: Canvas, session: Session, parts: Parts, shapes: Shapes, constraints: ConstrainedBatch, carried: State
    ) -> Rows:
        """Rows before their first turn, one candidate each. carried: what they hand to their first forward."""
        sampler, blocks = parts.sampler, parts.blocks
        first = blocks.start(canvas, sampler.traits.lookahead, shapes)
        if parts.eos.traits.writes:
            canvas = parts.eos.opened(canvas, first)
        state = checked_start(f"{{sampler={name_of(sampler)}}}: start()", sampler.start(canvas, blocks), canvas)
        lengths, waits = parts.length.start(canvas), sampler.may_wait(canvas)
        if parts.length.traits.changes:
            waits = waits + parts.length.may_wait(canvas)
        rows = Rows(
            canvas,
            Owner.single(len(canvas.row_id), canvas.row_id.device),
            first.closed(parts.length.waits(lengths)),
            state,
            session.remembers(canvas),
            lengths,
            torch.zeros_like(canvas.tokens),
            Ledger.start(canvas),
            carried,
            None,
            session,
            constraints,
            (),
            Pace.start(canvas, first, waits),
        ).planned()
        if not shapes.bounded:
            return rows
        host_views = tuple(HostView.of(numbers, shapes.lag) for numbers in torch.stack(rows.host_numbers()).T.tolist())
        return replace(rows, host_views=tuple(replace(row, opening=True, staleness=0) for row in host_views))

    def __len__(self) -> int:
        return self.owner.rows

    def tensors(self) -> list[Tensor]:
        """All tensors that each turn makes, in a fixed order."""
        out: list[Tensor] = []

        def note(tensor: Tensor) -> Tensor:
            out.append(tensor)
            return tensor

        each_tensor(note, [getattr(self, name) for name in ON_DEVICE])
        return out

    def with_tensors(self, tensors: Iterable[Tensor]) -> Rows:
        """The same rows on other tensors, as ``tensors`` orders them."""
        source = iter(tensors)
        return replace(self, **{name: each_tensor(lambda _: next(source), getattr(self, name)) for name in ON_DEVICE})

    def on_host_as(self, other: Rows) -> Rows:
        """The same with what the host holds of ``other``."""
        return replace(other, **{name: getattr(self, name) for name in ON_DEVICE})

    def select(self, rows: Sequence[int]) -> Rows:
        """The rows of these numbers, ascending, with all that belongs to them."""
        index = torch.tensor(rows, dtype=torch.int64, device=self.next_positions.device)
        owner, candidates = self.owner.select(index)
        return replace(
            self,
            **{name: select(getattr(self, name), index) for name in BY_ROW},
            candidates=self.candidates.select(candidates),
            owner=owner,
            session=self.session.select(index),
            constraints=self.constraints.select(rows),
            host_views=tuple(self.host_views[row] for row in rows if self.host_views),
            paces=tuple(self.paces[row] for row in rows),
            reports=tuple(report.select(rows) for report in self.reports),
            leaders=tuple(first_places([self.leaders[row] for row in rows if self.leaders])),
        )

    def change_lengths(self, turn: Turn, parts: Parts, ids: Ids) -> tuple[Rows, Turn]:
        """The rows and their turn after the lengths of rows have changed, with everything that is kept by column in its
        new column. Every row has one candidate."""
        change, state = parts.length.change(self.candidates, turn.view, turn.step, self.lengths)
        reshape, lengths = reshaped(self.candidates, change), self.lengths | state
        rows = self if reshape is None else self._reshape(reshape, parts, ids)
        rows = replace(rows, lengths=lengths, blocks=rows.blocks.closed(parts.length.waits(lengths)))
        after = replace(turn, candidates=rows.candidates, blocks=rows.blocks, ledger=rows.ledger, reshape=reshape)
        return rows, after

    def _reshape(self, reshape: Reshape, parts: Parts, ids: Ids) -> Rows:
        """Everything that is kept by column. A row that was done and has got masks counts its blocks from the column
        in which it grew."""
        canvas, grows = reshape.canvas(ids.placeholder, ids.eos), self.blocks.done & reshape.open.any(1)
        canvas = replace(canvas, grid=torch.where(grows, reshape.before.end, canvas.grid))
        return replace(
            self,
            candidates=canvas,
            blocks=parts.blocks.follow(canvas, self.blocks, reshape),
            ledger=self.ledger.reshaped(reshape, self.blocks.turn),
            next_positions=reshape.moved(self.next_positions),
            state=reshape.state(self.state, parts.sampler.per_block),
            cache_state=self.session.move(reshape, self.cache_state),
        )

    def handed_on(self, step: Step, soft: Soft, canvas: Canvas, now: BlockState) -> State:
        """What the rows hand to the next forward of a block that stays open, after a step that shows mixtures. canvas:
        theirs after the turn, and ``now`` its blocks."""
        mixture, size = step.mixture, self.carried["where"].shape[1]
        assert mixture is not None
        columns = now.begin[:, None] + torch.arange(size, device=now.begin.device)
        inside = (columns < now.end[:, None]) & (now.index == self.blocks.index)[:, None]
        columns = columns.clamp(max=len(canvas.columns) - 1)
        wide = columns[..., None].expand(-1, -1, soft.tokens)
        where = mixture.stands(canvas, soft.at).gather(1, columns) & inside
        return {"where": where, "tokens": mixture.tokens.gather(1, wide), "weights": mixture.weights.gather(1, wide)}

    def without(self, rows: Sequence[int]) -> Rows:
        """The rows but those of these numbers."""
        return self.select([row for row in range(len(self)) if row not in rows]) if rows else self

    def join(self, fresh: Rows) -> Rows:
        """These rows, then those of ``fresh``, which were started with the same parts and have had no turn yet."""
        joined = {name: join(getattr(self, name), getattr(fresh, name)) for name in BY_ROW}
        joined["blocks"] = replace(joined["blocks"], shapes=self.blocks.shapes.join(fresh.blocks.shapes))
        return replace(
            self,
            **joined,
            candidates=self.candidates.join(fresh.candidates),
            owner=self.owner.join(fresh.owner),
            session=self.session.join(fresh.session),
            constraints=self.constraints.join(fresh.constraints),
            host_views=self.host_views + fresh.host_views,
            paces=self.paces + fresh.paces,
            reports=tuple(report.join(len(fresh)) for report in self.reports),
            leaders=self._led_with(fresh),
        )

    def led_by(self, leaders: Sequence[int]) -> Rows:
        """The same rows; in the coming forward only those run that lead themselves."""
        return replace(self, leaders=tuple(leaders)) if len(set(leaders)) < len(leaders) else self

    def _led_with(self, fresh: Rows) -> tuple[int, ...]:
        """The leaders of these rows and of ``fresh`` ones after them."""
        if not (self.leaders or fresh.leaders):
            return ()
        ours, theirs = self.leaders or range(len(self)), fresh.leaders or range(len(fresh))
        return (*ours, *(len(self) + leader for leader in theirs))

    def planned(self) -> Rows:
        """The rows with the plan of the coming forward, if the host learns its widths from them."""
        if not self.blocks.shapes.plans_ahead:
            return self
        plan = replace(self, plan=None).coming()
        return replace(self, plan=replace(plan, state={}), cache_state=plan.state)

    def coming(self) -> ForwardPlan:
        """The plan [B] of the coming forward."""
        if self.plan is not None:
            return replace(self.plan, shapes=self.blocks.shapes, state=self.cache_state)
        canvas = self.owner.per_row(self.candidates)
        return self.session.plan(canvas, self.blocks, self.next_positions, self.cache_state)

    def bounded(self) -> Rows:
        """The rows with the bounds of the coming forward, if shapes are bounded, and its leaders."""
        led = replace(self.blocks.shapes, leaders=self.leaders) if self.leaders else self.blocks.shapes
        if not led.bounded:
            return replace(self, blocks=replace(self.blocks, shapes=led)) if self.leaders else self
        shapes = as_bounded(led)
        if shapes.plans_ahead:
            reports, length = [row.widths for row in self.host_views], len(self.candidates.columns)
            shapes = shapes.reported(reports, length, self.session.traits.facts)
        else:
            most = self.session.most(self.host_views)
            shapes = shapes.bounded_by(self.session.max_queries(self.host_views, shapes.width), most)
        return replace(self, blocks=replace(self.blocks, shapes=shapes))

    def numbers(self) -> Tensor:
        """What the rows report after a turn [k, B]: whether they are done, how many positions the first candidate has
        left to decide, which has every mask of the others, and what ``HostView.of`` takes."""
        remaining = self.owner.per_row(self.candidates.undecided).sum(1)
        return torch.stack([self.blocks.done, remaining, *(self.host_numbers() if self.blocks.shapes.bounded else ())])

    def host_numbers(self) -> list[Tensor]:
        """What ``HostView.of`` takes, each [B]."""
        blocks = self.blocks
        if blocks.shapes.plans_ahead:
            return self.session.widths(self.coming())
        canvas = self.owner.per_row(self.candidates)
        counts = self.session.counts(canvas, blocks, self.next_positions, self.cache_state)
        return [blocks.begin, blocks.opened, blocks.turn, *counts]

    def reported(self, numbers: Tensor) -> tuple[Rows, tuple[int, ...]]:
        """The rows after they have reported their ``numbers``, and which of them the host knows to be done: after this
        turn, or ``lag`` turns ago."""
        if self.leaders:  # of the forward that was, alone
            blocks = replace(self.blocks, shapes=replace(self.blocks.shapes, leaders=()))
            return replace(self, blocks=blocks, leaders=()).reported(numbers)
        lag = self.blocks.shapes.lag
        reports, views = (*self.reports, HostReport.of(numbers)), tuple(row.later() for row in self.host_views)
        if len(reports) <= lag:
            return replace(self, host_views=views, reports=reports), ()
        numbers_by_row = reports[0].read()
        pairs = zip(views, numbers_by_row, strict=False)
        views = tuple(HostView.of(new[2:], lag) if new else old for old, new in pairs)
        paces = tuple(pace.after(new[1]) if new else pace for pace, new in zip(self.paces, numbers_by_row, strict=True))
        finished = tuple(row for row, numbers in enumerate(numbers_by_row) if numbers and numbers[0])
        return replace(self, host_views=views, paces=paces, reports=reports[1:]), finished


def first_places(groups: Iterable[Hashable]) -> list[int]:
    """For each entry the place of the first one that is equal."""
    first = dict[Hashable, int]()
    return [first.setdefault(group, place) for place, group in enumerate(groups)]


BY_ROW = ("blocks", "state", "cache_state", "lengths", "next_positions", "ledger", "carried", "plan")
ON_DEVICE = ("candidates", "owner", *BY_ROW)
