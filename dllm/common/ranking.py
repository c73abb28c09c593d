"""Chooses positions by a score; ties go to the lowest position."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def best(score: Tensor, among: Tensor) -> Tensor:
    """The highest-scoring position of ``among`` in each row, as a mask [B, L]."""
    first = torch.where(among, score, -torch.inf).argmax(1, keepdim=True)
    return torch.zeros_like(among).scatter_(1, first, among.gather(1, first))


def rank(score: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of each row in descending order (those of ``among``, then -inf), and every position's place in that order,
    from 0. Both [B, L]."""
    ranked, order = torch.where(among, score, -torch.inf).sort(dim=1, descending=True, stable=True)
    places = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return ranked, torch.empty_like(order).scatter_(1, order, places)


def top(score: Tensor, among: Tensor, count: Tensor) -> Tensor:
    """The ``count`` [B] highest-scoring positions of ``among`` in each row, as a mask [B, L]."""
    return among & (rank(score, among)[1] < count[:, None])


def one_of(tokens: Tensor, ids: Iterable[int]) -> Tensor:
    """Which ``tokens`` are one of a few ``ids``. The ids stay numbers: a tensor of them would be copied to the device
    in every turn."""
    found = torch.zeros_like(tokens, dtype=torch.bool)
    for one in ids:
        found = found | (tokens == one)
    return found
