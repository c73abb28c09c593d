"""The two masked views of an answer that a student learns from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SHARE = (1 - 1e-3) * 0.5 + 1e-3  # of the segment's tokens are masked in the first view, as in the released code


@dataclass(frozen=True)
class Views:
    """tokens [2, L]: the canvas of each view. loss [2, L]: masked positions of the segment, from which it learns."""

    tokens: Tensor
    loss: Tensor


def segment(answer: int, block: int | None, generator: torch.Generator) -> tuple[int, int]:
    """First position of the segment in an answer of that many tokens, and the one after it.

    A block drawn uniformly from all that are complete and the rest after them, which may be empty. block=None: the
    whole answer, as the released code has it for Dream.
    """
    if block is None:
        return 0, answer
    last = answer // block
    drawn = int(torch.randint(last + 1, (), generator=generator))
    return block * drawn, answer if drawn == last else block * (drawn + 1)


def complementary(ids: Tensor, prompt: int, block: int | None, mask_id: int, generator: torch.Generator) -> Views:
    """Two views of a sequence ``ids`` [L] whose first ``prompt`` tokens are the prompt, as decoding in blocks meets it:
    clean before the segment, masked after it. Every position of the segment is masked in exactly one of the two."""
    start, end = (prompt + place for place in segment(len(ids) - prompt, block, generator))
    column = torch.arange(len(ids))
    inside = (column >= start) & (column < end)
    half = (torch.rand(len(ids), generator=generator) < SHARE) & inside
    loss = torch.stack([half, inside & ~half])
    return Views(torch.where(loss | (column >= end), mask_id, ids), loss)
