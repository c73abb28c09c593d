"""Decide nothing after a turn's last end-of-text token, but keep attending there (Flash-dLLM, arXiv 2609.26796)."""

from __future__ import annotations

from torch import Tensor

from dllm.contract import Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.traits import EosTraits
from dllm.parts.eos.base import EndOfText, answer_ends


class StopAtLastEos(EndOfText):
    """The first turn that commits an EOS cuts after its rightmost one. Later turns do not cut again."""

    traits = EosTraits(at_once=True, shrinks=False, fills=False)

    def cut(self, candidates: Canvas, view: View, step: Step, ends: tuple[int, ...], full: Tensor) -> Canvas:
        is_end = answer_ends(candidates, ends)
        behind = (is_end * (candidates.columns + 1)).amax(1)
        return candidates.stop_at(behind, is_end.any(1) & ~candidates.shortened, attended=True)
