"""Classifier-free guidance as in LLaDA: logits u + (w + 1) (c - u), where u comes from a canvas whose given positions
are masked. That doubles the rows of one plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dllm.cache.base import AnySession
from dllm.cache.guided import Guided
from dllm.contract.canvas import Canvas
from dllm.loop.extras.base import Extra, Work


@dataclass(frozen=True)
class Guidance(Extra):
    """It comes last, since it doubles what the others show to the network."""

    weight: float  # w
    placeholder: int  # the id that a mask shows

    stores_logits = True

    def opened(self, canvas: Canvas) -> Canvas:
        """The canvas twice: as it is, and with its given positions masked."""
        rows = torch.arange(len(canvas.row_id), device=canvas.row_id.device)
        both = canvas.select(torch.cat([rows, rows]))
        blank = both.given & (torch.arange(len(both.row_id), device=rows.device) >= len(rows))[:, None]
        return replace(both, tokens=both.tokens.masked_fill(blank, self.placeholder))

    def session(self, session: AnySession, rows: int) -> AnySession:
        return Guided(session.static, rows)

    def before(self, work: Work) -> Work:
        return replace(work, shown=self.opened(work.canvas))

    def mixed(self, logits: Tensor) -> Tensor:
        conditional, unconditional = logits.chunk(2)
        return unconditional + (self.weight + 1) * (conditional - unconditional)
