"""What a layer does to each row by itself: the plain network of two layers, or several of them and a router.

Letters: R rows, D width, E experts.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dllm.models.config import MoEConfig


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """float32, or float64 for a float64 model, so that double precision stays double everywhere."""
    return torch.promote_types(dtype, torch.float32)


class MLP(nn.Module):
    def __init__(self, width: int, inner: int, bias: bool = False) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=bias)
        self.up = nn.Linear(width, inner, bias=bias)
        self.down = nn.Linear(inner, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Router(nn.Linear):
    """Expert logits [R, E]. ``wide``: multiplied in float32 or better, not in the dtype of the rows (LLaDA2).

    Called as a module, never through its weight: only so can accelerate fetch a weight that lives elsewhere.
    """

    def __init__(self, width: int, config: MoEConfig) -> None:
        super().__init__(width, config.experts, bias=False)
        self.wide = config.router == "sigmoid"

    def forward(self, rows: Tensor) -> Tensor:
        dtype = at_least_float32(rows.dtype) if self.wide else rows.dtype
        return F.linear(rows.to(dtype), self.weight.to(dtype))


class MoE(nn.Module):
    """Routed experts. ``softmax``: LLaDA-MoE's router; ``sigmoid``: LLaDA2's group-limited one."""

    def __init__(self, width: int, config: MoEConfig) -> None:
        super().__init__()
        self.config = config
        self.router = Router(width, config)
        self.expert_bias = nn.Parameter(torch.zeros(config.experts)) if config.expert_bias else None
        self.experts = nn.ModuleList(MLP(width, config.width) for _ in range(config.experts))
        self.shared = MLP(width, config.shared_width) if config.shared_width else None

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        weights, chosen = self.route(rows)  # [R, top_k]
        out = torch.zeros_like(rows)
        for expert in chosen.unique().tolist():
            row, slot = torch.where(chosen == expert)
            out[row] += self.experts[expert](rows[row]) * weights[row, slot, None].to(rows.dtype)
        out = out.view_as(x)
        return out if self.shared is None else out + self.shared(x)

    def route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        if self.config.router == "softmax":
            scores = self.router(rows).to(at_least_float32(rows.dtype)).softmax(-1)
            return top(scores, self.config.top_k)
        scores = self.router(rows).sigmoid()
        _, chosen = top(self.limit_to_groups(scores), self.config.top_k)
        weights = scores.gather(-1, chosen)
        if self.config.top_k > 1:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights * self.config.scale, chosen

    def limit_to_groups(self, scores: Tensor) -> Tensor:
        """Selection scores [R, E], -inf outside the ``top_groups`` best groups (by the sum of their best two)."""
        if self.expert_bias is not None:
            scores = scores + self.expert_bias.to(scores.dtype)
        grouped = scores.unflatten(-1, (self.config.groups, -1))
        strength = top(grouped, min(2, grouped.shape[-1]))[0].sum(-1)
        _, kept = top(strength, self.config.top_groups)
        closed = torch.ones_like(strength, dtype=torch.bool).scatter(-1, kept, False)
        return grouped.masked_fill(closed[..., None], -torch.inf).flatten(-2)


def top(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest along the last axis, ties to the lowest index (torch.topk leaves them open)."""
    values, index = scores.sort(dim=-1, descending=True, stable=True)
    return values[..., :count], index[..., :count]
