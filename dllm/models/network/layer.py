"""The layer of the network: norm, rotary embedding, attention and MLP, and what runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dllm.kernels.add_norm import KeepRows, add_norm
from dllm.kernels.rope_scatter import HeadNorms
from dllm.models.config import ModelConfig
from dllm.models.network.experts import MLP, MoE
from dllm.models.network.memory import Attend, Memory, Projected
from dllm.models.network.rope import Angles
from dllm.models.network.rope_scaling import Scaling, Yarn


class RMSNorm(nn.Module):
    """Normalises in float32 or wider, casts back, then multiplies by the gain (the order of the published code)."""

    triton = False

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor, residual: Tensor | None = None, keep: KeepRows | None = None) -> tuple[Tensor, Tensor]:
        """The sum of x and the residual (None: x), and its norm. keep: where the sum is kept besides."""
        return add_norm(x, residual, self.weight, self.eps, keep, self.triton)


class Rotary:
    """Cosines and sines by position, in float32 or wider. The tables are neither parameters nor buffers: they are
    never cast with the model: in bfloat16, positions are exact only up to 256. They grow on demand, one for each
    device that has layers. Where frequencies depend on how long a row is, there is no table.
    """

    def __init__(self, dim: int, theta: float, scaling: Scaling | None = None) -> None:
        self.dim, self.theta, self.scaling = dim, theta, scaling
        self.tables: dict[torch.device, Tensor] = {}  # [2, length, dim]

    @property
    def by_length(self) -> bool:
        """Whether rows of different lengths rotate differently."""
        return self.scaling is not None and self.scaling.by_length

    def at(self, positions: Tensor, length: int, dtype: torch.dtype, totals: Tensor | None = None) -> Angles:
        """What rotates rows at ``positions`` [B, n], all below ``length``. totals [B, 1] or [1, n]: columns of the row
        of each in all, prompt and answer, where they matter (``by_length``)."""
        if self.by_length:
            assert totals is not None, "the length of each row decides its frequencies"
            return Angles(*(part.unsqueeze(-2) for part in self._turned(positions[..., None], totals, dtype)))
        table = self.tables.get(positions.device)
        if table is None or table.shape[1] < length or table.dtype != dtype:
            table = self.tables[positions.device] = self._build(max(length, 256), dtype, positions.device)
        yarn = self.scaling if isinstance(self.scaling, Yarn) and self.scaling.query_beta else None
        scale = None if yarn is None else yarn.query_scale(positions, dtype)
        cosine, sine = table[:, positions].unsqueeze(-2)
        return Angles(cosine, sine, scale)

    @torch.inference_mode(False)  # a table built while decoding must also serve training later
    def _build(self, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self._turned(torch.arange(length, dtype=dtype, device=device)[:, None], torch.zeros(1), dtype)

    def _turned(self, places: Tensor, totals: Tensor, dtype: torch.dtype) -> Tensor:
        """Cosines and sines [2, ..., dim] at ``places`` [..., 1] of rows of ``totals`` columns."""
        angles = self.angles_of(places, totals, dtype)
        cos, sin = angles.cos(), angles.sin()
        if self.scaling is not None and self.scaling.attention != 1:
            cos, sin = cos * self.scaling.attention, sin * self.scaling.attention
        return torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)])

    def angles_of(self, places: Tensor, totals: Tensor, dtype: torch.dtype) -> Tensor:
        """The angles [..., d / 2] at ``places`` [..., 1] of rows of ``totals`` columns."""
        if self.scaling is None:
            return places / self.theta ** (torch.arange(0, self.dim, 2, dtype=dtype, device=places.device) / self.dim)
        frequencies = self.scaling.frequencies(self.theta, self.dim, totals.to(places.device).flatten()).to(dtype)
        return places * frequencies.view(*totals.shape, -1)


@dataclass(frozen=True)
class LowRank:
    """What a LoRA adds to a product that is not merged with it."""

    a: Tensor  # A [r, in]
    b: Tensor  # B [out, r], times the scale

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.a), self.b)


class Attention(nn.Module):
    triton = varlen = tiled = False
    draft: LowRank | None = None  # added to the output of rows that draft (``attach_drafts``)
    qkv: nn.Module | None  # q, k and v in one product, see ``fuse_products``

    def __init__(self, config: ModelConfig, windowed: bool = False) -> None:
        super().__init__()
        self.head_dim, self.rope_float32, self.windowed = config.head_dim, config.rope_float32, windowed
        self.q = nn.Linear(config.width, config.heads * config.head_dim, bias=config.qkv_bias)
        self.k = nn.Linear(config.width, config.kv_width, bias=config.qkv_bias)
        self.v = nn.Linear(config.width, config.kv_width, bias=config.qkv_bias)
        self.o = nn.Linear(config.heads * config.head_dim, config.width, bias=config.output_bias)
        self.sizes = [config.heads * config.head_dim, config.kv_width, config.kv_width]
        self.heads = [size // config.head_dim for size in self.sizes]
        self.register_module("qkv", None)
        self.q_norm = RMSNorm(config.head_dim, config.eps) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.eps) if config.qk_norm else None

    def project(self, x: Tensor, angles: Angles) -> Projected:
        """Queries, keys and values of rows x [B, n, D], and the norms that come before the rotation."""
        heads, both = self.heads, None
        if self.qkv is None:
            q, k, v = (product(x).unflatten(-1, (-1, self.head_dim)) for product in (self.q, self.k, self.v))
        else:
            joint = self.qkv(x).unflatten(-1, (-1, self.head_dim))
            both, v = joint.split_with_sizes([heads[0] + heads[1], heads[2]], -2)
            q, k = both.split_with_sizes(heads[:2], -2)
        if angles.query_scale is not None:
            q, both = q * angles.query_scale.to(q.dtype), None  # before the rotation is as after it
        norms = None
        if self.q_norm is not None and self.k_norm is not None:
            if self.q_norm.weight.is_meta:  # accelerate copies offloaded weights when their module is called
                q, k, both = self.q_norm(q)[1], self.k_norm(k)[1], None
            else:
                norms = HeadNorms(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps)
        rows, kernels = (q, k, v), (self.triton, self.varlen, self.tiled)
        return Projected(*rows, angles[:2], self.rope_float32, *kernels, norms, windowed=self.windowed, together=both)

    def values(self, x: Tensor) -> Tensor:
        """The values [B, n, H_kv * h] of rows x [B, n, D] alone."""
        if self.qkv is None:
            return cast("Tensor", self.v(x))
        if type(self.qkv) is not nn.Linear:  # packed: its parts cannot be told apart
            return cast("Tensor", self.qkv(x).split(self.sizes, -1)[2])
        weight, bias = self.qkv.weight.split(self.sizes)[2], self.qkv.bias
        return F.linear(x, weight, None if bias is None else bias.split(self.sizes)[2])


class Layer(nn.Module):
    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(config.width, config.eps)
        self.attn = Attention(config, index in config.windowed)
        self.mlp_norm = RMSNorm(config.width, config.eps)
        moe = config.moe if config.moe is not None and index in config.moe.sparse_layers else None
        self.mlp = MoE(config.width, moe) if moe else MLP(config.width, config.mlp_width, config.mlp_bias)
        self.ranks = config.ranks

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None,
        angles: Angles,
        columns: Tensor | None,
        attend: Attend,
        drafts: bool = False,
        keep: KeepRows | None = None,
    ) -> tuple[Tensor, Tensor]:
        """What leaves the layer, from what enters it: rows [B, n, D] as a sum x + residual (None: x), which the norm
        that reads it adds up. ``attend`` decides what the rows attend to. drafts: these rows draft. keep: where what
        enters is kept."""
        x, normal = self.attn_norm(x, residual, keep)
        context = attend(self.attn.project(normal, angles), columns)
        out = self.attn.o(context)
        if drafts and self.attn.draft is not None:
            out = out + self.attn.draft(context)
        x, normal = self.mlp_norm(x, self.ranks.sum(out))
        return x, self.ranks.sum(self.mlp(normal))

    # The same in steps, as ``AnyLayer`` describes them.

    def entered(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.attn_norm(x, residual)

    def projected(self, normal: Tensor, angles: Angles) -> Projected:
        return self.attn.project(normal, angles)

    def values(self, normal: Tensor) -> Tensor:
        return self.attn.values(normal)

    def mixed(self, context: Tensor) -> Tensor:
        return self.ranks.sum(self.attn.o(context))

    def fed(self, hidden: Tensor) -> Tensor:
        return self.ranks.sum(self.mlp(self.mlp_norm(hidden, None)[1]))


# Runs a layer; the number is the layer's place in the memory.
RunLayer = Callable[[Layer, Tensor, "Tensor | None", Angles, "Tensor | None", Memory, int], tuple[Tensor, Tensor]]


def run_layer(
    layer: Layer, x: Tensor, residual: Tensor | None, angles: Angles, columns: Tensor | None, memory: Memory, index: int
) -> tuple[Tensor, Tensor]:
    return memory.run(index, layer, x, residual, angles, columns)
