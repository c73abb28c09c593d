"""Keep a share of the keys outside the open blocks, chosen per layer (Sparse-dLLM, arXiv 2508.02558).

The two first forwards of a block compute every column. The second one chooses, in every layer, the columns to which the
block's queries point most, and keeps their keys and values in slots that follow one another: the block's own first, the
chosen ones after them. Every layer keeps as many, so one count of keys serves all of them, and no layer needs a mask.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from dllm.common.errors import Refusal, in_range, name_of
from dllm.common.ranking import top_k_mask
from dllm.common.rowwise import Owner, select_or_all
from dllm.contract import BlockState, ForwardCost, ForwardPlan, State
from dllm.contract.canvas import Canvas, packed
from dllm.contract.clash import Mismatch
from dllm.contract.setting import Setting
from dllm.contract.shapes import bucket
from dllm.contract.traits import CacheTraits
from dllm.models.config import ModelConfig
from dllm.models.network.attention import Visible
from dllm.models.network.memory import DeviceCopies, Exchanged, KeyValues, Memory, Projected, StaticMemory
from dllm.parts.cache.base import Cache, Session
from dllm.parts.cache.buffer_memory import blank
from dllm.parts.cache.calls import Group, rows_by_call
from dllm.parts.cache.columns import gather_padded, gather_rows
from dllm.parts.cache.flash_dllm import window_products
from dllm.parts.cache.kept import LAYER_KEYS, LAYER_VALUES, PER_PLACE, Kept
from dllm.parts.cache.passes import Call, ForwardPass
from dllm.parts.cache.suffix import MISSES_LEFT

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
        scores_all_at_open=True, committed=True, bounded_shapes=True, acts_in_layers=True, leads=True, heads="summed"
    )
    clashes = (
        *Cache.clashes,
        Mismatch(
            lambda c: c.blocks.traits.slides,
            "{cache} chooses what to keep in the second forward of a block, but {blocks} opens one only, and moves it.",
        ),
        MISSES_LEFT,
    )

    def __init__(self, keep_ratio: float = 0.5, kernel_size: int = 3, query_left: bool = True) -> None:
        in_range("cache.keep_ratio", keep_ratio, 0.0, 1.0)
        in_range("cache.kernel_size", kernel_size, 1)
        if kernel_size % 2 == 0:
            raise Refusal("{cache.kernel_size} must be odd, so that a column is in the middle of it.", [kernel_size])
        self.keep_ratio, self.kernel_size, self.query_left = keep_ratio, kernel_size, query_left

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

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> Session:
        return SparseSession(self, canvas, config, shrinks)

    def kept(self) -> tuple[Kept, ...]:
        """Keys and values by slot, and the column in each slot of what is kept, where rows may be cut short."""
        columns = Kept("columns", lambda config, layer: (PER_PLACE,), by="slot", lent=False, dtype=torch.int64)
        return replace(LAYER_KEYS, by="slot"), replace(LAYER_VALUES, by="slot"), columns

    def slots(self, columns: int, open_columns: int, config: ModelConfig) -> int:
        return open_columns + self.left(config) + int(columns * self.keep_ratio) + 1


@dataclass(frozen=True)
class SparseCall(Call):
    """A call with what its memory reads besides, of [b] rows and n queries."""

    full: bool = True  # rows that compute everything may be in it
    joint: bool = False  # rows that compute their blocks may be in it, too
    due: Tensor | None = None  # [b] rows that choose now what they keep (None: none does)
    window: Tensor | None = None  # [b, n] queries of the open blocks, whose products choose
    outside: Tensor | None = None  # [b, w] places among the queries of what may be chosen (n: padding)


@dataclass(frozen=True)
class SparsePass(ForwardPass):
    """A forward of B rows, and what they keep. It finds the columns ``chosen`` [b, most] in each layer (L: none)."""

    full: Tensor  # [B] rows that compute every column
    begin: Tensor  # [B] the column in a row's first slot
    size: Tensor  # [B] slots of its open blocks
    count: Tensor  # [B] slots of what it keeps, which follow
    most: int  # no row chooses more now
    key_slots: Tensor  # [B, C - 1] slots that rows which compute their blocks see

    def cost(self, scored_rows: Tensor) -> ForwardCost:
        queries, valid = (columns.sum(1, keepdim=True) for columns in (self.queries, self.valid))
        full = self.full[:, None]
        keys = torch.where(full, valid, (self.size + self.count)[:, None])
        return ForwardCost(queries, keys, torch.where(full, queries, 0), self.rows_run(), scored_rows)


class SparseSession(Session):
    """Keys and values of B rows in C slots: those of the open blocks, the kept ones, and at last one for padding.

    Of a row it remembers, each [B], the blocks that its kept columns were chosen for (``begin``, ``end``), how many
    slots these blocks have (``size``), and how many are kept (``count``).
    """

    policy: SparseDLLM

    def __init__(self, policy: SparseDLLM, canvas: Canvas, config: ModelConfig, shrinks: bool) -> None:
        super().__init__(policy, canvas, config)
        self.shrinks = shrinks
        if not shrinks:
            self.kept.own_name = 0  # nothing but what is lent is made

    def remembers(self, canvas: Canvas) -> State:
        none = torch.full_like(canvas.start, NOT_KEPT)
        return {"begin": none, "end": none, "size": torch.zeros_like(none), "count": torch.zeros_like(none)}

    def plan(self, canvas: Canvas, blocks: BlockState, next_positions: Tensor, state: State) -> ForwardPlan:
        valid, left, shapes = canvas.valid, self.policy.left(self.config), blocks.shapes
        begin, end, first = blocks.begin - left, blocks.open_end, blocks.forwards == 0
        open_ = (canvas.columns >= begin[:, None]) & (canvas.columns < end[:, None])
        full = first | (state["begin"] != begin) | (state["end"] != end)
        share = ((valid & ~open_).sum(1).double() * self.policy.keep_ratio).long()  # as int(n r) rounds in Python
        new = {"begin": torch.where(first, NOT_KEPT, begin), "end": torch.where(first, NOT_KEPT, end)}
        new |= {"size": (valid & open_).sum(1), "count": share}
        new = {name: torch.where(full, value, state[name]) for name, value in new.items()}
        forced = None
        if self.config.prediction_shift and not left:
            may = canvas.undecided & blocks.in_block
            forced = may & (may.cumsum(1) == 1) & first[:, None]
        if shapes.bounded:
            width = bucket(shapes.max_per_row(open_, self.length, True) + left, self.length)
            self.kept.slots = width + int(self.length * self.policy.keep_ratio) + 1
        state = shapes.update(blocks.active, new, state)
        return ForwardPlan(valid & (full[:, None] | open_), valid, forced, canvas.tokens[:, :0], valid, shapes, state)

    def widths(self, plan: ForwardPlan) -> list[Tensor]:
        """A row that computes everything reports the whole canvas: by that the host tells the two kinds of calls."""
        return [torch.where(whole_rows(plan), self.length, plan.columns.sum(1))]

    def begin(self, plan: ForwardPlan, candidates: Canvas, owner: Owner) -> SparsePass:
        queries, full, shapes, state = plan.columns & candidates.valid, whole_rows(plan), plan.shapes, plan.state
        due = full & (state["begin"] != NOT_KEPT)
        builds, joint = shapes.any(due), shapes.bounded
        most = int(self.length * self.policy.keep_ratio) if joint else int((state["count"] * due).max())
        if builds and not joint:
            self.kept.slots = max(self.kept.slots, int((state["size"] * due).max()) + most + 1)
        self.kept.make_room()
        slot = torch.arange(max(0, self.kept.slots - 1), device=full.device)
        key_slots = (slot < (state["size"] + state["count"])[:, None]) & ~full[:, None]
        forward = SparsePass(
            (), owner, queries, plan.keys, candidates.valid, plan.shadows, False, plan.state, full, state["begin"],
            state["size"], state["count"], most, key_slots,
        )  # fmt: skip
        row_widths = list(shapes.widths(queries | full[:, None], owner))
        wide = [width if width >= self.length else 0 for width in row_widths]
        narrow = [width if width < self.length else 0 for width in row_widths]
        whole = partial(self._full_call, builds=builds, joint=joint)
        calls = [
            make(forward, part.among(shapes.order), candidates)
            for widths, make in ((wide, whole), (narrow, self._block_call))
            if any(widths)
            for part in rows_by_call(widths, full.device, self.row_numbers)
        ]
        return replace(forward, calls=calls)

    def _full_call(self, forward: SparsePass, part: Group, candidates: Canvas, builds: bool, joint: bool) -> SparseCall:
        """A call of rows that compute everything; where the host knows bounds alone, of others too."""
        rows, length = part.rows, self.length
        queries, full, begin, size = (
            select_or_all(tensor, rows) for tensor in (forward.queries, forward.full, forward.begin, forward.size)
        )
        columns = packed(queries, candidates.columns, length)
        fresh = columns < length
        visible = Visible(fresh, None if joint else fresh.sum(1).int())
        if joint:
            slot = torch.arange(forward.key_slots.shape[1], device=size.device)
            visible = Visible(torch.cat([fresh, select_or_all(forward.key_slots, rows) & (slot >= size[:, None])], 1))
        call = SparseCall(rows, columns, None, visible, buffers=rows, full=True, joint=joint)
        if not builds:
            return call
        at, end = columns - begin[:, None], select_or_all(forward.remembered["end"], rows)
        inside = (at >= 0) & (columns < end[:, None])
        places = torch.arange(length, device=columns.device)
        return replace(
            call,
            due=full & (begin != NOT_KEPT),
            window=inside & (at >= self.policy.left(self.config)),
            outside=packed(fresh & ~inside, places, length),
        )

    def _block_call(self, forward: SparsePass, part: Group, candidates: Canvas) -> SparseCall:
        """A call of rows that compute their open blocks."""
        rows = part.rows
        queries, begin, key_slots = (
            select_or_all(tensor, rows) for tensor in (forward.queries, forward.begin, forward.key_slots)
        )
        columns = packed(queries, candidates.columns, part.width)
        slots = torch.where(columns < self.length, columns - begin[:, None], self.kept.slots - 1)
        visible = Visible(key_slots, None if self.shrinks else key_slots.sum(1).int())
        return SparseCall(
            rows, columns, slots, visible, self.kept.slots - 1, buffers=rows, ranges=part.ranges, full=False
        )

    def memory(self, forward: ForwardPass, call: Call) -> Memory:
        assert isinstance(forward, SparsePass) and isinstance(call, SparseCall)
        return SparseMemory(self, forward, call)

    def store(self, layer: int, key: Tensor) -> KeyValues:
        """Keys and values of a layer whose keys are like ``key`` [b, n, H_kv, h]."""
        store = self.stores[layer]
        if store is None:
            store = self.stores[layer] = blank(key, self.rows, self.kept.slots)
        if self.shrinks:
            self.kept.tensor("columns", layer, key)
        return store


def whole_rows(plan: ForwardPlan) -> Tensor:
    """Rows [B] that compute every column."""
    return (plan.columns == plan.keys).all(1)


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
        access = StaticMemory(visible, slots, call.reach, self.session.stores, rows, call.ranges)
        return access.attend(layer, fresh, columns)

    def exchange(self, layer: int, fresh: Projected, columns: Tensor | None) -> Exchanged:
        call, device = self.call, fresh.query.device
        query, keys, values = fresh.rotated()
        visible = self.copies.of(call.visible, device)
        if call.due is not None:
            self._choose(layer, query, keys, values)
        if not call.joint:
            return query, keys, values, visible
        store, rows = self.session.store(layer, fresh.key), self.copies(call.buffers, device)
        kept_pair = (select_or_all(tensor, rows)[:, :, : self.session.kept.slots - 1] for tensor in store)
        if (mask := self._slots(layer, device)) is not None:
            assert visible.mask is not None
            visible = Visible(visible.mask & F.pad(mask, (keys.shape[2], 0), value=True))
        keys, values = (torch.cat([tensor, more], 2) for tensor, more in zip((keys, values), kept_pair, strict=True))
        return query, keys, values, visible

    def _slots(self, layer: int, device: torch.device) -> Tensor | None:
        """Slots [b, C - 1] whose columns are still on the canvas; None: no column is ever cut off."""
        if not self.session.shrinks:
            return None
        begin, size, valid, columns = (
            select_or_all(self.copies(tensor, device), self.copies(self.call.candidates, device))
            for tensor in (
                self.forward.begin,
                self.forward.size,
                self.forward.valid,
                self.session.kept["columns"].layers[layer],
            )
        )
        slot = torch.arange(self.session.kept.slots - 1, device=device)
        column = torch.where(slot < size[:, None], begin[:, None] + slot, columns[:, : len(slot)])
        return gather_padded(valid, column.clamp(0, valid.shape[1]), False)

    def _choose(self, layer: int, query: Tensor, keys: Tensor, values: Tensor) -> None:
        """Keep the keys and values of the columns outside to which the block's queries point most."""
        call, session, device, n = self.call, self.session, query.device, keys.shape[2]
        rows, due, window, outside, columns = (
            self.copies(x, device) for x in (call.candidates, call.due, call.window, call.outside, call.columns)
        )
        assert due is not None and window is not None and outside is not None and columns is not None
        size, count = (select_or_all(self.copies(x, device), rows) for x in (self.forward.size, self.forward.count))
        points = session.config.ranks.sum(window_products(query, keys, window))
        score = gather_padded(points, outside, -torch.inf)
        if session.policy.kernel_size > 1:
            score = F.max_pool1d(score[:, None], session.policy.kernel_size, 1, session.policy.kernel_size // 2)[:, 0]
        order = torch.arange(max(outside.shape[1], self.forward.most), device=device)
        choice = top_k_mask(score, outside < n, count * due)
        at = gather_padded(outside, packed(choice, order, self.forward.most), n)
        slots = torch.where(at < n, size[:, None] + order[: self.forward.most], session.kept.slots - 1)
        store = session.store(layer, keys.transpose(1, 2))
        row = (torch.arange(len(slots), device=device) if rows is None else rows)[:, None]
        for buffer, fresh in zip(store, (keys, values), strict=True):
            buffer.transpose(1, 2).index_put_((row, slots), gather_rows(fresh.transpose(1, 2), at))
        kept_columns = gather_padded(columns, at, session.length)
        if session.shrinks:
            session.kept["columns"].layers[layer].index_put_((row, slots), kept_columns)
        self.forward.found["chosen"].append(kept_columns)
