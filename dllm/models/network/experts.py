"""The MLP of a layer, which maps each row by itself: a SwiGLU network, or routed experts.

Letters: R rows, D width, E experts, k experts of a token.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange, reduce
from torch import Tensor, nn

from dllm.kernels.grouped_product import by_group, grouped_product
from dllm.kernels.silu_times import GATES
from dllm.models.network.moe import MoEConfig


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """float32, or float64 for a float64 model, whose arithmetic is float64 everywhere."""
    return torch.promote_types(dtype, torch.float32)


class MLP(nn.Module):
    """A gated MLP (arXiv 2002.05202): down(f(gate(x)) * up(x)), x [..., D], where f is the ``activation``."""

    triton = False
    gate_up: nn.Module | None  # gate and up in one product, see ``fuse_products``

    def __init__(self, width: int, inner: int, bias: bool = False, activation: str = "silu") -> None:
        super().__init__()
        self.times = GATES[activation]
        self.gate = nn.Linear(width, inner, bias=bias)
        self.up = nn.Linear(width, inner, bias=bias)
        self.down = nn.Linear(inner, width, bias=bias)
        self.sizes = [inner, inner]
        self.register_module("gate_up", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate_up is None:
            gate, up = self.gate(x), self.up(x)
        else:
            gate, up = self.gate_up(x).split_with_sizes(self.sizes, -1)  # 3 us faster than split
        return self.down(self.times(gate, up, triton=self.triton))


class Router(nn.Linear):
    """Expert logits [R, E] of rows [R, D]. wide: compute in float32 or wider, not in the dtype of the rows (LLaDA2).

    Call it, and never use its weight directly: accelerate fetches an offloaded weight when a module is called.
    """

    def __init__(self, width: int, config: MoEConfig) -> None:
        super().__init__(width, config.experts, bias=False)
        self.wide = config.router == "sigmoid"

    def forward(self, rows: Tensor) -> Tensor:
        dtype = at_least_float32(rows.dtype) if self.wide else rows.dtype
        return F.linear(rows.to(dtype), self.weight.to(dtype))


class Experts(nn.ModuleList):
    """One MLP per expert, as files and training know them. Calling them is what ``StackedExperts`` does for all."""

    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        """Rows [T, D], sorted by expert, through the expert of each. ends [E]: the row after each expert's last."""
        return by_group(lambda expert, part: self[expert](part), rows, ends, rows.shape[1])


class StackedExperts(nn.Module):
    """The same with the matrices of all experts in one tensor, see ``fuse_products``: gate_up [E, 2 I, D] holds gate
    over up, down [E, D, I]."""

    triton = False

    def __init__(self, gate_up: Tensor, down: Tensor, activation: str = "silu", as_stored: bool = False) -> None:
        """as_stored: files hold them so, too."""
        super().__init__()
        self.activation, self.times, self.as_stored = activation, GATES[activation], as_stored
        self.gate_up, self.down = nn.Parameter(gate_up, requires_grad=False), nn.Parameter(down, requires_grad=False)

    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        gate, up = grouped_product(rows, self.gate_up, ends, self.triton).chunk(2, -1)
        return grouped_product(self.times(gate, up, triton=self.triton), self.down, ends, self.triton)


class MoE(nn.Module):
    """Routed experts, and the shared expert where the model has one. Maps x [..., D] to [..., D]."""

    def __init__(self, width: int, config: MoEConfig) -> None:
        super().__init__()
        self.config = config
        self.router = Router(width, config)
        self.local_experts = config.local_experts
        self.expert_bias = nn.Parameter(torch.zeros(config.experts)) if config.expert_bias else None
        numbers = range(*(config.local_experts or (0, config.experts)))
        self.experts: nn.Module = Experts(MLP(width, config.width) for _ in numbers)
        self.shared = MLP(width, config.shared_width) if config.shared_width else None

    def forward(self, x: Tensor) -> Tensor:
        rows = rearrange(x, "... d -> (...) d")
        weights, ids = self.route(rows)
        out = mixed_experts(
            self.experts, rows, weights.to(rows.dtype), ids, self.config.experts, self.local_experts
        ).view_as(x)
        return out if self.shared is None else out + self.shared(x)

    def route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers [R, k] of the experts of rows [R, D]. softmax: LLaDA-MoE's and Qwen3-MoE's router,
        sigmoid: LLaDA2's."""
        if self.config.router == "softmax":
            scores = self.router(rows).to(at_least_float32(rows.dtype)).softmax(-1)
            weights, ids = top_experts(scores, self.config.top_k)
            return (weights / weights.sum(-1, keepdim=True) if self.config.renormalised else weights), ids
        scores = self.router(rows).sigmoid()
        _, ids = top_experts(self.limit_to_groups(scores), self.config.top_k)
        weights = scores.gather(-1, ids)
        if self.config.top_k > 1:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights * self.config.scale, ids

    def limit_to_groups(self, scores: Tensor) -> Tensor:
        """Scores [R, E] plus the expert bias, -inf outside the best groups (by the sum of their best two scores)."""
        if self.expert_bias is not None:
            scores = scores + self.expert_bias.to(scores.dtype)
        grouped = rearrange(scores, "r (group expert) -> r group expert", group=self.config.groups)
        strength = reduce(top_experts(grouped, min(2, grouped.shape[-1]))[0], "r group best -> r group", "sum")
        _, groups = top_experts(strength, self.config.top_groups)
        is_closed = torch.ones_like(strength, dtype=torch.bool).scatter(-1, groups, False)
        return rearrange(grouped.masked_fill(is_closed[..., None], -torch.inf), "r group expert -> r (group expert)")


def mixed_experts(
    experts: nn.Module, rows: Tensor, weights: Tensor, ids: Tensor, count: int, local: tuple[int, int] | None = None
) -> Tensor:
    """Rows [R, D] through their experts ``ids`` [R, k], of ``count``, in a sum by ``weights`` [R, k].
    local: the range of experts that ``experts`` holds (None: all); the sum leaves the others out."""
    ids, place = ids.sort(dim=-1)  # the published code adds up the experts of a row in ascending order
    first, end = local or (0, count)
    if local is not None:  # rows of experts that are elsewhere come last, after the last of ``ends``
        ids = (ids - first) % count
    expert, order = ids.flatten().sort(stable=True)
    ends = torch.searchsorted(expert, torch.arange(end - first, device=expert.device), right=True)
    outputs = experts(rows[order // ids.shape[1]], ends)
    parts = torch.empty_like(outputs).index_copy_(0, order, outputs).view(*ids.shape, -1)
    parts = (parts * weights.gather(-1, place).unsqueeze(-1)).to(rows.dtype)
    if local is not None:
        parts = torch.where((ids < end - first).unsqueeze(-1), parts, 0.0)
    out = parts[:, 0]
    for rank in range(1, ids.shape[1]):
        out = out + parts[:, rank]
    return out


def top_experts(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest along the last axis and their indices, of equals the lowest (torch.topk: any of them)."""
    values, index = scores.sort(dim=-1, descending=True, stable=True)
    return values[..., :count], index[..., :count]
