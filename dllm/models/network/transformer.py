"""One transformer for all families of masked diffusion models.

Pre-norm, rotary positions (rotate-half), SwiGLU or routed experts. All cache policies share one forward: it computes
the rows it gets, hands their keys and values to a *memory*, and attends to what the memory returns. ``tests/parity.py``
compares it with the published code.

Letters: B rows, L canvas columns, n queries, S keys, D width, H heads, h head size, V logit columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor, nn

from dllm.common.ranks import Ranks
from dllm.common.rowwise import select_or_all
from dllm.kernels.invariant import tile
from dllm.kernels.narrow_embedding import NarrowEmbedding
from dllm.kernels.packed import PackedLinear
from dllm.kernels.sliced_head import HeadSlice
from dllm.models.config import ModelConfig
from dllm.models.network.attention import Visible
from dllm.models.network.conditioning import Conditioning
from dllm.models.network.experts import MLP, StackedExperts, at_least_float32
from dllm.models.network.layer import Attention, Layer, RMSNorm, Rotary, RunLayer, run_layer
from dllm.models.network.memory import Memory, NoCacheMemory, summed
from dllm.models.network.rope import Angles


@dataclass(frozen=True)
class Places:
    """Devices on which the parts of a model run; the embedding's weights lie where it runs."""

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
        x = self.embed(self._embedded_ids(tokens))
        x = x if conditioning is None else conditioning.over(x)
        x = x * self.config.embed_scale if self.config.embed_scale != 1.0 else x
        return memory.through(LayerStack(self, positions, run, totals), x, columns)

    def _embedded_ids(self, tokens: Tensor) -> Tensor:
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
        return self.ranks.whole(self.local_head(hidden), self.config.vocab)

    def local_head(self, hidden: Tensor) -> Tensor:
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

    def local_logits(self, hidden: Tensor) -> Tensor:
        """The same at the ids that this rank holds."""
        logits = self.local_head(hidden)
        return logits.to(at_least_float32(logits.dtype))

    @property
    def head_slice(self) -> HeadSlice:
        """The ids of the head that this rank holds."""
        config = self.config
        return HeadSlice(self.ranks, config.vocab, self.local_logits, self.local_head_weight, config.logit_scale)

    def soft(self, logits: Tensor) -> Tensor:
        """The embeddings [..., D] that a network that carries something expects under tempered ``logits`` [..., V]."""
        raise NotImplementedError("this network carries nothing")

    @property
    def head_weight(self) -> Tensor | None:
        """The head's matrix [V, D]; None if it is quantised, offloaded, on another device or a slice of the whole."""
        return self.local_head_weight if self.ranks.size == 1 else None

    @property
    def local_head_weight(self) -> Tensor | None:
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
    """The layers of a network and what follows them, in one call: what ``Memory.through`` runs, as ``AnyStack``
    describes it."""

    model: Transformer  # whose layers they are
    positions: Tensor  # [B, L] rotary position of every column
    run: RunLayer  # what runs a layer
    totals: Tensor | None = None  # [B, 1] columns of each row in all; None: they do not matter

    def of(self, rows: Tensor | None, reach: int) -> LayerStack:
        totals = None if self.totals is None else select_or_all(self.totals, rows)
        return replace(self, positions=select_or_all(self.positions, rows)[:, :reach], totals=totals)

    def __call__(
        self, x: Tensor, columns: Tensor | None, memory: Memory, first: int = 0, last: int | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        model, positions, residual, places = self.model, self.positions, None, self.model.places
        if places is not None:
            positions, columns = (at(tensor, x.device) for tensor in (positions, columns))
        angles, placed = model.angles(positions, columns, self.totals), columns
        for index, layer in islice(enumerate(cast("Iterable[Layer]", model.layers)), first, last):
            if places is not None and x.device != places.layers[index]:
                here, x, residual = places.layers[index], summed(x, residual), None
                x, positions, columns = (at(tensor, here) for tensor in (x, positions, columns))
            if memory.widens:
                x, residual = summed(x, residual), None
                x, columns = memory.enter(index, x, columns)
            if columns is not placed or angles[0].device != x.device:  # the memory widened the forward, or it moved
                angles, placed = model.angles(positions, columns, self.totals), columns
            x, residual = self.run(layer, x, residual, angles, columns, memory, index)
        return x, residual, columns

    def final_rows(self, x: Tensor, residual: Tensor | None, columns: Tensor | None) -> tuple[Tensor, Tensor | None]:
        model, home = self.model, self.model.device
        if model.places is None:
            return model.norm(x, residual)[1], columns
        x = at(summed(x, residual), model.places.norm)
        return at(model.norm(x)[1], home), at(columns, home)
