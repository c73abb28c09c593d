"""Decide nothing after the first end-of-text token, but keep attending there (Elastic-Cache, arXiv 2510.14973)."""

from __future__ import annotations

from torch import Tensor

from dllm.contract import Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.traits import EosTraits
from dllm.parts.eos.base import EndOfText, after_first, answer_ends


class StopAtEos(EndOfText):
    """The first turn that commits an EOS cuts after its leftmost one. Later turns do not cut again."""

    traits = EosTraits(at_once=True, shrinks=False, fills=False)

    def cut(self, candidates: Canvas, view: View, step: Step, ends: tuple[int, ...], full: Tensor) -> Canvas:
        end, has_end = after_first(candidates, answer_ends(candidates, ends))
        return candidates.stop_at(end, has_end & ~candidates.shortened, attended=True)
