"""CreditDecoding as its paper writes it (arXiv 2510.06133): a credit for every token of the vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor


def dense_credit(
    logits: Tensor, credit: Tensor, masked: Tensor, beta: float, gamma: float, alpha: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One turn: token [B, L], confidence [B, L] and the new credit [B, L, V], all in float64.

    logits [B, L, V] z, credit [B, L, V] C of the last turn, masked [B, L]. With p = softmax(z) and v = argmax p:

        C <- beta C;  C[v] += p[v]^gamma where masked;  z' = z + alpha ln(1 + C);  confidence = max softmax(z')
    """
    logits = logits.double()
    top = logits.argmax(-1, keepdim=True)
    gain = logits.softmax(-1).gather(-1, top) ** gamma * masked.unsqueeze(-1)
    credit = (beta * credit).scatter_add(-1, top, gain)
    fused = (logits + alpha * torch.log1p(credit)).softmax(-1)
    return fused.argmax(-1), fused.amax(-1), credit
