"""DiffusionGemma's network, as text (transformers 5.24: ``modeling_diffusion_gemma.py``).

Two passes share all weights but one scalar a layer. The causal pass computes decided text. The denoising pass computes
the block of noise, whose rows are also given what was expected of them (self-conditioning). One call runs rows of both:
each says by which it runs. Layers with a window alternate with global ones, which have other heads, and whose values
are the keys before norm and rotation. In every layer a dense MLP and routed experts add up.

Letters as in ``dllm/models/network/transformer.py``; E experts, F their width.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache, partial
from typing import cast

import torch
from einops import rearrange
from torch import Tensor, nn

from dllm.models.config import ModelConfig
from dllm.models.gemma_config import LayerKind
from dllm.models.network.attention_order import columns_of
from dllm.models.network.conditioning import Conditioning
from dllm.models.network.experts import MLP, Router, StackedExperts, at_least_float32, mixed_experts, top_experts
from dllm.models.network.layer import Attention, Layer, Rotary, RunLayer, run_layer
from dllm.models.network.memory import Attend, Memory, NoCacheMemory, Projected
from dllm.models.network.rope import Angles
from dllm.models.network.transformer import Embedding, Transformer, at

GELU = "gelu_tanh"
SOFT_ROWS = 64  # rows of probabilities at a time: of 262,144 columns in float32 they take 67 MB


def normed(x: Tensor, eps: float, gain: Tensor | None = None) -> Tensor:
    """RMS norm in float32 or wider. The gain multiplies before the cast, unlike in ``RMSNorm``."""
    wide = x.to(at_least_float32(x.dtype))
    wide = wide * (wide.square().mean(-1, keepdim=True) + eps) ** -0.5
    return (wide if gain is None else wide * gain.to(wide.dtype)).to(x.dtype)


@lru_cache(1024)  # a turn that is recorded makes no tensor on the host
def in_dtype(number: float, dtype: torch.dtype) -> float:
    """The number that ``dtype`` has in its place."""
    return float(torch.tensor(number, dtype=torch.float64).to(dtype))


class GainedNorm(nn.Module):
    """``normed`` with a gain."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return normed(x, self.eps, self.weight)


class PartialRotary(Rotary):
    """Of a head's frequencies the first ``pairs`` turn; the others stay, though they count in the exponents."""

    def __init__(self, kind: LayerKind) -> None:
        super().__init__(kind.head_dim, kind.theta)
        self.pairs = kind.pairs

    def angles_of(self, places: Tensor, totals: Tensor, dtype: torch.dtype) -> Tensor:
        turning = torch.arange(self.dim // 2, device=places.device) < self.pairs
        return super().angles_of(places, totals, dtype) * turning


class GemmaAttention(Attention):
    """Of one kind of layer. A global one has no projection of values."""

    def __init__(self, config: ModelConfig, kind: LayerKind) -> None:
        nn.Module.__init__(self)
        self.head_dim, self.sliding, self.eps = kind.head_dim, kind.sliding, config.eps
        queries, keys = config.heads * kind.head_dim, kind.kv_heads * kind.head_dim
        self.q = nn.Linear(config.width, queries, bias=False)
        self.k = nn.Linear(config.width, keys, bias=False)
        if kind.sliding:
            self.v = nn.Linear(config.width, keys, bias=False)
            self.sizes = [queries, keys, keys]
            self.register_module("qkv", None)
        self.o = nn.Linear(queries, config.width, bias=False)
        self.norm_q, self.norm_k = GainedNorm(kind.head_dim, config.eps), GainedNorm(kind.head_dim, config.eps)

    def project(self, x: Tensor, angles: Angles) -> Projected:
        """Queries, keys and values of rows x [B, n, D], before the rotation. The norm of queries holds the scale."""
        if not self.sliding:
            rows: tuple[Tensor, ...] = self.q(x), (key := self.k(x)), key
        elif self.qkv is None:
            rows = self.q(x), self.k(x), self.v(x)
        else:
            rows = self.qkv(x).split(self.sizes, -1)
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)) for part in rows)  # 2 us faster than einops
        q, k, v = self.norm_q(q), self.norm_k(k), normed(v, self.eps)
        return Projected(
            q, k, v, angles[:2], False, self.triton, self.varlen, self.tiled, scale=1.0, windowed=self.sliding
        )


class GemmaRouter(nn.Module):
    """Weights and numbers [R, k] of the experts of rows [R, D]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.moe is not None
        self.top_k, self.eps = config.moe.top_k, config.eps
        self.proj = Router(config.width, config.moe)
        self.scale = nn.Parameter(torch.ones(config.width))
        self.per_expert_scale = nn.Parameter(torch.ones(config.moe.experts))

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        rows = normed(rows, self.eps) * self.scale * rows.shape[-1] ** -0.5
        scores = self.proj(rows).to(at_least_float32(rows.dtype)).softmax(-1)
        weights, ids = top_experts(scores, self.top_k)
        return weights / weights.sum(-1, keepdim=True) * self.per_expert_scale[ids], ids


class GemmaLayer(Layer):
    """scalar, denoising_scalar: by which a row of each pass is multiplied when it leaves the layer."""

    def __init__(self, config: ModelConfig, kind: LayerKind) -> None:
        nn.Module.__init__(self)
        assert config.moe is not None
        norm = partial(GainedNorm, config.width, config.eps)
        self.attn_norm, self.attn_out_norm = norm(), norm()  # type: ignore[assignment]
        self.attn = GemmaAttention(config, kind)
        self.mlp_norm, self.mlp_out_norm = norm(), norm()  # type: ignore[assignment]
        self.mlp = MLP(config.width, config.mlp_width, activation=GELU)
        self.router = GemmaRouter(config)
        self.experts_norm, self.experts_out_norm = norm(), norm()
        begin, end = config.moe.local_experts or (0, config.moe.experts)
        experts, inner = end - begin, config.moe.width
        self.experts = StackedExperts(
            torch.empty(experts, 2 * inner, config.width), torch.empty(experts, config.width, inner), GELU, True
        )
        self.out_norm = norm()
        self.scalar, self.denoising_scalar = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
        self.ranks, self.local_experts = config.ranks, config.moe.local_experts

    def denoise(
        self, x: Tensor, angles: Angles, columns: Tensor | None, denoised: Tensor | None, attend: Attend
    ) -> Tensor:
        """Rows [B, n, D] after the layer. denoised [B, n]: those of the denoising pass (None: no row is)."""
        context = attend(self.attn.project(self.attn_norm(x), angles), columns)
        x = x + self.attn_out_norm(self.ranks.sum(self.attn.o(context)))
        rows = rearrange(x, "b n d -> (b n) d")
        weights, ids = self.router(rows)
        count = self.router.proj.out_features
        routed = mixed_experts(self.experts, self.experts_norm(rows), weights, ids, count, self.local_experts)
        dense = self.ranks.sum(self.mlp(self.mlp_norm(x)))  # each sum has a norm of its own
        x = x + self.out_norm(self.mlp_out_norm(dense) + self.experts_out_norm(self.ranks.sum(routed).view_as(x)))
        if denoised is None:
            return x * self.scalar
        return x * torch.where(denoised[..., None], self.denoising_scalar, self.scalar)


class SelfConditioning(nn.Module):
    """Adds to the embeddings of the denoising pass what was expected of them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm, self.eps = GainedNorm(config.width, config.eps), config.eps
        self.mlp, self.ranks = MLP(config.width, config.mlp_width, activation=GELU), config.ranks

    def forward(self, x: Tensor, soft: Tensor) -> Tensor:
        return normed(x + self.ranks.sum(self.mlp(self.norm(soft))), self.eps)


class DiffusionGemma(Transformer):
    """The network as the loop calls it. ``forward`` takes one more argument, ``soft`` makes what it is given next."""

    def __init__(self, config: ModelConfig) -> None:
        nn.Module.__init__(self)
        assert config.gemma is not None
        self.config, self.kinds = config, config.gemma.layers
        self.embed = Embedding(config.vocab, config.width)
        self.self_conditioning = SelfConditioning(config)
        self.layers = nn.ModuleList(GemmaLayer(config, kind) for kind in self.kinds)
        self.norm = GainedNorm(config.width, config.eps)  # type: ignore[assignment]
        begin, end = config.ranks.share(config.vocab)
        self.lm_head = nn.Linear(config.width, end - begin, bias=False)
        self.tie()
        self.rotaries = {kind: PartialRotary(kind) for kind in dict.fromkeys(self.kinds)}

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        memory: Memory,
        columns: Tensor | None = None,
        run: RunLayer = run_layer,
        totals: Tensor | None = None,
        *,
        conditioning: Conditioning | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """As ``Transformer.forward``. conditioning: of the rows of the denoising pass (None without any)."""
        x, denoised, home = self.embed(tokens) * self.embed_scale, None, self.device
        if conditioning is not None:
            denoised = conditioning.where
            x = torch.where(denoised[..., None], self.self_conditioning(x, conditioning.soft), x)
        angles = self.angles_by_kind(positions, columns)
        for index, (layer, kind) in enumerate(zip(cast("Iterable[GemmaLayer]", self.layers), self.kinds, strict=True)):
            if self.places is not None and x.device != self.places.layers[index]:
                here = self.places.layers[index]
                x, positions, columns, denoised = (at(tensor, here) for tensor in (x, positions, columns, denoised))
                angles = self.angles_by_kind(positions, columns)
            x = layer.denoise(x, angles[kind], columns, denoised, partial(memory.attend, index))
        if self.places is None:
            return self.norm(x), columns  # type: ignore[return-value]
        return at(self.norm(at(x, self.places.norm)), home), at(columns, home)

    @property
    def rotations(self) -> list[Rotary]:
        return list(self.rotaries.values())

    @property
    def embed_scale(self) -> float:
        """The root of the width, rounded to the weights' dtype: 53.0 for 2,816 in bfloat16."""
        return in_dtype(self.config.embed_scale, self.dtype)

    def angles_by_kind(self, positions: Tensor, columns: Tensor | None) -> dict[LayerKind, Angles]:
        length = positions.shape[1]
        if columns is not None:
            positions = positions.gather(1, columns.clamp(max=length - 1))
        wide = at_least_float32(self.dtype)
        return {kind: rotary.at(positions, length, wide) for kind, rotary in self.rotaries.items()}

    def local_head(self, hidden: Tensor) -> Tensor:
        """Capped logits of hidden states [..., D], in float32 or wider."""
        assert self.config.gemma is not None
        cap, logits = self.config.gemma.softcap, super().local_head(hidden)
        return (logits.to(at_least_float32(logits.dtype)) / cap).tanh() * cap

    @property
    def local_head_weight(self) -> None:
        """The head is not a plain product: its logits are capped."""
        return None

    def soft(self, logits: Tensor) -> Tensor:
        """The expected embeddings [..., D] under tempered ``logits`` [..., V], as the next forward is given them."""
        out = list[Tensor]()
        for some in logits.flatten(0, -2).split(SOFT_ROWS):
            p = some.to(self.dtype).softmax(-1, at_least_float32(self.dtype)).to(self.dtype)
            out.append(self.embed.mixed(p) * self.embed_scale)
        return torch.cat(out).view(*logits.shape[:-1], -1)

    def encode(
        self,
        tokens: Tensor,
        valid: Tensor | None = None,
        masked: Tensor | None = None,
        start: int | Tensor = 0,
        soft: Tensor | None = None,
        *,
        run: RunLayer = run_layer,
    ) -> Tensor:
        """As ``Transformer.encode``. soft [B, L, D]: what undecided columns are given (None: nothing yet)."""
        masked = torch.zeros_like(tokens, dtype=torch.bool) if masked is None else masked
        masked = masked if valid is None else masked & valid
        start, kind = torch.as_tensor(start, device=tokens.device).expand(len(tokens)), self.config.attention
        columns, denoised = columns_of(tokens), kind.denoised(masked, start)
        assert denoised is not None, "this attention has two passes"
        if valid is not None:  # as of any padding, see ``AttentionOrder.at``
            columns = columns.masked_fill(~valid, tokens.shape[1])
        order = kind.order(masked, start)
        assert order is not None
        visible = order.visible_to(order.at(columns), valid, self.config.window)
        soft = torch.zeros(*tokens.shape, self.config.width, dtype=self.dtype) if soft is None else soft
        conditioning = Conditioning(denoised, soft.to(tokens.device))
        return self(tokens, columns_of(tokens), NoCacheMemory(visible), conditioning=conditioning, run=run)[0]  # type: ignore[no-any-return]
