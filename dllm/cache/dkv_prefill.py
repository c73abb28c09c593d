"""dKV-Cache for long prompts on shifted models: the prompt is computed once (arXiv 2505.15781, Prefill and PD)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dllm.blocks.base import Span
from dllm.cache.base import Plan, Session
from dllm.cache.dkv import DKV, Delayed
from dllm.canvas import Canvas
from dllm.compose.setting import Setting
from dllm.errors import Unfit, name_of
from dllm.models.config import ModelConfig
from dllm.samplers.base import Sampler
from dllm.scores import Need


class DKVPrefill(DKV):
    """The prompt but for its last position is computed by the first forward and never again. decode: keep decided
    answer rows as dkv does as well, and refresh those alone (PD); otherwise the answer is always computed."""

    def __init__(self, decode: bool = False, refresh_interval: int = 4, shift_type: str = "un") -> None:
        super().__init__(refresh_interval, shift_type)
        self.decode, self.committed = decode, not decode

    @property
    def name(self) -> str:
        return "dkv_pd" if self.decode else "dkv_prefill"

    def check(self, setting: Setting, sampler: Sampler, needs: Sequence[Need]) -> None:
        super().check(setting, sampler, needs)
        if setting.model.prediction_shift == 0:
            raise Unfit(f"cache={name_of(self)} is defined for models that predict from the position before.")

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> Session:
        return Prefilled(canvas, config, self.refresh_interval, self.shift_type, self.decode)


class Prefilled(Delayed):
    def __init__(self, canvas: Canvas, config: ModelConfig, interval: int, shift_type: str, decode: bool) -> None:
        super().__init__(canvas, config, interval, shift_type)
        self.decode = decode

    def queries(self, canvas: Canvas, span: Span, upcoming: Tensor | None) -> Plan:
        answer = canvas.columns >= canvas.start[:, None] - 1
        begun = (span.turn == 0)[:, None]
        if not self.decode:
            return Plan(begun | answer)
        full = (span.turn % self.interval == 0)[:, None]
        return Plan(begun | (answer & (full | ~self.settled(canvas, span))))
