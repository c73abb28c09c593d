"""Cut everything after the first committed end-of-text token off the canvas (Window-Diffusion's adaptive length,
arXiv 2601.20332)."""

from __future__ import annotations

from torch import Tensor

from dllm.contract import Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.traits import EosTraits
from dllm.parts.eos.base import EndOfText, after_first, answer_ends


class TruncateAtEos(EndOfText):
    """Columns after the leftmost committed EOS are no longer decided or attended to. A turn whose commits the cache's
    plan forces does not cut (as published: the first forward of a phase)."""

    traits = EosTraits(at_once=True, shrinks=True, fills=False)

    def cut(self, candidates: Canvas, view: View, step: Step, ends: tuple[int, ...], full: Tensor) -> Canvas:
        end, has_end = after_first(candidates, answer_ends(candidates, ends))
        has_end = has_end & ~view.forced_positions.any(1)
        return candidates.stop_at(end, has_end & (end < candidates.end), attended=False)
