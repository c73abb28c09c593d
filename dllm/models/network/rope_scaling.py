"""The kinds of scaled rotary embeddings, as transformers computes them (modeling_rope_utils.py of 4.57 and 5.23).

Letters: d features of a head rotate; w_j = theta^(-2j/d) are their d / 2 plain frequencies; L positions were trained.
Frequencies are made in float64 and cast once. The library makes them in float32, which is up to 7e-7 off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from dllm.models.keys import MAX_SIZE


def plain_frequencies(theta: float, dim: int, device: torch.device | str = "cpu") -> Tensor:
    """w_j [d / 2], float64."""
    return theta ** -(torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim)


@dataclass(frozen=True, slots=True)
class Scaling:
    """Base of all kinds. ``frequencies`` is what a kind is; sines and cosines are multiplied by ``attention``."""

    by_length: ClassVar[bool] = False  # frequencies depend on how long a row is, prompt and answer together

    factor: float  # by which positions are stretched; papers: s
    trained: int  # positions of pretraining; papers: L
    attention: float = 1.0  # of sines and cosines; papers: attention factor

    def frequencies(self, theta: float, dim: int, totals: Tensor) -> Tensor:
        """The frequencies [b, d / 2], float64, of rows of ``totals`` [b] columns; [1, d / 2] where the length of a row
        does not matter."""
        raise NotImplementedError

    @property
    def reach(self) -> int:
        """Positions that the embedding is stretched to."""
        return min(int(self.trained * self.factor), MAX_SIZE)


@dataclass(frozen=True, slots=True)
class Linear(Scaling):
    """Position interpolation (arXiv 2306.15595): w_j / s."""

    def frequencies(self, theta: float, dim: int, totals: Tensor) -> Tensor:
        return (plain_frequencies(theta, dim, totals.device) / self.factor)[None]


@dataclass(frozen=True, slots=True)
class Dynamic(Scaling):
    """NTK by parts of the length: plain ones of theta (s T / L - (s - 1))^(d / (d - 2)) for a row of T > L columns.

    transformers takes T from the largest position of a batch and remembers it. Here T is the row's own, from its first
    forward to its last: its kept keys are rotated already."""

    by_length: ClassVar[bool] = True

    def frequencies(self, theta: float, dim: int, totals: Tensor) -> Tensor:
        length = totals.double().clamp(min=self.trained)
        base = theta * (self.factor * length / self.trained - (self.factor - 1)) ** (dim / (dim - 2))
        exponent = torch.arange(0, dim, 2, dtype=torch.float64, device=totals.device) / dim
        return base[:, None] ** -exponent


@dataclass(frozen=True, slots=True)
class Llama3(Scaling):
    """Llama 3.1's: frequencies that turn less than ``low`` times over L are divided by s, those that turn more than
    ``high`` times stay, and between the two a ramp."""

    low: float = 1.0  # low_freq_factor
    high: float = 4.0  # high_freq_factor

    def frequencies(self, theta: float, dim: int, totals: Tensor) -> Tensor:
        plain = plain_frequencies(theta, dim, totals.device)
        turns = self.trained * plain / (2 * math.pi)
        share = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return ((1 - share) * plain / self.factor + share * plain)[None]


@dataclass(frozen=True, slots=True)
class Yarn(Scaling):
    """YaRN (arXiv 2309.00071): a ramp over features, and the scale of queries beyond L (Llama 4, Ministral 3)."""

    beta_fast: float = 32.0  # rotations over L from which a frequency stays as it is
    beta_slow: float = 1.0  # rotations over L up to which it is divided by s
    truncate: bool = True  # the ramp begins and ends at whole features
    query_beta: float = 0.0  # 0.1 makes queries 1.07 times as long from L on; 0: they stay

    def frequencies(self, theta: float, dim: int, totals: Tensor) -> Tensor:
        plain = plain_frequencies(theta, dim, totals.device)
        low, high = (
            dim * math.log(self.trained / (2 * math.pi * beta)) / (2 * math.log(theta))
            for beta in (self.beta_fast, self.beta_slow)
        )  # the feature that turns beta times
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        width = high - low if high != low else 0.001  # as transformers has it, so as not to divide by zero
        features = torch.arange(dim // 2, dtype=torch.float64, device=totals.device)
        slow = ((features - low) / width).clamp(0, 1)
        return (plain / self.factor * slow + plain * (1 - slow))[None]

    def query_scale(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """What the queries [B, n, 1, 1] at ``positions`` [B, n] are multiplied by. The logarithm is taken in float32
        whatever the dtype, as in the published code, which divides integers: float64 would be off by 1e-7."""
        far = (positions // self.trained).float()
        return (1 + self.query_beta * far.log1p()).to(dtype)[:, :, None, None]


@dataclass(frozen=True, slots=True)
class LongRope(Scaling):
    """LongRoPE (arXiv 2402.13753): w_j divided by one of two lists, by whether the row is longer than L."""

    by_length: ClassVar[bool] = True

    short: tuple[float, ...] = ()  # [d / 2] of rows of up to L columns; short_factor
    long: tuple[float, ...] = ()  # [d / 2] of longer ones; long_factor

    def frequencies(self, theta: float, dim: int, totals: Tensor) -> Tensor:
        short, long = _on_device((self.short, self.long), totals.device)
        return plain_frequencies(theta, dim, totals.device) / torch.where(totals[:, None] > self.trained, long, short)


@cache  # never forgotten: recordings read them where they are
def _on_device(lists: tuple[tuple[float, ...], ...], device: torch.device) -> Tensor:
    """Lists of equal length as float64, copied to a device once: a CUDA graph cannot record the copy."""
    with torch.inference_mode(False):
        return torch.tensor(lists, dtype=torch.float64, device=device)


def yarn_attention(factor: float, mscale: float | None, mscale_all_dim: float | None) -> float:
    """YaRN's factor of sines and cosines where a file does not give it: 0.1 ln s + 1, or DeepSeek's ratio of two."""

    def grown(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    return grown(mscale) / grown(mscale_all_dim) if mscale and mscale_all_dim else grown(1.0)


def longrope_attention(factor: float, trained: int) -> float:
    """LongRoPE's, where a file does not give it: sqrt(1 + ln s / ln L)."""
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(trained))
