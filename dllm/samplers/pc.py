"""Commit early positions and informative tokens first (PC-Sampler, arXiv 2508.13021)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from dllm.canvas import Canvas
from dllm.common.ranking import top
from dllm.contract import State, Step, View
from dllm.errors import UserError, in_range, in_words
from dllm.samplers.base import each_row
from dllm.samplers.scheduled import Scheduled
from dllm.setting import Setting
from dllm.traits import Schedule


class PC(Scheduled):
    """Rank by exp(-decay * offset) * min(cap, -p log f(token)) and commit as many as the fixed schedule says.

    offset counts from the answer's start. frequencies: a JSON file that maps token ids to relative frequencies f in
    some corpus (``python -m experiments.token_frequencies`` measures one). Tokens that it lacks count as the rarest
    that it holds. Without a file the second factor is the probability p itself. steps None: one token per forward.
    """

    stateless = True
    per_request = ("decay",)

    def __init__(
        self, decay: Any = 0.25, cap: float = 10.0, frequencies: str | None = None, steps: int | None = None
    ) -> None:
        in_range("sampler.decay", decay, 0.0)
        in_range("sampler.cap", cap, 0.0)
        super().__init__(steps)
        self.decay, self.cap = decay, cap
        self.surprise = None if frequencies is None else surprises(Path(frequencies))

    def doubt(self, setting: Setting) -> str | None:
        if not torch.as_tensor(self.decay).any():
            return None
        return (
            f"sampler.decay={self.decay}: positions further right wait, however sure the model is of them: mini-llada "
            "gets 87 % right, and 97 % with sampler.decay=0. Compare the two on your own prompts."
        )

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        surprise = {} if self.surprise is None else {"surprise": each_row(self.surprise, canvas)}
        return super().start(canvas, blocks) | surprise

    def step(self, view: View, state: State) -> Step:
        offset = view.canvas.columns - view.canvas.start[:, None]
        rate = view.scores.confidence
        if "surprise" in state:
            token = view.scores.token.clamp(max=state["surprise"].shape[1] - 1)
            rate = (rate * state["surprise"].gather(1, token)).clamp(max=self.cap)
        rate = rate * torch.exp(-state["decay"][:, None] * offset)
        return view.step(top(rate, view.open, self.due(view, state)))


def surprises(file: Path) -> torch.Tensor:
    """-log f by token id [V + 1]. Unknown ids, and the last entry, count as the rarest known one. Raises UserError for
    a file that is no such table."""
    try:
        table = {int(token): float(f) for token, f in json.loads(file.read_text()).items()}
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(
            f"sampler.frequencies={str(file)!r} is no JSON object of token id to frequency ({in_words(error)})."
        ) from error
    if not table or min(table) < 0 or min(table.values()) <= 0 or max(table.values()) > 1:
        raise UserError(f"sampler.frequencies={str(file)!r} must map token ids to frequencies in (0, 1].")
    out = torch.full((max(table) + 2,), min(table.values()), dtype=torch.float64)
    out[list(table)] = torch.tensor(list(table.values()), dtype=torch.float64)
    return -out.log()
