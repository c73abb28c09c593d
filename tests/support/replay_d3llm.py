"""d3LLM's loop, with what its code does by accident. Everything here is for one row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from accidents import accident
from replay_parts import Case, CaseParts
from torch import Tensor

from dllm.loop import head
from dllm.parts import (
    D3LLM,
    Ahead,
    BlockState,
    CacheView,
    Canvas,
    ColumnSession,
    Delayed,
    FillAtOnce,
    Forward,
    ForwardCost,
    ForwardPass,
    ForwardPlan,
    FullLength,
    ModelConfig,
    NoCache,
    Owner,
    Rows,
    ScoredCandidates,
    Step,
    View,
    Visible,
    Work,
    after_first,
    answer_ends,
)

EOS = 61


def d3llm(params: Case) -> CaseParts:
    """Its second share, decoded_token_threshold, decides nothing."""
    delay, dream = params["cache_delay_iter"], params["dream"]
    rule = D3LLM(params["threshold"], "dream" if dream else "llada")
    blocks = (ToTheEnd if params["early_stop"] else Ahead)(params["block_size"], params["block_add_threshold"])
    kind = Twice if params["reference_quirks"] and dream else Delayed
    cache = (
        NoCache()
        if delay is None
        else kind(delay, params["refresh_interval"], "each" if dream else "in_turn", query_left=False)
    )
    return CaseParts(rule, blocks, cache, Overwriting() if params["early_stop"] else FullLength(), forward=OwnRow)


@accident("the first column of a forward predicts itself")
@dataclass(frozen=True)
class OwnRow(Forward):
    """A shifted model shifts within the columns that a forward computes: the first of them predicts itself."""

    def __call__(self, rows: Rows) -> ScoredCandidates:
        with patch.object(head, "slots", own_slots):
            return super().__call__(rows)


def own_slots(canvas: Canvas, work: Work, place: Tensor | None, config: ModelConfig, known: Any = head.slots) -> Any:
    slot = known(canvas, work, place, config)
    return slot if slot is None or place is None else torch.where(slot < 0, place, slot)


@accident("blocks behind an end of text count as open")
class ToTheEnd(Ahead):
    """An end of the text makes all blocks behind it finished ones, which count as open."""

    def _opened(self, canvas: Canvas, blocks: BlockState) -> BlockState:
        blocks = super()._opened(canvas, blocks)
        if not bool(answer_ends(canvas, (EOS,)).any()):
            return blocks
        in_open = (canvas.columns >= blocks.begin[:, None]) & (canvas.columns < canvas.end[:, None])
        return replace(blocks, open_end=canvas.end, in_open=in_open)


@accident("what is decided behind an end of text is overwritten, and passes for masked in its turn")
class Overwriting(FillAtOnce):
    """What is decided behind the end of the text becomes one, too. The published turn takes its list of masks before
    it fills: what it has just filled still passes for masked until its end, unless nothing else is left."""

    traits = FillAtOnce.traits

    def cut(self, candidates: Canvas, view: View, step: Step, ends: tuple[int, ...], full: Tensor) -> Canvas:
        end, found = after_first(candidates, answer_ends(candidates, ends))
        rest = (candidates.columns >= end[:, None]) & found[:, None] & candidates.valid
        stale = rest & candidates.masked & (candidates.tokens != ends[0])
        goes_on = bool((candidates.undecided & ~rest).any())
        masked = candidates.masked & ~rest | (stale & goes_on)
        return replace(candidates, tokens=candidates.tokens.masked_fill(rest, ends[0]), masked=masked)


@accident("columns are attended to twice after a refresh")
class Twice(Delayed):
    """A refresh keeps what lies before the last block that waits, and what grows later is kept beside it: these columns
    are attended to twice, as they were in the refresh and as they are now. twice: the columns (first, behind the last)
    of which a forward sees the older keys, too; renewed: the last forward was such a refresh."""

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> ColumnSession:
        self.twice, self.renewed, self.seen = (0, 0), False, 0
        return TwiceSession(self, canvas, config)

    def plan(self, view: CacheView) -> ForwardPlan:
        plan = super().plan(view)
        kept, grown = int(view.state["kept_end"]), int(plan.state["kept_end"])
        refresh = kept > 0 and grown == kept and bool((plan.columns == view.canvas.valid).all())
        self.seen = 0 if refresh else self.twice[1] - self.twice[0]
        self.renewed = refresh
        if refresh:
            last = int(view.blocks.begin) - int(view.blocks.params["block_length"])
            self.twice = kept, max(last, kept)
        return plan


class TwiceSession(ColumnSession):
    """Older keys and values lie in scratch slots."""

    policy: Twice
    renewed = False

    def begin(self, plan: ForwardPlan, candidates: Canvas, owner: Owner) -> ForwardPass:
        if self.renewed:
            self.kept.stores = [tuple(self._doubled(one) for one in store or ()) for store in self.stores]  # type: ignore[misc]
        self.renewed = self.policy.renewed
        forward, seen = super().begin(plan, candidates, owner), self.policy.seen
        if not seen:
            return forward
        more = torch.arange(1 + seen, device=forward.keys.device)[None] > 0
        mask = torch.cat([forward.keys, more], 1)
        calls = [replace(call, visible=Visible(mask), reach=self.length + 1 + seen) for call in forward.calls]
        return replace(forward, calls=calls)

    def cost(self, forward: ForwardPass, scored: Tensor) -> ForwardCost:
        cost = super().cost(forward, scored)
        return replace(cost, keys=cost.keys + self.policy.seen)

    def _doubled(self, store: Tensor) -> Tensor:
        first, end = self.policy.twice
        return torch.cat([store[:, :, : self.length + 1], store[:, :, first:end]], 2)
