"""A decode of one row as somebody writes it by hand for one model: plain torch, one function a cache, nothing general.

It is the floor of ``experiments.bench.turns``: the same weights, the same tokens, in eager operations of PyTorch. LLaDA
alone (RMSNorm, rotary embeddings, SwiGLU, no biases), one row, greedy, one token a turn, no end of text. Nothing is
recorded and nothing refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dllm.models.network.transformer import Transformer


@dataclass(frozen=True)
class Weights:
    """What the turns read."""

    embed: Tensor  # [V, D]
    layers: Sequence[tuple[Tensor, ...]]  # of each: gain [D], qkv, o, gain [D], gate and up, down
    gain: Tensor  # [D] of the last norm
    head: Tensor  # [V, D]
    cos: Tensor  # [L, 1, h] by column
    sin: Tensor  # [L, 1, h], its first half negated
    heads: int  # H
    eps: float  # of norms
    mask: int  # the mask's id

    @staticmethod
    def of(model: Transformer, length: int) -> Weights:
        """Those of a LLaDA whose products are fused, and not packed."""
        at = dict(model.named_parameters())
        names = ("attn_norm", "attn.qkv", "attn.o", "mlp_norm", "mlp.gate_up", "mlp.down")
        config, positions = model.config, torch.arange(length)[None]
        layers = [tuple(at[f"layers.{i}.{name}.weight"] for name in names) for i in range(config.layers)]
        angles = model.rotary.at(positions, length, torch.float32)
        assert config.mask_id is not None, "a masked diffusion model has a mask"
        return Weights(
            at["embed.weight"],
            layers,
            at["norm.weight"],
            at["lm_head.weight"],
            angles.cos[0],
            angles.sin[0],
            config.heads,
            config.eps,
            config.mask_id,
        )

    def buffers(self, length: int) -> Tensor:
        """Keys and values of all layers: [layers, 2, H, L, h]."""
        return self.embed.new_zeros(len(self.layers), 2, self.heads, length, self.cos.shape[-1])

    def norm(self, x: Tensor, gain: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], gain, self.eps)

    def projected(self, x: Tensor, weights: tuple[Tensor, ...], cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        """Rotated queries, rotated keys, values: [n, H, h] of rows x [n, D]."""
        rows = F.linear(self.norm(x, weights[0]), weights[1]).view(len(x), 3, self.heads, -1)
        turned, value = rows[:, :2], rows[:, 2]
        half = turned.shape[-1] // 2
        query, key = (turned * cos[:, None] + turned.roll(half, -1) * sin[:, None]).unbind(1)
        return query, key, value

    def mixed(self, x: Tensor, found: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
        """What leaves the layer, from its rows x [n, D] and what they attended to [H, n, h]."""
        x = x + F.linear(found.transpose(0, 1).flatten(1), weights[2])
        gate, up = F.linear(self.norm(x, weights[3]), weights[4]).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, weights[5])

    def layer(self, x: Tensor, weights: tuple[Tensor, ...], at: Tensor | slice, kept: Tensor) -> Tensor:
        """Rows x [n, D] of the columns ``at`` through a layer whose keys and values are ``kept`` [2, H, L, h]."""
        query, key, value = self.projected(x, weights, self.cos[at], self.sin[at])
        kept[0, :, at], kept[1, :, at] = key.transpose(0, 1), value.transpose(0, 1)
        return self.mixed(x, F.scaled_dot_product_attention(query.transpose(0, 1)[None], *kept[:, None])[0], weights)

    def forward(self, tokens: Tensor, at: Tensor | slice, kept: Tensor) -> Tensor:
        """Hidden rows [n, D] of the columns ``at``."""
        x = self.embed[tokens[at]]
        for weights, one in zip(self.layers, kept, strict=True):
            x = self.layer(x, weights, at, one)
        return x

    def commit(self, hidden: Tensor, columns: Tensor, tokens: Tensor) -> None:
        """Write the surest token of the masked ``columns`` [r], from the hidden rows [r, D] that predict them. Of 1 - p
        the largest term is left out, since many p are 1 in float32."""
        logits = F.linear(self.norm(hidden, self.gain), self.head)
        logits[:, self.mask] = -torch.inf
        best = logits.argmax(-1, keepdim=True)
        others = (logits - logits.gather(-1, best)).exp_().scatter_(-1, best, 0.0).sum(-1)
        surest = others.argmin()
        tokens[columns[surest]] = best[surest, 0]


def none(w: Weights, tokens: Tensor, start: int, block: int) -> Iterator[None]:
    """Every turn computes the canvas."""
    kept, everything = w.buffers(len(tokens)), slice(None)
    for begin in range(start, len(tokens), block):
        for _ in range(min(block, len(tokens) - begin)):
            open_ = begin + (tokens[begin : begin + block] == w.mask).nonzero()[:, 0]
            w.commit(w.forward(tokens, everything, kept)[open_], open_, tokens)
            yield


def dual(w: Weights, tokens: Tensor, start: int, block: int) -> Iterator[None]:
    """A block's first turn computes the canvas, the others the block."""
    kept = w.buffers(len(tokens))
    for begin in range(start, len(tokens), block):
        end = min(begin + block, len(tokens))
        for turn in range(end - begin):
            at = slice(begin, end) if turn else slice(0, len(tokens))
            open_ = begin + (tokens[begin:end] == w.mask).nonzero()[:, 0]
            w.commit(w.forward(tokens, at, kept)[open_ - at.start], open_, tokens)
            yield


def window(w: Weights, tokens: Tensor, start: int, block: int, active: int = 16) -> Iterator[None]:
    """A phase of ``block`` turns begins with one that computes the canvas. The others compute the first ``active``
    masks and what the phase has committed. No answer is longer than the wide window: all turns attend to the canvas."""
    kept = w.buffers(len(tokens))
    for turn in range(len(tokens) - start):
        open_ = (tokens == w.mask).nonzero()[:active, 0]
        if turn % block == 0:
            recent = open_[:0]
            hidden = w.forward(tokens, slice(None), kept)[open_]
        else:
            hidden = w.forward(tokens, torch.cat([open_, recent]), kept)[: len(open_)]
        w.commit(hidden, open_, tokens)
        recent = torch.cat([recent, open_[tokens[open_] != w.mask]])
        yield


@dataclass
class Drift:
    """What Elastic-Cache keeps beside keys and values, of each layer."""

    inputs: Tensor  # [layers, L, D] what entered it
    queried: Tensor  # [layers, H, L, h] its queries
    watched: Tensor  # [r] the decided columns that the window attended to most in some layer
    whole: int = 0  # the first layer that computes the canvas, in the turn under way


def elastic(w: Weights, tokens: Tensor, start: int, block: int, active: int = 16, gamma: float = 0.9) -> Iterator[None]:
    """A turn computes the first ``active`` masks, the last commit, and the decided column that each layer's window
    attended to most. Layers after one in which these attend otherwise than before compute the canvas."""
    length, kept = len(tokens), w.buffers(len(tokens))
    nothing = torch.empty(0, dtype=torch.long)
    drift, last = (
        Drift(w.embed.new_zeros(len(w.layers), length, w.embed.shape[1]), kept.new_zeros(kept[:, 0].shape), nothing),
        nothing,
    )
    for turn in range(length - start):
        masked = tokens == w.mask
        open_ = masked.nonzero()[:active, 0]
        at = torch.cat([open_, drift.watched, last[~torch.isin(last, drift.watched)]])
        drift.whole = len(w.layers) if turn else 0
        hidden, received = drifting(w, tokens, at, len(open_), open_, kept, drift, gamma)
        w.commit(hidden, open_, tokens)
        last = open_[tokens[open_] != w.mask]
        drift.watched = received.masked_fill(masked, 0.0).argmax(-1).unique()
        yield


def drifting(
    w: Weights, tokens: Tensor, at: Tensor, count: int, open_: Tensor, kept: Tensor, drift: Drift, gamma: float
) -> tuple[Tensor, Tensor]:
    """Hidden rows of the ``open_`` columns, the first ``count`` of ``at``, and what each column received from them:
    [layers, L]."""
    received, probes = list[Tensor](), slice(count, count + len(drift.watched))
    x = w.embed[tokens] if drift.whole == 0 else w.embed[tokens[at]]
    scale = w.cos.shape[-1] ** -0.5
    for number, (weights, one) in enumerate(zip(w.layers, kept, strict=True)):
        if number < drift.whole:
            drift.inputs[number, at] = x
            old = (drift.queried[number, :, drift.watched] * scale @ one[0].transpose(1, 2)).softmax(-1)
            query, key, value = (part.transpose(0, 1) for part in w.projected(x, weights, w.cos[at], w.sin[at]))
            one[0, :, at], one[1, :, at], drift.queried[number, :, at] = key, value, query
            seen = (query * scale @ one[0].transpose(1, 2)).softmax(-1)
            x = w.mixed(x, seen @ one[1], weights)
            received.append(seen[:, :count].sum((0, 1)))
            new = seen[:, probes]
            alike = (old * new).sum(0) / ((old * old).sum(0) * (new * new).sum(0)).sqrt()
            if float(alike.mean()) < gamma:
                drift.whole = number + 1
                if drift.whole < len(w.layers):
                    drift.inputs[number + 1, at] = x
                    x = drift.inputs[number + 1]
        else:
            drift.inputs[number] = x
            query, key, value = (part.transpose(0, 1) for part in w.projected(x, weights, w.cos, w.sin))
            one[0], one[1], drift.queried[number] = key, value, query
            seen = (query[:, open_] * scale @ one[0].transpose(1, 2)).softmax(-1)
            x = w.mixed(x, F.scaled_dot_product_attention(query[None], *one[:, None])[0], weights)
            received.append(seen.sum((0, 1)))
    return x[open_] if len(x) > len(at) else x[:count], torch.stack(received)


Turns = Callable[..., Iterator[None]]
BY_HAND: dict[str, Turns] = {"none": none, "dual": dual, "elastic": elastic, "window": window}


def decoded(
    model: Transformer, ids: list[int], answer: int, block: int, cache: str, **options: Any
) -> tuple[Tensor, Iterator[None]]:
    """The tokens [L] of a prompt and its answer, and the turns that fill them in, of a model that ``Weights.of`` takes.
    options: of the cache."""
    w = Weights.of(model, len(ids) + answer)
    tokens = torch.tensor([*ids, *([w.mask] * answer)])
    return tokens, BY_HAND[cache](w, tokens, len(ids), block, **options)
