"""Decode the full length, also after an end of text (LLaDA's and Dream's own loops)."""

from __future__ import annotations

from torch import Tensor

from dllm.contract import Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.traits import EosTraits
from dllm.parts.eos.base import EndOfText


class FullLength(EndOfText):
    """The canvas stays as it is; only the result's text ends at the first EOS."""

    traits = EosTraits(at_once=False, shrinks=False, fills=False, leaves_rows=True)

    def cut(self, candidates: Canvas, view: View, step: Step, ends: tuple[int, ...], full: Tensor) -> Canvas:
        return candidates
