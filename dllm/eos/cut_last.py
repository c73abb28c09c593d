"""Decide nothing after a turn's last end-of-text token, but keep attending there (Flash-dLLM, arXiv 2609.26796)."""

from __future__ import annotations

from dllm.contract import Step, View
from dllm.contract.canvas import Canvas
from dllm.eos.base import EndOfText, answer_ends


class CutLast(EndOfText):
    """The first turn that commits an EOS cuts behind its rightmost one. Later turns do not cut again."""

    shrinks = fills = False

    def cut(self, candidates: Canvas, view: View, step: Step, eos_id: int) -> Canvas:
        ends = answer_ends(candidates, eos_id)
        behind = (ends * (candidates.columns + 1)).amax(1)
        return candidates.stop_at(behind, ends.any(1) & ~candidates.shortened, attended=True)
