"""Chooses positions by a score; ties go to the lowest position."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from dllm.common.errors import UserError


def _wide(score: Tensor) -> Tensor:
    """The score itself. Raises UserError for one in float32 or narrower: probabilities tie at 1.0 there, and small
    differences are rounding noise."""
    if score.is_floating_point() and score.dtype != torch.float64:
        raise UserError(
            f"Positions are ranked by numbers in float64, and this score is {str(score.dtype)[6:]}. Compute it in "
            "float64 from the logits on: widened at the end, it would be ranked by rounding noise."
        )
    return score


def argmax_mask(score: Tensor, among: Tensor) -> Tensor:
    """The highest-scoring position of ``among`` in each row, as a mask [B, L]. score: float64 or whole numbers."""
    first = torch.where(among, _wide(score), -torch.inf).argmax(1, keepdim=True)
    return among & (torch.arange(among.shape[1], device=among.device) == first)  # a scatter would not be fused


def rank(score: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of each row in descending order (those of ``among``, then -inf), and every position's place in that order,
    from 0. Both [B, L]. score: as in ``argmax_mask``."""
    ranked, order = torch.where(among, _wide(score), -torch.inf).sort(dim=1, descending=True, stable=True)
    places = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return ranked, torch.empty_like(order).scatter_(1, order, places)


def top_k_mask(score: Tensor, among: Tensor, count: Tensor) -> Tensor:
    """The ``count`` [B] highest-scoring positions of ``among`` in each row, as a mask [B, L]."""
    return among & (rank(score, among)[1] < count[:, None])


def within_budget(cost: Tensor, among: Tensor, budget: Tensor) -> Tensor:
    """The cheapest positions of ``among`` [B, L], as many as keep the sum of their ``cost`` [B, L] without its largest
    entry at or below ``budget`` [B]. That is always at least one: its sum without itself is 0."""
    ranked = _wide(cost).masked_fill(~among, torch.inf).sort(dim=1, stable=True).values
    before = ranked.cumsum(1) - ranked  # the prefix's sum without its last, largest entry
    return top_k_mask(-cost, among, ((before <= budget[:, None]) & (ranked < torch.inf)).sum(1))


def few_largest(values: Tensor, count: int, block: int = 512) -> tuple[Tensor, Tensor]:
    """The ``count`` largest of each row [..., V], and their indices, of equals the lowest first: both [..., count].

    Without sorting the row: the maximum of each block of it is kept up to date while they are taken out one by one
    (three of 16 rows of 126,464 on a CPU: 4 ms, a sort takes 194).
    """
    length, count = values.shape[-1], min(count, values.shape[-1])
    rows = F.pad(values, (0, -length % block), value=-torch.inf).unflatten(-1, (-1, block))
    rows = rows.clone() if length % block == 0 else rows
    highest, maxima, index = rows.amax(-1), list[Tensor](), list[Tensor]()
    for _ in range(count):
        at = highest.argmax(-1, keepdim=True)
        whole = at.unsqueeze(-1).expand(*at.shape, block)
        part = rows.gather(-2, whole)
        largest, inside = part.amax(-1), part.argmax(-1)
        maxima.append(largest)
        index.append((at * block + inside).clamp(max=length - 1))
        part = part.scatter(-1, inside.unsqueeze(-1), -torch.inf)
        rows.scatter_(-2, whole, part)
        highest.scatter_(-1, at, part.amax(-1))
    return torch.cat(maxima, -1), torch.cat(index, -1)


def one_of(tokens: Tensor, ids: Iterable[int]) -> Tensor:
    """Which ``tokens`` are one of a few ``ids``. The ids stay numbers: a tensor of them would be copied to the device
    in every turn."""
    matches = [tokens == token for token in ids]
    return reduce(Tensor.__or__, matches) if matches else torch.zeros_like(tokens, dtype=torch.bool)


PIECE = 32  # rows of logits that are float64 at a time


def in_float64(compute: Callable[..., Tensor], *values: Tensor) -> Tensor:
    """``compute`` [n] of rows of ``values`` [B, W, ...] as float64: [B, W]. ``PIECE`` rows at a time, since a row of
    126,464 logits takes 1 MB, and the answer of a batch has thousands."""
    pieces = zip(*(tensor.flatten(0, 1).split(PIECE) for tensor in values), strict=True)
    wide = [
        compute(*(tensor.double() if tensor.is_floating_point() else tensor for tensor in piece)) for piece in pieces
    ]
    return torch.cat(wide).view(values[0].shape[:2])
