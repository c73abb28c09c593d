"""The exact cache of causal text, followed by a window of masks that sees itself both ways (linear speculation).

What each forward computes follows Nemotron-Labs-Diffusion's modeling_nemotron_labs_diffusion.py:
linear_spec_generate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from dllm.common.errors import in_range
from dllm.contract import ForwardPlan, State
from dllm.contract.beside import InPlace
from dllm.contract.canvas import Canvas
from dllm.models.config import ModelConfig
from dllm.models.network.attention_order import AttentionKind, AttentionOrder, columns_of
from dllm.models.network.memory import AnyLayer, Memory
from dllm.models.network.rope import Angles
from dllm.models.network.visibility import ContextCausal
from dllm.parts.cache.base import Session
from dllm.parts.cache.buffer import Buffered, CacheView, ColumnSession
from dllm.parts.cache.buffer_memory import BufferMemory
from dllm.parts.cache.passes import Call, ForwardPass


@dataclass(frozen=True)
class CausalThenWindow(AttentionKind):
    """Causal up to the last column before the first mask, which sees all that is computed after it, as the masks do.
    Without masks among what is computed, all of it is causal."""

    def order(self, masked: Tensor, start: Tensor) -> AttentionOrder:
        columns, length = columns_of(masked), masked.shape[1]
        first = torch.where(masked, columns, length).amin(1, keepdim=True)
        return AttentionOrder(columns, torch.where(columns >= first - 1, length, columns))


class DraftWindow(Buffered):
    """A forward drafts or judges, each row as its drafts stand. A window is the last decided column and the masks
    after it, ``window_length`` columns in all. A forward that drafts computes the window alone, and keeps nothing.
    When each of its masks has a draft, a causal forward computes the window with the drafts: the row before a column
    judges it, and that of the last draft decides one more. The rows of drafts that are right are final. A forward of
    what is new and decided without drafts (the prompt) decides the first position after it.
    """

    traits = Buffered.traits.but(
        kinds=frozenset({ContextCausal.name}), verifies="in_place", shadows=False, exposes_attention=False, leads=False
    )

    def __init__(self, window_length: int = 32) -> None:
        in_range("cache.window_length", window_length, 2, advice="The last decided column counts.")
        self.window_length = window_length

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> Session:
        return super().start(canvas, replace(config, attention=CausalThenWindow()), shrinks)

    def own_pass(
        self, session: ColumnSession, forward: ForwardPass, plan: ForwardPlan, candidates: Canvas
    ) -> ForwardPass:
        """Rows that draft and rows that judge run in separate calls. The state notes what their columns hold, drafts
        included."""
        widths, row_judges = plan.shapes.widths(forward.queries, forward.owner), plan.state["judges"]
        calls = list[Call]()
        for judges, kind in ((True, Call), (False, DraftCall)):
            rows = (row_judges == judges).nonzero()[:, 0]
            if len(rows):
                width = max(widths[row] for row in rows.tolist())
                some = None if len(rows) == len(row_judges) else rows
                calls.append(kind(**vars(session.call(forward, some, width, plan.shapes, candidates))))
        return replace(forward, calls=calls, notes={**forward.notes, "tokens": candidates.tokens})

    def memory(self, session: ColumnSession, forward: ForwardPass, call: Call) -> Memory:
        return (DraftMemory if isinstance(call, DraftCall) else BufferMemory)(session, forward, call)

    def state(self, canvas: Canvas) -> State:
        """exact [B, L]: columns computed causally. tokens [B, L]: what they held, drafts included. judges [B]: whether
        the forward judged drafts; the others made some."""
        judges = torch.zeros_like(canvas.shortened)
        return {"exact": canvas.no_positions, "tokens": canvas.tokens, "judges": judges}

    def plan(self, view: CacheView) -> ForwardPlan:
        canvas, columns = view.canvas, view.canvas.columns
        masked = canvas.masked & canvas.valid
        first = torch.where(masked, columns, len(columns)).amin(1, keepdim=True)
        decided, last = canvas.valid & (columns < first), columns == first - 1
        exact = view.state["exact"] & decided & (canvas.tokens == view.state["tokens"])
        run = canvas.undecided & (columns >= first) & ((~masked & (columns >= first)).cumsum(1) == 0)
        window = run & view.blocks.in_open & (columns < first + self.window_length - 1)
        fresh = ((decided & ~exact & ~last).any(1) | ~exact.any(1))[:, None]  # decided text that no row stands for
        written_drafts = window & (view.next_positions > 0) & ~fresh
        judges = fresh | ~(window & ~written_drafts).any(1, keepdim=True)
        drafts, behind = written_drafts * written_drafts.cumsum(1), first + written_drafts.sum(1, keepdim=True)
        blank = (columns == 0) & (first == 0)  # without a prompt, a mask predicts itself
        live = torch.where(judges, (decided & ~exact) | written_drafts | blank, last | window)
        committable = torch.where(judges, written_drafts | (run & (columns == behind)), window & ~written_drafts)
        plan = view.plan(
            live,
            committable=committable,
            forced=fresh & run & (columns == first),
            keys=canvas.valid & (exact | live),
            state={
                "exact": torch.where(judges, exact | (live & ~blank), exact & ~last),
                "tokens": canvas.tokens,
                "judges": judges[:, 0],
            },
        )
        shift = torch.where(judges, 1, view.config.prediction_shift)
        sources = (columns_of(masked) - shift).clamp(min=0)
        return replace(plan, beside=InPlace(drafts, judges[:, 0], sources))


@dataclass(frozen=True)
class DraftCall(Call):
    """A call of rows that draft."""


class DraftMemory(BufferMemory):
    """Of rows that draft, which a LoRA may adapt."""

    def run(
        self, index: int, layer: AnyLayer, x: Tensor, residual: Tensor | None, angles: Angles, columns: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return layer(x, residual, angles, columns, partial(self.attend, index), drafts=True)
