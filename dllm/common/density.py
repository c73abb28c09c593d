"""How much is known around each position: a Gaussian mean over decided neighbours (d2Cache, arXiv 2509.23094)."""

from __future__ import annotations

import torch
from torch import Tensor


def certainty_density(known: Tensor, start: Tensor, end: Tensor, sigma: float) -> Tensor:
    """The share [B, L] of each position's surroundings that is known, float64; 0 outside the answer.

        D(i) = sum over j of k(i - j) known(j) / Z    with k(d) = exp(-d^2 / (2 sigma^2))

    known [B, L]. start, end [B]: the answer's first column, and the one after its last: G columns. All of the G
    columns before it count as known, the G after it as its last one. Z is the sum of k over d = -3G ... 3G - 1, so
    what is beyond these counts as unknown.
    """
    columns, start, end = torch.arange(known.shape[1], device=known.device), start[:, None], end[:, None]
    distance = torch.arange(3 * known.shape[1] + 2, device=known.device, dtype=torch.float64)
    kernel = (-((distance / sigma) ** 2) / 2).exp()
    beyond = kernel.flip(0).cumsum(0).flip(0)  # the sum of k from each distance on; from the small end: tails are exact
    inside, length = (columns >= start) & (columns < end), (end - start).clamp(min=1)
    place, rest = (columns - start).clamp(min=0), (end - columns).clamp(min=1)
    place, rest = torch.minimum(place, length - 1), torch.minimum(rest, length)
    around = (known & inside).double() @ kernel[(columns - columns[:, None]).abs()]
    before = beyond[place + 1] - beyond[place + length + 1]
    last = known.gather(1, (end - 1).clamp(min=0))
    behind = (beyond[rest] - beyond[rest + length]) * last
    whole = kernel[0] + 2 * beyond[1] - beyond[3 * length + 1] - beyond[3 * length]
    return ((around + before + behind) / whole) * inside
