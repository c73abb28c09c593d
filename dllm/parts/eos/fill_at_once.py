"""Fill what follows the first end of text as soon as it is committed (d3LLM's early stop, arXiv 2601.07568)."""

from __future__ import annotations

from torch import Tensor

from dllm.contract import Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.traits import EosTraits
from dllm.parts.eos.base import EndOfText, after_first, answer_ends


class FillAtOnce(EndOfText):
    """Every mask after the leftmost committed end of text becomes one, in every block; positions before it go
    on. Positions that are decided already keep their token (the published code writes over them)."""

    traits = EosTraits(at_once=True, fills=True, shrinks=False)

    def cut(self, candidates: Canvas, view: View, step: Step, ends: tuple[int, ...], full: Tensor) -> Canvas:
        end, has_end = after_first(candidates, answer_ends(candidates, ends))
        tail = candidates.undecided & (candidates.columns >= end[:, None]) & has_end[:, None]
        filled = candidates.commit(tail, candidates.tokens.masked_fill(tail, ends[0]))
        return filled.stop_at(end, has_end & ~candidates.shortened, attended=True)
