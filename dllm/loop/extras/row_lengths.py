"""How long rows are in all, prompt and answer, for rotary embeddings that depend on it (``Rotary.by_length``)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dllm.common.rowwise import select_or_all
from dllm.loop.extras.base import Extra, Work
from dllm.models.network.packed_calls import Inputs
from dllm.parts.cache.passes import Call, ForwardPass


@dataclass(frozen=True)
class RowLengths(Extra):
    """Every forward of a row gets the length that the row began with: its kept keys are rotated already, so its
    frequencies must not change when an end of text cuts it short."""

    def at_call(self, work: Work, forward: ForwardPass, call: Call, inputs: Inputs) -> Inputs:
        return replace(inputs, totals=select_or_all(work.shown.initial_end, call.candidates)[:, None])
