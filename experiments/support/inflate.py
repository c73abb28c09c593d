"""A small model inside a large one: the text of the small one, at the bytes and products of the large one.

Prompts, confidences, ends of text and drift are then those of a trained model, and the times are those of the large
shape. No weight is left out or zero where a full one would be read, since a GPU multiplies zeros faster. Of the small
network's

- **width**: every dim has k copies with a sign each, and the products that read them take 1, 2, ... parts of 2^n from
  each. The dims that remain (one width of the small model) hold a small constant, and the head reads from it a logit of
  about -1e3 for ids that the small model does not have. The norms' gains and eps make up for them.
- **heads and units of the MLP**: all are copied in the same way. A pair of rotated dims is where the larger head has
  the same frequency; of the pairs between, either the query or the key is zero, so that they add nothing to a product.
- **layers**: some are the small network's. The others are noise, in which each second head and unit is the twin of one
  before, and goes into the sum with the opposite sign. Their attention is nearly uniform, so it hardly drifts.

All factors are powers of two, and so exact, where the sizes divide so; the gains of norms are not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from dllm.models.bundle import Model
from dllm.models.config import ModelConfig
from dllm.models.network.experts import MLP
from dllm.models.network.fused import apart, fuse_products
from dllm.models.network.layer import Attention, Layer, RMSNorm
from dllm.models.network.transformer import Transformer
from experiments.bench.step import random_weights

ABSENT = -4096.0  # of the head, times the constant's share of a normed row: about -1e3
UNIFORM = 1 / 16  # of the noise in queries and keys of layers that are not the small network's


def inflated(small: Model, shape: ModelConfig, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Model:
    """``small`` with a network of the sizes of ``shape`` on a device. Raises ValueError where sizes do not divide."""
    spread = Spread(small.config, shape, device, seed)
    model = random_weights(spread.config, device, dtype, seed)
    spread.fill(model, {name: weight.detach().to(device) for name, weight in apart(small.transformer)})
    fuse_products(model)
    return replace(small, transformer=model, config=spread.config)


def shares(count: int) -> list[float]:
    """``count`` powers of two whose sum is 1."""
    whole = 1 << (count - 1).bit_length()
    return [2 / whole] * (whole - count) + [1 / whole] * (2 * count - whole)


@dataclass(frozen=True)
class Spread:
    """Where the numbers of a small network are in a large one."""

    small: ModelConfig
    shape: ModelConfig  # the large one's sizes
    device: torch.device
    seed: int  # of the signs

    def __post_init__(self) -> None:
        for name in ("width", "heads", "head_dim", "mlp_width"):
            own, large = getattr(self.small, name), getattr(self.shape, name)
            if large % own or (name == "width" and large == own):
                raise ValueError(f"{name}={large} must be a multiple of {own}, the small model's (width: at least 2).")
        if any(one.heads != one.kv_heads for one in (self.small, self.shape)):
            raise ValueError("Heads with shared keys are not spread: take models whose heads have keys of their own.")
        if self.shape.layers < self.small.layers or self.shape.vocab < self.small.vocab:
            raise ValueError("The large model must have as many layers and ids as the small one.")

    @property
    def copies(self) -> int:
        """Of each dim of the small width."""
        return self.shape.width // self.small.width - 1

    @property
    def kept(self) -> float:
        """The part of the large width that holds copies."""
        return self.copies / (self.copies + 1)

    @cached_property
    def constant(self) -> float:
        """What the remaining dims hold, a number that bfloat16 holds too: about half of the eps of the norms."""
        wanted = (self.kept * self.small.eps * (self.copies + 1) / 2) ** 0.5
        return float(torch.tensor(wanted).bfloat16())

    @property
    def config(self) -> ModelConfig:
        """The large sizes with the small model's ids and conventions."""
        sizes = {
            name: getattr(self.shape, name)
            for name in ("width", "layers", "heads", "kv_heads", "head_dim", "mlp_width", "vocab")
        }
        eps = self.kept * self.small.eps - self.constant**2 / (self.copies + 1)
        return replace(self.small, **sizes, rotary_dim=self.shape.head_dim, eps=eps)

    @cached_property
    def layers(self) -> dict[int, int]:
        """The small network's layers by their numbers in the large one, from the first to the last."""
        count, gaps = self.small.layers, max(1, self.small.layers - 1)
        return {round(one * (self.shape.layers - 1) / gaps): one for one in range(count)}

    @cached_property
    def signs(self) -> Tensor:
        """[k, 1, D] of each copy of a dim."""
        dice = torch.Generator().manual_seed(self.seed)
        drawn = torch.randint(0, 2, (self.copies, 1, self.small.width), generator=dice)
        return (2.0 * drawn - 1).to(self.device)

    @cached_property
    def rotated(self) -> Tensor:
        """[h] the dims of a large head that are those of a small one: pair j is where the frequency is the same."""
        half, step = self.small.head_dim // 2, self.shape.head_dim // self.small.head_dim
        pairs = torch.arange(half, device=self.device) * step
        return torch.cat([pairs, self.shape.head_dim // 2 + pairs])

    def entering(self, weight: Tensor, rows: Tensor) -> None:
        """Write the small matrix ``rows`` [n, D] to the first n of ``weight`` [., d], which reads the copies."""
        parts = torch.tensor(shares(self.copies), device=self.device)[:, None, None] * self.signs  # [k, 1, D]
        weight[: len(rows)] = torch.cat([*(rows * parts).unbind(), torch.zeros_like(rows)], 1).to(weight.dtype)

    def leaving(self, columns: Tensor) -> Tensor:
        """The matrix [d, n] that writes to the copies what the small one [D, n] writes to its width."""
        copied = self.signs.transpose(1, 2) * columns
        return torch.cat([*copied.unbind(), torch.zeros_like(columns)])

    @torch.no_grad()
    def fill(self, model: Transformer, small: dict[str, Tensor]) -> None:
        """Write the weights of the small network, by name, into a large one of noise."""
        layers = cast("list[Layer]", list(model.layers))
        for layer in layers:
            cancel(layer)
        for number, own in self.layers.items():
            self._layer(
                layers[number],
                {
                    name.removeprefix(f"layers.{own}."): one
                    for name, one in small.items()
                    if name.startswith(f"layers.{own}.")
                },
            )
        model.embed.weight[: self.small.vocab] = self.leaving(small["embed.weight"].T).T.to(model.dtype)
        model.embed.weight[:, -self.small.width :] = self.constant
        self._gain(model.norm, small["norm.weight"])
        self.entering(model.lm_head.weight, small.get("lm_head.weight", small["embed.weight"]))
        model.lm_head.weight[self.small.vocab :, -self.small.width :] = ABSENT

    def _gain(self, norm: RMSNorm, gain: Tensor) -> None:
        norm.weight[: -self.small.width] = (self.kept**0.5 * gain).repeat(self.copies).to(norm.weight.dtype)

    def _layer(self, layer: Layer, small: dict[str, Tensor]) -> None:
        for name in ("attn_norm", "mlp_norm"):
            self._gain(getattr(layer, name), small[f"{name}.weight"])
        self._attention(layer.attn, small)
        copies = self.shape.mlp_width // self.small.mlp_width
        mlp = cast("MLP", layer.mlp)
        for name in ("gate", "up"):
            self.entering(getattr(mlp, name).weight, small[f"mlp.{name}.weight"].repeat(copies, 1))
        parts = torch.tensor(shares(copies), device=self.device).repeat_interleave(self.small.mlp_width)
        mlp.down.weight.copy_(self.leaving(small["mlp.down.weight"].repeat(1, copies) * parts))

    def _attention(self, attn: Attention, small: dict[str, Tensor]) -> None:
        heads, width, wide = self.small.heads, self.small.head_dim, self.shape.head_dim
        copies, step = self.shape.heads // heads, wide // width
        for name, at, factor in (("q", 1, step**0.5), ("k", 2, 1.0)):
            rows = getattr(attn, name).weight.view(self.shape.heads, wide, -1)
            pair = torch.arange(wide, device=self.device) % (wide // 2)
            rows[:, pair % 2 == at % 2] = 0  # the one of query and key that is zero between
            own = factor * small[f"attn.{name}.weight"].unflatten(0, (heads, width)).repeat_interleave(copies, 0)
            for head, matrix in zip(rows, own, strict=True):
                into = head.new_empty(width, head.shape[1])
                self.entering(into, matrix)
                head[self.rotated] = into
        values = small["attn.v.weight"].unflatten(0, (heads, width)).repeat_interleave(copies, 0)
        self.entering(attn.v.weight, values.repeat(1, step, 1).flatten(0, 1))
        parts = torch.outer(torch.tensor(shares(copies)), torch.tensor(shares(step))).to(self.device)
        columns = small["attn.o.weight"].view(-1, heads, 1, 1, width) * parts[:, :, None]
        attn.o.weight.copy_(self.leaving(columns.flatten(1)))


@torch.no_grad()
def cancel(layer: Layer) -> None:
    """Make the second half of heads and units twins of the first, with the opposite sign in the sum."""
    attn, mlp = layer.attn, cast("MLP", layer.mlp)
    for reading in (attn.q, attn.k, attn.v, mlp.gate, mlp.up):
        half = len(reading.weight) // 2
        reading.weight[half:] = reading.weight[:half]
    for writing in (attn.o, mlp.down):
        half = writing.weight.shape[1] // 2
        writing.weight[:, half:] = -writing.weight[:, :half]
    attn.q.weight.mul_(UNIFORM)
    attn.k.weight.mul_(UNIFORM)
