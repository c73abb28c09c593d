"""Classifier-free guidance: logits u + (w + 1) (c - u), where u comes from a worse canvas.

In LLaDA's, given positions are masked, which doubles the rows of one plan. In A-CFG (arXiv 2505.20199, by the rule of
OpenDLM), decided tokens that the model now doubts are, which takes a second forward after the first.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from dllm.common.ranking import top_k_mask
from dllm.contract.canvas import Canvas, packed
from dllm.contract.readouts import HeadInput
from dllm.kernels.row_statistics import row_statistics
from dllm.loop.extras.base import Extra, ScoredCandidates, Work
from dllm.loop.head import slots
from dllm.loop.hidden import HiddenStates
from dllm.loop.proposals import scatter_columns
from dllm.models.network.transformer import Transformer
from dllm.parts.cache.base import Session
from dllm.parts.cache.guided import GuidedSession


@dataclass(frozen=True)
class Guidance(Extra):
    """It comes last, since it doubles what the others show to the network."""

    weight: float  # w
    placeholder: int  # the id that a mask shows

    stores_logits = True

    def session_canvas(self, canvas: Canvas) -> Canvas:
        """The canvas twice: as it is, and with its given positions masked."""
        rows = torch.arange(len(canvas.row_id), device=canvas.row_id.device)
        both = canvas.select(torch.cat([rows, rows]))
        blank = both.given & (torch.arange(len(both.row_id), device=rows.device) >= len(rows))[:, None]
        return replace(both, tokens=both.tokens.masked_fill(blank, self.placeholder))

    def session(self, session: Session) -> Session:
        return GuidedSession(session)

    def before(self, work: Work) -> Work:
        return replace(work, shown=self.session_canvas(work.canvas))

    def mix(self, logits: Tensor) -> Tensor:
        return moved_away(logits, self.weight)


@dataclass(frozen=True)
class DoubtGuidance(Extra):
    """Of the answer's decided positions, the ``ratio`` whose likeliest token is least probable now, one at least, are
    masked in a second forward. Nothing is taken back. The first forward of an answer has none: its logits are c."""

    weight: float  # w
    ratio: float  # share of the decided positions that is masked
    model: Transformer  # whose head reads the decided positions
    placeholder: int  # the id that a mask shows
    masked: list[Tensor] = field(default_factory=list)  # of this forward: [N, L] the positions, once they are known

    stores_logits = True

    def start(self, work: Work) -> DoubtGuidance:
        return replace(self, masked=[])

    def again(self, work: Work, hidden: HiddenStates) -> Canvas:
        canvas, decided = work.canvas, work.canvas.committed
        count = (self.ratio * decided.sum(1).double()).floor().long().clamp(min=1)
        doubted = top_k_mask(-self.certainty(work, hidden, decided), decided, count)
        self.masked.append(doubted)
        return replace(canvas, tokens=canvas.tokens.masked_fill(doubted, self.placeholder))

    def certainty(self, work: Work, hidden: HiddenStates, decided: Tensor) -> Tensor:
        """The probability [N, L] of the likeliest token at ``decided`` positions, whichever is there."""
        canvas, length = work.canvas, len(work.canvas.columns)
        columns = packed(decided, canvas.columns, work.blocks.shapes.max_per_row(decided, hidden.width, False))
        if not columns.shape[1]:
            return torch.zeros_like(decided, dtype=torch.float64)
        at, slot = columns.clamp(max=length - 1), slots(canvas, work, hidden.place, self.model.config)
        states = hidden.take(at if slot is None else slot.gather(1, at).clamp(min=0))
        rows = row_statistics(self.model.logits(states), frozenset({"first"}), self.model.triton)
        return scatter_columns({"first": rows["first"]}, columns, length)["first"]

    def mix(self, logits: Tensor) -> Tensor:
        return moved_away(logits, self.weight)

    def finish(self, work: Work, hidden: HiddenStates, source: HeadInput, result: ScoredCandidates) -> ScoredCandidates:
        (doubted,), cost = self.masked, result.cost
        twice = {name: 2 * getattr(cost, name) for name in ("queries", "computed", "refreshed", "copies")}
        cost = replace(cost, **twice, scored=2 * cost.scored + work.canvas.committed.sum(1))
        statistics = result.scores.statistics | {"doubted": doubted}
        return replace(result, cost=cost, scores=replace(result.scores, statistics=statistics))


def moved_away(logits: Tensor, weight: float) -> Tensor:
    """u + (``weight`` + 1) (c - u) [N, n, V] of logits c and, after them, u [2 N, n, V]."""
    conditional, unconditional = logits.chunk(2)
    return unconditional + (weight + 1) * (conditional - unconditional)
