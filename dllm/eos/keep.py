"""Decode the full length, whatever is committed (LLaDA's and Dream's own loops)."""

from __future__ import annotations

from dllm.contract import Step, View
from dllm.contract.canvas import Canvas
from dllm.eos.base import EndOfText


class Keep(EndOfText):
    """The canvas stays as it is; only the result's text ends at the first EOS."""

    at_once = shrinks = fills = False

    def cut(self, candidates: Canvas, view: View, step: Step, eos_id: int) -> Canvas:
        return candidates
