"""Flash-Cache with a second forward in each step, which verifies drafts (Flash-Verify of arXiv 2609.26796).

Which rows it computes follows VILA-Lab/Flash-dLLM@7437a55: llada/generate.py, llada/flash_cache_triton.py.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dllm.common.ranking import rank
from dllm.common.rowwise import select_or_all
from dllm.contract import ForwardPlan, State
from dllm.contract.beside import Beside
from dllm.contract.canvas import Canvas
from dllm.models.network.attention import Visible
from dllm.models.network.memory import Memory
from dllm.parts.cache.buffer import CacheView, ColumnSession
from dllm.parts.cache.buffer_memory import BufferMemory
from dllm.parts.cache.flash_dllm import FlashDLLM
from dllm.parts.cache.passes import Call, ForwardPass


class VerifiedFlashDLLM(FlashDLLM):
    """After a forward of ``flash_dllm`` whose sampler has drafted, another one of two windows of rows: at most half a
    window of drafts, as many masks at the same positions, and the last decided columns. It reads what is kept and adds
    nothing.

    Decided columns are in order of importance to the window, then the drafts that were accepted last. So these
    are computed again at once, and what the first forward of a step commits, as published, only if it is important.
    """

    traits = FlashDLLM.traits.but(verifies="beside", exposes_attention=False, bounded_shapes=False)

    def own_pass(
        self, session: ColumnSession, forward: ForwardPass, plan: ForwardPlan, candidates: Canvas
    ) -> ForwardPass:
        """Some rows compute columns, which are kept. The others verify, in a call of their own."""
        if not isinstance(plan.beside, Beside):
            return forward
        calls = [call for call in forward.calls if call.columns is None or call.columns.shape[1]]
        beside = call_beside(plan.beside, forward.keys)
        return replace(forward, calls=[*calls, beside], shadows=plan.beside.columns)

    def memory(self, session: ColumnSession, forward: ForwardPass, call: Call) -> Memory:
        return super().memory(session, forward, call) if call.masks is None else BufferMemory(session, forward, call)

    def state(self, canvas: Canvas) -> State:
        """place [B, L]: of a decided column in the order, from 1 (0: decided since). laid [B, L]: drafts of the last
        plan, numbered from 1."""
        blank = torch.zeros_like(canvas.tokens)
        return super().state(canvas) | {"place": blank, "laid": blank}

    def plan(self, view: CacheView) -> ForwardPlan:
        decided_columns = view.canvas.valid & ~view.canvas.masked
        fresh, drafts = decided_columns & (view.state["place"] == 0), self.drafts(view)
        new = fresh & view.state["laid"].any(1, keepdim=True)
        plan, verifies = self.around(view, new), self.verifies(view, drafts)
        order, at = append(view.state["place"], decided_columns, fresh), verifies[:, None]
        place = torch.where(at, order, sorted_anew(view.state, decided_columns, new))
        plan = replace(plan, state=plan.state | {"place": place, "laid": drafts})
        if not view.blocks.shapes.any(verifies):
            return plan
        beside = Beside.of(order * at, drafts, 2 * self.window_length)
        committable = torch.where(at, (drafts > 0) & view.canvas.undecided, plan.committable)
        return replace(plan, columns=plan.columns & ~at, committable=committable, beside=beside)

    def drafts(self, view: CacheView) -> Tensor:
        """The drafts that the forward verifies, numbered from 1 [B, L]."""
        candidates = (view.next_positions > 0) & view.canvas.masked & view.canvas.valid
        number = rank(-view.next_positions.double(), candidates)[1] + 1
        return number * (candidates & (number <= self.window_length // 2))

    def verifies(self, view: CacheView, drafts: Tensor) -> Tensor:
        """The rows [B] whose forward verifies."""
        return drafts.any(1)


def append(place: Tensor, decided: Tensor, fresh: Tensor) -> Tensor:
    """The order ``place`` [B, L] of the ``decided`` columns followed by the ``fresh`` ones."""
    return torch.where(fresh, place.amax(1, keepdim=True) + 1, place) * decided


def sorted_anew(state: State, decided: Tensor, new: Tensor) -> Tensor:
    """The order [B, L] of the ``decided`` columns by their importance, followed by the ``new`` ones by number."""
    old = decided & ~new
    behind = old.sum(1, keepdim=True) + 1 + state["laid"]
    return torch.where(new, behind, (rank(-state["importance"], old)[1] + 1) * decided)


def call_beside(beside: Beside, keys: Tensor) -> Call:
    """The call of the rows that verify: they see one another instead of the columns in which they lie."""
    length = keys.shape[1]
    verifies = (beside.columns < length).any(1)
    rows = None if bool(verifies.all()) else verifies.nonzero()[:, 0]
    beside, keys = select_or_all((beside, keys), rows)
    columns, (count, width) = beside.columns, beside.columns.shape
    covered = torch.zeros(count, length + 1, dtype=torch.bool, device=keys.device).scatter(1, columns, True)
    visible_before = (keys & ~covered[:, :length])[:, None].expand(-1, width, -1)
    spare = visible_before.new_zeros(count, width, 1)  # what padding writes
    reach = length + 1 + width
    slots = torch.arange(length + 1, reach, device=keys.device).expand(count, -1)
    visible = Visible(torch.cat([visible_before, spare, beside.sees], 2))
    return Call(rows, columns, slots, visible, reach, buffers=rows, masks=beside.mask)
