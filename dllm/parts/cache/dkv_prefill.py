"""Compute a long prompt only once; for shifted models (dKV-Cache-Prefill and PD, arXiv 2505.15781)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dllm.contract import ForwardPlan
from dllm.contract.clash import Mismatch
from dllm.contract.shapes import HostView
from dllm.models.config import ModelConfig
from dllm.parts.cache.buffer import CacheView
from dllm.parts.cache.dkv import DKV


class DKVPrefill(DKV):
    """The first forward computes the prompt; later ones compute only its last position. decode (PD): keep decided rows
    of the answer too, as dkv does, and refresh only those; otherwise every forward computes the whole answer."""

    clashes = (
        *DKV.clashes,
        Mismatch(
            lambda c: not c.model.prediction_shift,
            "{cache} is defined for models that predict from the position before.",
        ),
    )

    def __init__(self, decode: bool = False, refresh_interval: int = 4, shift_type: str = "un_right") -> None:
        super().__init__(refresh_interval, shift_type)
        self.decode, self.traits = decode, self.traits.but(committed=not decode)

    @property
    def name(self) -> str:
        return "dkv_pd" if self.decode else "dkv_prefill"

    def plan(self, view: CacheView) -> ForwardPlan:
        turn, answer = view.blocks.turn[:, None], self._answer(view)
        if self.decode:
            answer &= (turn % self.refresh_interval == 0) | ~self.settled(view)
        return view.plan((turn == 0) | answer)

    def _answer(self, view: CacheView) -> Tensor:
        """The columns [B, L] from the one that predicts the answer's first position on."""
        return view.canvas.columns >= view.canvas.start[:, None] - 1

    def counts(self, view: CacheView) -> list[Tensor]:
        return [*self.shifted_counts(view), (self._answer(view) & view.canvas.valid).sum(1)]

    def max_queries(
        self, host_views: Sequence[HostView], length: int, width: int, config: ModelConfig
    ) -> tuple[int, ...]:
        bounds = list[int]()
        for row in host_views:
            columns, forwards, answer = row.counts
            turn = forwards + row.staleness
            full = not self.decode or turn % self.refresh_interval == 0
            bounds.append(length if turn == 0 else answer if full else min(answer, columns))
        return tuple(bounds)
