"""Keep a share of the keys outside the open blocks, chosen per layer (Sparse-dLLM, arXiv 2508.02558).

The two first forwards of a block compute every column. The second one chooses, in every layer, the columns to which the
block's queries point most, and keeps their keys and values in slots that follow one another: the block's own first, the
chosen ones after them. Every layer keeps as many, so one count of keys serves all of them, and no layer needs a mask.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from dllm.cache.base import AnySession, Cache, StaticSession
from dllm.cache.buffer_memory import blank
from dllm.cache.calls import Group, RowNumbers, rows_by_call
from dllm.cache.columns import gather_padded, gather_rows, moved_up
from dllm.cache.flash_dllm import products
from dllm.cache.passes import Call, ForwardPass
from dllm.common.ranking import top_k_mask
from dllm.common.rowwise import Owner, each_tensor, join, select_or_all
from dllm.contract import BlockState, ForwardCost, ForwardPlan, Need, State
from dllm.contract.canvas import Canvas, packed
from dllm.contract.setting import Setting
from dllm.contract.shapes import bucket
from dllm.contract.traits import CacheTraits, Rule
from dllm.errors import IncompatibleParts, UserError, in_range, name_of
from dllm.models.attention import Visible
from dllm.models.config import ModelConfig
from dllm.models.memory import Buffers, DeviceCopies, Exchanged, KeyValues, Memory, Projected, StaticMemory

NOT_KEPT = -1  # begin and end of the blocks of a row that has nothing kept


class SparseDLLM(Cache):
    """The first two forwards of a block are full, and the sampler commits from both. The others compute the open
    blocks, which attend to themselves and to ``keep_ratio`` of the columns outside them.

    keep_ratio: 1 keeps all, 0 none. kernel_size: a column counts as much as the best of this many neighbours, an odd
    number (1: as itself). query_left matters for models that predict from the position before (Dream): a forward starts
    one column left of the block. Without it (the published code) the first forward of a block commits the block's first
    position alone, and the others do not predict it.
    """

    traits = CacheTraits(
        scores_all_at_open=True, committed=True, bounded_shapes=True, acts_in_layers=True, heads="summed"
    )

    def __init__(self, keep_ratio: float = 0.5, kernel_size: int = 3, query_left: bool = True) -> None:
        in_range("cache.keep_ratio", keep_ratio, 0.0, 1.0)
        in_range("cache.kernel_size", kernel_size, 1)
        if kernel_size % 2 == 0:
            raise UserError(f"cache.kernel_size={kernel_size} must be odd, so that a column is in the middle of it.")
        self.keep_ratio, self.kernel_size, self.query_left = keep_ratio, kernel_size, query_left

    def check(self, setting: Setting, sampler: Rule, needs: Sequence[Need]) -> None:
        super().check(setting, sampler, needs)
        name = f"cache={name_of(self)}"
        if setting.blocks.traits.slides:
            raise IncompatibleParts(
                f"{name} chooses what to keep in the second forward of a block, but "
                f"blocks={name_of(setting.blocks)} opens one only, and moves it."
            )
        if sampler.traits.revocable and setting.model.prediction_shift and not self.query_left:
            raise IncompatibleParts(
                "cache.query_left=false predicts a block's first position only once, so a sampler that remasks it "
                "would wait for it forever. Use cache.query_left=true."
            )

    def warning(self, setting: Setting) -> str | None:
        if self.keep_ratio < 1:
            return None
        return (
            f"cache={name_of(self)} keeps every column at cache.keep_ratio=1, and computes all of them twice a block, "
            "where cache=dual does so once."
        )

    def left(self, config: ModelConfig) -> int:
        """Columns before the block that every forward computes."""
        return int(self.query_left and config.prediction_shift > 0)

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> AnySession:
        return SparseSession(self, canvas, config, shrinks)

    def kept_numbers(self, columns: int, opened: int, config: ModelConfig) -> int:
        slots = opened + self.left(config) + int(columns * self.keep_ratio)
        return super().kept_numbers(slots, opened, config)


@dataclass(frozen=True)
class SparseCall(Call):
    """A call with what its memory reads besides, of [b] rows and n queries."""

    full: bool = True  # rows that compute everything may be in it
    mixed: bool = False  # rows that compute their blocks may be in it, too
    due: Tensor | None = None  # [b] rows that choose now what they keep (None: none does)
    window: Tensor | None = None  # [b, n] queries of the open blocks, whose products choose
    outside: Tensor | None = None  # [b, w] places among the queries of what may be chosen (n: padding)


@dataclass(frozen=True)
class SparsePass(ForwardPass):
    """A forward of B rows, and what they keep."""

    full: Tensor  # [B] rows that compute every column
    begin: Tensor  # [B] the column in a row's first slot
    size: Tensor  # [B] slots of its open blocks
    count: Tensor  # [B] slots of what it keeps, which follow
    most: int  # no row chooses more now
    held: Tensor  # [B, C - 1] slots that rows which compute their blocks see
    chosen: list[Tensor] = field(default_factory=list)  # by layer, [b, most] columns that were chosen (L: none)


class SparseSession(StaticSession[ForwardPlan, SparsePass]):
    """Keys and values of B rows in C slots: those of the open blocks, the kept ones, and at last one for padding.

    Of a row it remembers, each [B], the blocks that its kept columns were chosen for (``begin``, ``end``), how many
    slots these blocks have (``size``), and how many are kept (``count``).
    """

    def __init__(self, policy: SparseDLLM, canvas: Canvas, config: ModelConfig, shrinks: bool) -> None:
        self.policy, self.config, self.shrinks = policy, config, shrinks
        self.rows, self.length = canvas.masked.shape
        self.row_numbers, self.slots = RowNumbers(), 0  # C
        self.stores: list[KeyValues | None] = [None] * config.layers
        # by layer, [B, C] the column in each slot of what is kept, where rows may be cut short; else empty
        self.columns: list[Tensor] = []
        self.buffers: Buffers | None = None  # the memory that the stores are in, if it was lent
        self.named = 0  # what that memory, or memory of its own, is called on all ranks
        self.own = config.ranks.number() if shrinks else 0  # the same of ``columns``, which are never lent

    def remembers(self, canvas: Canvas) -> State:
        none = torch.full_like(canvas.start, NOT_KEPT)
        return {"begin": none, "end": none, "size": torch.zeros_like(none), "count": torch.zeros_like(none)}

    def plan(self, canvas: Canvas, blocks: BlockState, next_positions: Tensor, remembered: State) -> ForwardPlan:
        valid, left, shapes = canvas.valid, self.policy.left(self.config), blocks.shapes
        begin, end, first = blocks.begin - left, blocks.open_end, blocks.forwards == 0
        open_ = (canvas.columns >= begin[:, None]) & (canvas.columns < end[:, None])
        full = first | (remembered["begin"] != begin) | (remembered["end"] != end)
        kept = torch.where(first, NOT_KEPT, begin), torch.where(first, NOT_KEPT, end)
        share = ((valid & ~open_).sum(1).double() * self.policy.keep_ratio).long()  # as int(n r) rounds in Python
        new = dict(zip(("begin", "end", "size", "count"), (*kept, (valid & open_).sum(1), share), strict=True))
        new = {name: torch.where(full, value, remembered[name]) for name, value in new.items()}
        forced = None
        if self.config.prediction_shift and not left:
            may = canvas.undecided & blocks.in_block
            forced = may & (may.cumsum(1) == 1) & first[:, None]
        if shapes.bounded:
            width = bucket(shapes.max_per_row(open_, self.length, True) + left, self.length)
            self.slots = width + int(self.length * self.policy.keep_ratio) + 1
        state = shapes.update(blocks.active, new, remembered)
        return ForwardPlan(valid & (full[:, None] | open_), valid, forced, canvas.tokens[:, :0], valid, shapes, state)

    def widths(self, plan: ForwardPlan) -> list[Tensor]:
        """A row that computes everything reports the whole canvas: by that the host tells the two kinds of calls."""
        return [torch.where(whole_rows(plan), self.length, plan.columns.sum(1))]

    def begin(self, plan: ForwardPlan, candidates: Canvas, owner: Owner) -> SparsePass:
        queries, full, shapes, state = plan.columns & candidates.valid, whole_rows(plan), plan.shapes, plan.state
        due = full & (state["begin"] != NOT_KEPT)
        builds, mixed = shapes.any(due), shapes.bounded
        most = int(self.length * self.policy.keep_ratio) if mixed else int((state["count"] * due).max())
        if builds and not mixed:
            self.slots = max(self.slots, int((state["size"] * due).max()) + most + 1)
        self._make_room(max(1, self.slots))
        slot = torch.arange(self.slots - 1, device=full.device) if self.slots else full.new_zeros(0).long()
        held = (slot < (state["size"] + state["count"])[:, None]) & ~full[:, None]
        forward = SparsePass(
            (), owner, queries, plan.keys, candidates.valid, plan.shadows, False, plan.state, full, state["begin"],
            state["size"], state["count"], most, held,
        )  # fmt: skip
        claimed = list(shapes.widths(queries | full[:, None], owner))
        wide = [width if width >= self.length else 0 for width in claimed]
        narrow = [width if width < self.length else 0 for width in claimed]
        whole = partial(self._full_call, builds=builds, mixed=mixed)
        calls = [
            make(forward, part.among(shapes.order), candidates)
            for widths, make in ((wide, whole), (narrow, self._block_call)) if any(widths)
            for part in rows_by_call(widths, full.device, self.row_numbers)
        ]  # fmt: skip
        return replace(forward, calls=calls)

    def _full_call(
        self, forward: SparsePass, part: Group, candidates: Canvas, builds: bool, mixed: bool
    ) -> SparseCall:  # fmt: skip
        """A call of rows that compute everything; where the host knows bounds alone, of others too."""
        rows, length = part.rows, self.length
        queries, full, begin, size = (
            select_or_all(one, rows) for one in (forward.queries, forward.full, forward.begin, forward.size)
        )
        columns = packed(queries, candidates.columns, length)
        fresh = columns < length
        visible = Visible(fresh, None if mixed else fresh.sum(1).int())
        if mixed:
            slot = torch.arange(forward.held.shape[1], device=size.device)
            visible = Visible(torch.cat([fresh, select_or_all(forward.held, rows) & (slot >= size[:, None])], 1))
        call = SparseCall(rows, columns, None, visible, buffers=rows, full=True, mixed=mixed)
        if not builds:
            return call
        at, end = columns - begin[:, None], select_or_all(forward.remembered["end"], rows)
        inside = (at >= 0) & (columns < end[:, None])
        places = torch.arange(length, device=columns.device)
        return replace(
            call, due=full & (begin != NOT_KEPT), window=inside & (at >= self.policy.left(self.config)),
            outside=packed(fresh & ~inside, places, length),
        )  # fmt: skip

    def _block_call(self, forward: SparsePass, part: Group, candidates: Canvas) -> SparseCall:
        """A call of rows that compute their open blocks."""
        rows = part.rows
        queries, begin, held = (select_or_all(one, rows) for one in (forward.queries, forward.begin, forward.held))
        columns = packed(queries, candidates.columns, part.width)
        slots = torch.where(columns < self.length, columns - begin[:, None], self.slots - 1)
        visible = Visible(held, None if self.shrinks else held.sum(1).int())
        return SparseCall(
            rows, columns, slots, visible, self.slots - 1, buffers=rows, ranges=part.ranges, full=False
        )  # fmt: skip

    def memory(self, forward: SparsePass, call: Call) -> Memory:
        assert isinstance(call, SparseCall)
        return SparseMemory(self, forward, call)

    def cost(self, forward: SparsePass, scored: Tensor) -> ForwardCost:
        queries, valid = (one.sum(1, keepdim=True) for one in (forward.queries, forward.valid))
        full = forward.full[:, None]
        keys = torch.where(full, valid, (forward.size + forward.count)[:, None])
        return ForwardCost(queries, keys, torch.where(full, queries, 0), forward.computed(), scored)

    def graph_key(self) -> tuple[Hashable, ...]:
        stores = (buffer for store in self.stores for buffer in store or ())
        addresses = tuple(one.data_ptr() for one in (*stores, *self.columns))
        places = addresses if self.config.ranks.size == 1 else (self.named, self.own)
        return (self.length, self.rows, self.slots, self.shrinks, *places)

    def missing_buffers(self) -> list[tuple[int, ...]] | None:
        if None not in self.stores:
            return None
        by_layer = map(self.config.key_heads, range(self.config.layers))
        return [(self.rows, heads, self.slots, size) for heads, size in by_layer for _ in "kv"]

    def attach_buffers(self, buffers: Buffers) -> None:
        self.stores = list(zip(buffers.tensors[::2], buffers.tensors[1::2], strict=True))
        self.buffers, self.named = buffers, buffers.name

    leads = True

    def follow(self, leaders: Sequence[int]) -> None:
        """Do nothing: the first forward of a row keeps nothing."""

    def select(self, rows: Tensor) -> Self:
        self.rows, self.stores, self.columns = len(rows), moved_up(self.stores, rows), moved_up(self.columns, rows)
        return self

    def join(self, fresh: Self) -> Self:
        self.rows, self.length = self.rows + fresh.rows, max(self.length, fresh.length)
        self.slots, self.buffers = max(self.slots, fresh.slots), None
        self._make_room(max(1, self.slots))  # else a recording of as many rows finds memory that some have left
        return self

    def _make_room(self, slots: int) -> None:
        """Room for the rows and ``slots`` in what is there already. The last slot, which padding writes, may move: what
        is in it is never read."""
        shape, first = (self.rows, slots), self.stores[0]
        if first is not None and (len(first[0]) < self.rows or first[0].shape[2] < slots):
            self.named = self.config.ranks.number()  # what grows moves
        self.stores = each_tensor(lambda store: with_room(store.transpose(1, 2), *shape).transpose(1, 2), self.stores)
        self.columns = [with_room(one, *shape) for one in self.columns]

    def store(self, layer: int, key: Tensor) -> KeyValues:
        """Keys and values of a layer whose keys are like ``key`` [b, n, H_kv, h]."""
        held = self.stores[layer]
        if held is None:
            held = self.stores[layer] = blank(key, self.rows, self.slots)
        while self.shrinks and len(self.columns) <= layer:
            self.columns.append(torch.zeros(self.rows, self.slots, dtype=torch.int64, device=key.device))
        return held


def whole_rows(plan: ForwardPlan) -> Tensor:
    """Rows [B] that compute every column."""
    return (plan.columns == plan.keys).all(1)


def with_room(held: Tensor, rows: int, slots: int) -> Tensor:
    """Values [B, C, ...] with room for at least this many rows and slots, which hold zeros."""
    if len(held) >= rows and held.shape[1] >= slots:
        return held
    return join(held, held.new_zeros(max(0, rows - len(held)), max(slots, held.shape[1]), *held.shape[2:]))


class SparseMemory(Memory):
    """In a full call the rows see each other, and those that are due choose what they keep. In a call of blocks, rows
    go to their slots and see what is in their first ones."""

    def __init__(self, session: SparseSession, forward: SparsePass, call: SparseCall) -> None:
        self.session, self.forward, self.call, self.copies = session, forward, call, DeviceCopies()

    def attend(self, layer: int, fresh: Projected, columns: Tensor | None) -> Tensor:
        if self.call.full:
            return super().attend(layer, fresh, columns)
        call, device = self.call, fresh.query.device
        self.session.store(layer, fresh.key)
        mask, visible = self._slots(layer, device), self.copies.of(call.visible, device)
        visible = visible if mask is None else Visible(visible.mask & mask)  # type: ignore[operator]
        slots, rows = self.copies(call.slots, device), self.copies(call.buffers, device)
        return StaticMemory(visible, slots, call.reach, self.session.stores, rows, call.ranges).attend(
            layer, fresh, columns
        )  # fmt: skip

    def exchange(self, layer: int, fresh: Projected, columns: Tensor | None) -> Exchanged:
        call, device = self.call, fresh.query.device
        query, keys, values = fresh.rotated()
        visible = self.copies.of(call.visible, device)
        if call.due is not None:
            self._choose(layer, query, keys, values)
        if not call.mixed:
            return query, keys, values, visible
        store, rows = self.session.store(layer, fresh.key), self.copies(call.buffers, device)
        held = (select_or_all(one, rows)[:, :, : self.session.slots - 1] for one in store)
        if (mask := self._slots(layer, device)) is not None:
            assert visible.mask is not None
            visible = Visible(visible.mask & F.pad(mask, (keys.shape[2], 0), value=True))
        keys, values = (torch.cat([one, more], 2) for one, more in zip((keys, values), held, strict=True))
        return query, keys, values, visible

    def _slots(self, layer: int, device: torch.device) -> Tensor | None:
        """Slots [b, C - 1] whose columns are still on the canvas; None: no column is ever cut off."""
        if not self.session.shrinks:
            return None
        begin, size, valid, columns = (
            select_or_all(self.copies(one, device), self.copies(self.call.candidates, device)) for one in
            (self.forward.begin, self.forward.size, self.forward.valid, self.session.columns[layer])
        )  # fmt: skip
        slot = torch.arange(self.session.slots - 1, device=device)
        column = torch.where(slot < size[:, None], begin[:, None] + slot, columns[:, : len(slot)])
        return gather_padded(valid, column.clamp(0, valid.shape[1]), False)

    def _choose(self, layer: int, query: Tensor, keys: Tensor, values: Tensor) -> None:
        """Keep the keys and values of the columns outside to which the block's queries point most."""
        call, session, device, n = self.call, self.session, query.device, keys.shape[2]
        rows, due, window, outside, columns = (
            self.copies(one, device) for one in (call.candidates, call.due, call.window, call.outside, call.columns)
        )
        assert due is not None and window is not None and outside is not None and columns is not None
        size, count = (select_or_all(self.copies(one, device), rows) for one in (self.forward.size, self.forward.count))
        points = session.config.ranks.sum(products(query, keys, window))
        score = gather_padded(points, outside, -torch.inf)
        if session.policy.kernel_size > 1:
            score = F.max_pool1d(score[:, None], session.policy.kernel_size, 1, session.policy.kernel_size // 2)[:, 0]
        order = torch.arange(max(outside.shape[1], self.forward.most), device=device)
        picked = top_k_mask(score, outside < n, count * due)
        at = gather_padded(outside, packed(picked, order, self.forward.most), n)
        slots = torch.where(at < n, size[:, None] + order[: self.forward.most], session.slots - 1)
        store = session.store(layer, keys.transpose(1, 2))
        row = (torch.arange(len(slots), device=device) if rows is None else rows)[:, None]
        for buffer, fresh in zip(store, (keys, values), strict=True):
            buffer.transpose(1, 2).index_put_((row, slots), gather_rows(fresh.transpose(1, 2), at))
        chosen = gather_padded(columns, at, session.length)
        if session.shrinks:
            session.columns[layer].index_put_((row, slots), chosen)
        self.forward.chosen.append(chosen)
