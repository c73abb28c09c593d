"""Which positions of an answer a training row has masked: patterns that decoding meets."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK = 32  # tokens, as LLaDA is decoded


def draw_masks(answers: Tensor, length: Tensor, marks: Tensor, generator: torch.Generator) -> Tensor:
    """Which answer positions [B, A] are masked: uniform ratios, few masks, all, blocks, structure visible.

    ``length`` [B]: of each row's canvas; there are no masks beyond it.
    """
    rows, widest = answers.shape
    noise, ratio, mode = (torch.rand(shape, generator=generator) for shape in ((rows, widest), (rows, 1), (rows, 1)))
    column = torch.arange(widest)
    masked = noise < torch.where(mode < 0.25, 0.3 * ratio, ratio)
    masked |= (mode >= 0.25) & (mode < 0.33)
    block = 2 ** torch.randint(2, 6, (rows, 1), generator=generator)
    start = (torch.rand((rows, 1), generator=generator) * length[:, None] / block).floor() * block
    blocks = ((noise < ratio) & (column >= start)) | (column >= start + block)
    masked = torch.where((mode >= 0.33) & (mode < 0.45), blocks, masked)
    masked &= ~(marks[answers] & (mode >= 0.45) & (mode < 0.70))
    masked &= column < length[:, None]
    empty = ~masked.any(1)
    masked[empty, (noise[empty] * ~marks[answers[empty]] * (column < length[empty, None])).argmax(1)] = True
    return masked


def mask_at_once(
    masked: Tensor,
    shares: Sequence[float],
    answers: Sequence[Sequence[int]],
    canvases: Sequence[int],
    generator: torch.Generator,
) -> Tensor:
    """``masked`` [B, A], but rows with the probability of their ``shares`` exactly from a block's start on: that of the
    answer or any before its end."""
    taken = torch.rand(len(masked), generator=generator) < torch.tensor(shares)
    blocks = torch.tensor([len(answer) // BLOCK + 1 for answer in answers])
    start = (torch.rand(len(masked), generator=generator) * blocks).floor() * BLOCK
    column = torch.arange(masked.shape[1])
    from_start = (column >= start[:, None]) & (column < torch.tensor(canvases)[:, None])
    return torch.where(taken[:, None], from_start, masked)


def half_decided(
    masked: Tensor, share: float, answers: Sequence[Sequence[int]], canvases: Sequence[int], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """``masked`` [B, A], but a ``share`` of the rows in a block of 4 to 32 tokens of the answer alone, and after it
    wholly; and which columns [B, A] of these rows lie outside the block."""
    taken = torch.rand((len(masked), 1), generator=generator) < share
    block = 2 ** torch.randint(2, 6, (len(masked), 1), generator=generator)
    blocks = torch.tensor([len(answer) for answer in answers])[:, None] // block + 1
    start = (torch.rand((len(masked), 1), generator=generator) * blocks).floor() * block
    ratio, noise = torch.rand((len(masked), 1), generator=generator), torch.rand(masked.shape, generator=generator)
    column = torch.arange(masked.shape[1])
    inside = (column >= start) & (column < start + block)
    half = ((noise < ratio) & inside) | (column >= start + block)
    half &= column < torch.tensor(canvases)[:, None]
    taken &= half.any(1, keepdim=True)
    return torch.where(taken, half, masked), taken & ~inside
