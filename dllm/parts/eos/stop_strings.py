"""End a row when its committed text contains one of the given strings; wraps another end-of-text policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dllm.contract import Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.traits import EosTraits
from dllm.parts.eos.base import AroundPolicy, EndOfText


class StopStrings(AroundPolicy):
    """Searches the committed tokens from the answer's start to its first mask, but no block that an editing rule may
    still change. The search runs on the host, so it costs a copy from the device per turn."""

    traits = EosTraits(at_once=True, shrinks=True, fills=True, syncs=True)

    def __init__(self, inner: EndOfText, strings: Sequence[str], text: Callable[[Sequence[int]], str]) -> None:
        super().__init__(inner, syncs=True)
        self.strings, self.text = tuple(strings), text

    def cut(self, candidates: Canvas, view: View, step: Step, ends: tuple[int, ...], full: Tensor) -> Canvas:
        candidates = super().cut(candidates, view, step, ends, full)
        open_ = candidates.undecided & (candidates.columns >= candidates.start[:, None])
        frontier = torch.where(open_, candidates.columns, candidates.end[:, None]).amin(1)
        if step.edit is not None:  # what is in a block that stays open may be replaced
            waits = step.owner.per_candidate(step.keep_open) | (open_ & view.blocks.in_block).any(1)
            frontier = torch.where(waits, torch.minimum(frontier, view.blocks.begin), frontier)
        hits = [self._holds(candidates, row, int(end)) for row, end in enumerate(frontier.tolist())]
        if not any(hits):
            return candidates
        return candidates.stop_at(frontier, torch.tensor(hits, device=frontier.device), attended=True)

    def _holds(self, canvas: Canvas, row: int, end: int) -> bool:
        text = self.text(canvas.tokens[row, int(canvas.start[row]) : end].tolist())
        return any(string in text for string in self.strings)
