"""Where drafts are in a forward: beside what a cache keeps, or in their own columns.

Neither is on the canvas, so a draft that is refused leaves no trace there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dllm.common.ranking import rank
from dllm.common.rowwise import Rowwise
from dllm.contract.canvas import Canvas


@dataclass(frozen=True)
class Beside(Rowwise):
    """Query tokens of a forward that no column keeps, among which a position may occur twice: as a draft and as a mask.
    In papers: draft and mask tokens."""

    columns: Tensor  # [B, n] the column of each query (L: none); papers: position ids
    number: Tensor  # [B, n] of the draft that it belongs to, from 1 (0: a decided column)
    mask: Tensor  # [B, n] whether the query is that draft's mask; papers: mask tokens
    drafts: Tensor  # [B, L] the same numbers by column; papers: draft tokens

    @staticmethod
    def of(decided: Tensor, drafts: Tensor, width: int) -> Beside:
        """``width`` rows: decided columns, the drafts, and masks of the same positions. decided [B, L]: places in the
        order of importance, from 1 (0: not to be had); the last ones fill what drafts and masks leave. drafts [B, L]:
        numbers from 1, without gaps."""
        columns = torch.arange(drafts.shape[1], device=drafts.device).expand_as(drafts)
        count = drafts.amax(1, keepdim=True)
        room = width - 2 * count
        back = rank(decided.double(), decided > 0)[1]  # 0: the last one
        at = torch.where((decided > 0) & (back < room), room - 1 - back, width)
        draft, mask = (torch.where(drafts > 0, begin + drafts - 1, width) for begin in (room, room + count))
        blank = columns.new_zeros(len(drafts), width + 1)
        lying = torch.full_like(blank, drafts.shape[1])
        for places in (at, draft, mask):
            lying = lying.scatter(1, places, columns)
        number = blank.scatter(1, draft, drafts).scatter(1, mask, drafts)
        masks = blank.scatter(1, mask, 1).bool()
        return Beside(lying[:, :width], number[:, :width], masks[:, :width], drafts)

    @property
    def sources(self) -> None:
        """Each draft is predicted by a row of its own."""

    @property
    def sees(self) -> Tensor:
        """Which rows see which [B, n, n]. Each sees every position once: of drafts up to its own number the draft, of
        later ones the mask. A mask sees itself instead of its draft, and decided rows see no drafts."""
        level, number = (self.number - self.mask.long())[:, :, None], self.number[:, None]
        there = self.columns < self.drafts.shape[1]
        return there[:, None] & torch.where(self.mask[:, None], number > level, number <= level)

    def on(self, canvas: Canvas, tokens: Tensor) -> Canvas:
        """The canvas with the drafts, which are ``tokens`` [B, L], where they lie."""
        return replace(canvas, tokens=torch.where(self.drafts > 0, tokens, canvas.tokens))


@dataclass(frozen=True)
class InPlace(Rowwise):
    """Drafts in their own columns, as if they were decided."""

    drafts: Tensor  # [B, L] their numbers, from 1 (0: none); papers: draft tokens
    judged: Tensor  # [B] rows whose forward is causal, and judges them
    sources: Tensor  # [B, L] the column whose row predicts each column

    def on(self, canvas: Canvas, tokens: Tensor) -> Canvas:
        """The canvas with the drafts, which are ``tokens`` [B, L]. Where they are judged they count as decided, so that
        the forward does not take them for masks."""
        laid = self.drafts > 0
        masked = canvas.masked & ~(laid & self.judged[:, None])
        return replace(canvas, tokens=torch.where(laid, tokens, canvas.tokens), masked=masked)


DraftPlaces = Beside | InPlace
