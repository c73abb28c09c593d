"""One transformer for all families of masked diffusion models.

Pre-norm, rotary positions (rotate-half), SwiGLU or routed experts. All cache policies share one forward: it computes
the rows it gets, hands their keys and values to a *memory*, and attends to what the memory returns. ``tests/parity.py``
compares it with the published code.

Letters: B rows, L canvas columns, n queries, S keys, D width, H heads, h head size, V logit columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dllm.common.ranks import Ranks
from dllm.common.rowwise import select_or_all
from dllm.kernels.add_norm import KeepRows, add_norm
from dllm.kernels.invariant import tile
from dllm.kernels.narrow_embedding import NarrowEmbedding
from dllm.kernels.packed import PackedLinear
from dllm.kernels.rope_scatter import HeadNorms
from dllm.kernels.sliced_head import HeadSlice
from dllm.models.config import ModelConfig
from dllm.models.network.attention import Visible
from dllm.models.network.conditioning import Conditioning
from dllm.models.network.experts import MLP, MoE, StackedExperts, at_least_float32
from dllm.models.network.memory import Attend, Memory, NoCacheMemory, Projected, summed
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
        own = self.scaling.frequencies(self.theta, self.dim, totals.to(places.device).flatten()).to(dtype)
        return places * own.view(*totals.shape, -1)


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
            q, k, v = (one(x).unflatten(-1, (-1, self.head_dim)) for one in (self.q, self.k, self.v))
        else:
            rows = self.qkv(x).unflatten(-1, (-1, self.head_dim))
            both, v = rows.split_with_sizes([heads[0] + heads[1], heads[2]], -2)
            q, k = both.split_with_sizes(heads[:2], -2)
        if angles.query_scale is not None:
            q, both = q * angles.query_scale.to(q.dtype), None  # before the rotation is as after it
        norms = None
        if self.q_norm is not None and self.k_norm is not None:
            if self.q_norm.weight.is_meta:  # accelerate copies offloaded weights when their module is called
                q, k, both = self.q_norm(q)[1], self.k_norm(k)[1], None
            else:
                norms = HeadNorms(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps)
        return Projected(
            q,
            k,
            v,
            angles[:2],
            self.rope_float32,
            self.triton,
            self.varlen,
            self.tiled,
            norms,
            windowed=self.windowed,
            together=both,
        )

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
        found = attend(self.attn.project(normal, angles), columns)
        out = self.attn.o(found)
        if drafts and self.attn.draft is not None:
            out = out + self.attn.draft(found)
        x, normal = self.mlp_norm(x, self.ranks.sum(out))
        return x, self.ranks.sum(self.mlp(normal))

    # The same in steps, as ``AnyLayer`` describes them.

    def entered(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.attn_norm(x, residual)

    def projected(self, normal: Tensor, angles: Angles) -> Projected:
        return self.attn.project(normal, angles)

    def values(self, normal: Tensor) -> Tensor:
        return self.attn.values(normal)

    def mixed(self, found: Tensor) -> Tensor:
        return self.ranks.sum(self.attn.o(found))

    def fed(self, hidden: Tensor) -> Tensor:
        return self.ranks.sum(self.mlp(self.mlp_norm(hidden, None)[1]))


# Runs a layer; the number is the layer's place in the memory.
RunLayer = Callable[[Layer, Tensor, "Tensor | None", Angles, "Tensor | None", Memory, int], tuple[Tensor, Tensor]]


def run_layer(
    layer: Layer, x: Tensor, residual: Tensor | None, angles: Angles, columns: Tensor | None, memory: Memory, index: int
) -> tuple[Tensor, Tensor]:
    return memory.run(index, layer, x, residual, angles, columns)


@dataclass(frozen=True)
class Places:
    """Devices on which the parts of a model run; the embedding's weights lie where it runs.

    offloaded: some weights lie in the CPU's memory, and accelerate copies them to the GPU in every forward.
    """

    layers: Sequence[torch.device]  # of each layer
    norm: torch.device  # of the last norm
    head: torch.device  # of the output head
    # some weights lie in the CPU's memory, and accelerate copies them to the GPU in every forward
    offloaded: bool = False


def at(tensor: Any, device: torch.device) -> Any:
    """The tensor on a device; None stays."""
    return None if tensor is None else tensor.to(device)


class Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        """Do nothing on the meta device, where initialising would only import torch's compiler and Triton (1.4 s)."""
        if not self.weight.is_meta:
            super().reset_parameters()

    @property
    def dtype(self) -> torch.dtype:
        return self.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.weight.device

    def mixed(self, shares: Tensor) -> Tensor:
        """What ``shares`` [R, V] of all rows add up to [R, D]."""
        return shares @ self.weight


class Transformer(nn.Module):
    """The network. ``forward`` gives hidden rows; ``head`` turns the rows that parts need into logits.

    triton: our kernels run instead of the plain operations that define them. places: where the parts run, if on several
    devices; the rows go from one device to the next, and come back to the embedding's.
    """

    triton = False
    streams = True  # several calls may run as one stream, layer by layer
    places: Places | None = None
    lender: Any = None  # whose weights these are, if a model object's (``dllm.models.shared.Lender``)

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = Embedding(config.vocab, config.width)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.layers))
        self.norm = RMSNorm(config.width, config.eps)
        begin, end = config.ranks.share(config.vocab)
        self.lm_head = nn.Linear(config.width, end - begin, bias=False)
        if config.tied:
            self.tie()
        self.rotary = Rotary(config.rotary_dim, config.theta, config.scaling)

    def tie(self) -> None:
        """Give the head the embedding's matrix, as that is stored."""
        embed: nn.Module = self.embed
        if isinstance(embed, NarrowEmbedding):
            self.register_module("lm_head", embed.head())
        else:
            begin, end = self.ranks.share(self.config.vocab)
            whole = self.embed.weight
            self.lm_head.weight = whole if self.ranks.size == 1 else nn.Parameter(whole.detach()[begin:end], False)

    def use_kernels(self, triton: bool, varlen: bool = False) -> None:
        """Switch our Triton kernels on or off, in every module that has them. varlen: attention over rows of various
        lengths, too (``has_varlen``)."""
        for part in self.modules():
            if isinstance(part, Transformer | Attention | RMSNorm | MLP | StackedExperts):
                part.triton = triton
            if isinstance(part, Attention):
                part.varlen = varlen

    def become_invariant(self) -> None:
        """From now on no row's numbers depend on what else is computed (``dllm.kernels.invariant``)."""
        tile(self, (nn.Linear, PackedLinear, MLP))
        for part in self.modules():
            if isinstance(part, Attention):
                part.tiled = True

    @property
    def rotations(self) -> list[Rotary]:
        """The rotary embeddings of all kinds of layers."""
        return [self.rotary]

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.dtype

    @property
    def device(self) -> torch.device:
        return self.embed.device

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
        """Hidden rows after the final norm, and their columns.

        tokens [B, n]: ids at the queries. positions [B, L]: rotary position of every column. columns [B, n]: columns of
        the queries (L: padding; None: all L in order). run: what runs a layer. totals [B, 1]: columns of each row in
        all, prompt and answer, where the rotary embedding depends on them (``Rotary.by_length``). conditioning: queries
        that show a mixture (None: no query does).
        """
        x = self.embed(self._known(tokens))
        x = x if conditioning is None else conditioning.over(x)
        x = x * self.config.embed_scale if self.config.embed_scale != 1.0 else x
        return memory.through(LayerStack(self, positions, run, totals), x, columns)

    def _known(self, tokens: Tensor) -> Tensor:
        """The ids of rows of the embedding. What marks the undecided columns of a model of next tokens is none of them,
        and no decided row sees these columns, so any row will do."""
        return tokens.clamp(max=self.config.vocab - 1) if self.config.attention.next_token else tokens

    def angles(self, positions: Tensor, columns: Tensor | None, totals: Tensor | None = None) -> Angles:
        length = positions.shape[1]
        if columns is not None:
            positions = positions.gather(1, columns.clamp(max=positions.shape[1] - 1))
        return self.rotary.at(positions, length, at_least_float32(self.dtype), totals)

    @property
    def ranks(self) -> Ranks:
        """Those that hold the network together; each holds the head's rows of ``ranks.share(V)``."""
        return self.config.ranks

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden rows [..., D]; of several ranks gathered."""
        return self.ranks.whole(self.own_head(hidden), self.config.vocab)

    def own_head(self, hidden: Tensor) -> Tensor:
        """The same at the ids that this rank holds."""
        there = hidden if self.places is None else hidden.to(self.places.head)
        # As a matrix: of a part of one row, hidden[:, :32] say, PyTorch 2.13 makes a bfloat16 product 43 times as slow.
        logits = self.lm_head(there.reshape(-1, there.shape[-1])).to(hidden.device)
        logits = logits.view(*there.shape[:-1], logits.shape[-1])
        return logits * self.config.logit_scale if self.config.logit_scale != 1.0 else logits

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] in float32 or wider: in bfloat16 most confidences would tie at 1."""
        logits = self.head(hidden)
        return logits.to(at_least_float32(logits.dtype))

    def own_logits(self, hidden: Tensor) -> Tensor:
        """The same at the ids that this rank holds."""
        logits = self.own_head(hidden)
        return logits.to(at_least_float32(logits.dtype))

    @property
    def head_slice(self) -> HeadSlice:
        """The ids of the head that this rank holds."""
        config = self.config
        return HeadSlice(self.ranks, config.vocab, self.own_logits, self.own_head_weight, config.logit_scale)

    def soft(self, logits: Tensor) -> Tensor:
        """The embeddings [..., D] that a network that carries something expects under tempered ``logits`` [..., V]."""
        raise NotImplementedError("this network carries nothing")

    @property
    def head_weight(self) -> Tensor | None:
        """The head's matrix [V, D]; None if it is quantised, offloaded, on another device or a slice of the whole."""
        return self.own_head_weight if self.ranks.size == 1 else None

    @property
    def own_head_weight(self) -> Tensor | None:
        """The same of the ids that this rank holds."""
        weight, elsewhere = self.lm_head.weight, self.places is not None and self.places.offloaded
        return weight if type(weight) is nn.Parameter and not elsewhere and weight.device == self.device else None

    def encode(
        self,
        tokens: Tensor,
        valid: Tensor | None = None,
        masked: Tensor | None = None,
        start: int | Tensor = 0,
        *,
        run: RunLayer = run_layer,
    ) -> Tensor:
        """Hidden rows [B, L, D] of whole sequences, for training and parity. valid [B, L]: tokens that are not padding.
        masked [B, L]: which of them are masks (None: nothing), and start [B]: where the answer begins; both matter
        where attention depends on them (``dllm.models.network.visibility``). run: what runs a layer.

        Positions count columns, padding included. Rotary attention is relative, so a row's results do not depend on its
        padding (to 3e-6 in float32).
        """
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        masked = torch.zeros_like(tokens, dtype=torch.bool) if masked is None else masked
        masked = masked if valid is None else masked & valid
        start = torch.as_tensor(start, device=tokens.device).expand(len(tokens))
        order = self.config.attention.order(masked, start)
        visible = Visible(valid) if order is None else order.visible_to(order, valid, None)
        if not self.config.rotates_by_length:
            return self(tokens, positions, NoCacheMemory(visible), run=run)[0]
        totals = positions[:, -1:] + 1 if valid is None else valid.sum(1, keepdim=True)
        return self(tokens, positions, NoCacheMemory(visible), run=run, totals=totals)[0]


@dataclass(frozen=True)
class LayerStack:
    """The layers of a network and what follows them, in one call: what ``Memory.through`` runs."""

    model: Transformer  # whose layers they are
    positions: Tensor  # [B, L] rotary position of every column
    run: RunLayer  # what runs a layer
    totals: Tensor | None = None  # [B, 1] columns of each row in all; None: they do not matter

    def of(self, rows: Tensor | None, reach: int) -> LayerStack:
        """The same for some rows [b] of the call (None: all), and its first columns."""
        totals = None if self.totals is None else select_or_all(self.totals, rows)
        return replace(self, positions=select_or_all(self.positions, rows)[:, :reach], totals=totals)

    def __call__(
        self, x: Tensor, columns: Tensor | None, memory: Memory, first: int = 0, last: int | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """What leaves layer ``last`` - 1 (None: the last one), as a sum x + residual, and its columns, from rows x
        [B, n, D] that enter layer ``first``."""
        model, positions, residual, places = self.model, self.positions, None, self.model.places
        if places is not None:
            positions, columns = (at(one, x.device) for one in (positions, columns))
        angles, placed = model.angles(positions, columns, self.totals), columns
        for index, layer in islice(enumerate(cast("Iterable[Layer]", model.layers)), first, last):
            if places is not None and x.device != places.layers[index]:
                here, x, residual = places.layers[index], summed(x, residual), None
                x, positions, columns = (at(one, here) for one in (x, positions, columns))
            if memory.widens:
                x, residual = summed(x, residual), None
                x, columns = memory.enter(index, x, columns)
            if columns is not placed or angles[0].device != x.device:  # the memory widened the forward, or it moved
                angles, placed = model.angles(positions, columns, self.totals), columns
            x, residual = self.run(layer, x, residual, angles, columns, memory, index)
        return x, residual, columns

    def left(self, x: Tensor, residual: Tensor | None, columns: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Hidden rows after the final norm, and their columns, of rows x + residual that leave the last layer."""
        model, home = self.model, self.model.device
        if model.places is None:
            return model.norm(x, residual)[1], columns
        x = at(summed(x, residual), model.places.norm)
        return at(model.norm(x)[1], home), at(columns, home)
