"""Commit no near neighbours in one forward (the spacing filter of DUS, arXiv 2506.19037 section 4.4)."""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.common.errors import Refusal, in_range, name_of
from dllm.contract import State, Step, View
from dllm.contract.needs import read_of_logits
from dllm.parts.samplers.base import Sampler
from dllm.parts.samplers.wrapper import Wrapper


class Spaced(Wrapper):
    """Commit a position of the ``inner`` rule's, best first, if it is at least a gap away from all that are
    kept; the others wait. The gap is max(2, floor(M ``start_stride`` / K)) columns, where M of the block's K columns
    are masks (``start_stride`` 0: no gap).

    Best is what the inner rule ``ranks_by``; where it does not say, least entropy if it reads entropies, else most
    confidence. Ties go to the lowest position.
    """

    def __init__(self, inner: Sampler, start_stride: int = 8) -> None:
        in_range("sampler.start_stride", start_stride, 0, advice="0 switches the filter off.")
        if inner.traits.branches or inner.traits.edits or inner.traits.revocable or inner.traits.plans_ahead:
            raise Refusal(
                "{sampler} commits less than its inner rule chose, so {sampler/inner}, which drafts, takes tokens "
                "back or says beforehand what it commits, cannot be inside. Use confidence, eb, factor, localleap or "
                "static.",
                [name_of(self), name_of(inner)],
            )
        super().__init__(inner)
        self.start_stride = start_stride
        self.traits = self.traits.but(stateless=inner.traits.stateless, by_confidence=False, syncs=True)

    def propose(self, view: View, state: State) -> Step:
        step = super().propose(view, state)
        if not self.start_stride:
            return step
        masks = (view.canvas.undecided & view.blocks.in_block).sum(1)
        gap = (masks * self.start_stride // (view.blocks.end - view.blocks.begin)).clamp(min=2)
        free = step.commit & ~view.forced_positions & ~step.stop[:, None]
        commit = spaced_out(free, self._score(view), gap) | (step.commit & ~free)
        return step.but(commit=commit, accepted=None if step.accepted is None else step.accepted & commit)

    def _score(self, view: View) -> Tensor:
        entropy = "entropy" in read_of_logits(self.inner.needs())
        ranks_by = self.inner.traits.ranks_by or ("entropy" if entropy else "confidence")
        return view.scores.confidence if ranks_by == "confidence" else -view.scores.statistic(ranks_by)


def spaced_out(positions: Tensor, score: Tensor, gap: Tensor) -> Tensor:
    """Of ``positions`` [B, L], best ``score`` first, those at least ``gap`` [B] columns from all others."""
    out, remaining = torch.zeros_like(positions), positions
    columns = torch.arange(positions.shape[1], device=positions.device)
    while bool(remaining.any()):
        at = torch.where(remaining, score, -torch.inf).argmax(1, keepdim=True)
        out = out | ((columns == at) & remaining)
        remaining = remaining & ((columns - at).abs() >= gap[:, None])
    return out
