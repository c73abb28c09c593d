"""Compute a long prompt only once; for shifted models (dKV-Cache-Prefill and PD, arXiv 2505.15781)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dllm.cache.base import Session
from dllm.cache.dkv import DKV, Delayed
from dllm.canvas import Canvas
from dllm.contract import BlockState, ForwardPlan, Need, Rule
from dllm.errors import Unfit, name_of
from dllm.models.config import ModelConfig
from dllm.setting import Setting


class DKVPrefill(DKV):
    """The first forward computes the prompt; later ones compute only its last position. decode (PD): keep decided rows
    of the answer too, as dkv does, and refresh only those; otherwise every forward computes the whole answer."""

    def __init__(self, decode: bool = False, refresh_interval: int = 4, shift_type: str = "un") -> None:
        super().__init__(refresh_interval, shift_type)
        self.decode, self.committed = decode, not decode

    @property
    def name(self) -> str:
        return "dkv_pd" if self.decode else "dkv_prefill"

    def check(self, setting: Setting, sampler: Rule, needs: Sequence[Need]) -> None:
        super().check(setting, sampler, needs)
        if setting.model.prediction_shift == 0:
            raise Unfit(f"cache={name_of(self)} is defined for models that predict from the position before.")

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> Session:
        return Prefilled(canvas, config, self.refresh_interval, self.shift_type, self.decode)


class Prefilled(Delayed):
    def __init__(self, canvas: Canvas, config: ModelConfig, interval: int, shift_type: str, decode: bool) -> None:
        super().__init__(canvas, config, interval, shift_type)
        self.decode = decode

    def queries(self, canvas: Canvas, blocks: BlockState, announced: Tensor) -> ForwardPlan:
        answer = canvas.columns >= canvas.start[:, None] - 1
        begun = (blocks.turn == 0)[:, None]
        if not self.decode:
            return ForwardPlan.of(canvas, blocks.shapes, begun | answer)
        full = (blocks.turn % self.interval == 0)[:, None]
        return ForwardPlan.of(canvas, blocks.shapes, begun | (answer & (full | ~self.settled(canvas, blocks))))
