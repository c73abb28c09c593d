"""Compute a long prompt only once; for shifted models (dKV-Cache-Prefill and PD, arXiv 2505.15781)."""

from __future__ import annotations

from dllm.common.errors import IncompatibleParts
from dllm.contract import ForwardPlan
from dllm.contract.clash import Clash
from dllm.parts.cache.buffer import CacheView
from dllm.parts.cache.dkv import DKV


class DKVPrefill(DKV):
    """The first forward computes the prompt; later ones compute only its last position. decode (PD): keep decided rows
    of the answer too, as dkv does, and refresh only those; otherwise every forward computes the whole answer."""

    clashes = (
        *DKV.clashes,
        Clash(lambda c: not c.model.prediction_shift,
              "{cache} is defined for models that predict from the position before.", kind=IncompatibleParts),
    )  # fmt: skip

    def __init__(self, decode: bool = False, refresh_interval: int = 4, shift_type: str = "un_right") -> None:
        super().__init__(refresh_interval, shift_type)
        self.decode, self.traits = decode, self.traits.but(committed=not decode)

    @property
    def name(self) -> str:
        return "dkv_pd" if self.decode else "dkv_prefill"

    def plan(self, view: CacheView) -> ForwardPlan:
        canvas, turn = view.canvas, view.blocks.turn[:, None]
        answer = canvas.columns >= canvas.start[:, None] - 1
        if self.decode:
            answer &= (turn % self.refresh_interval == 0) | ~self.settled(view)
        return view.plan((turn == 0) | answer)
