"""How long a forward takes on this CPU: products of the model's own shape are timed for a second or two."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from dllm.kernels.narrow_linear import NarrowLinear
from dllm.kernels.packed import PackedLinear, can_pack
from dllm.models.config import ModelConfig
from dllm.models.quantize import BITS

ESTIMATED_ROWS = (1, 32, 256)
TIMED_RUNS = 3  # the fastest counts: others on the machine only add
MOST_OUTPUTS = 8192  # of the product that is timed


@torch.inference_mode()
def forward_seconds(config: ModelConfig, numbers: int, kind: str) -> list[float]:
    """Seconds of wall time of the products of a forward over each number of ``ESTIMATED_ROWS``. numbers: how many
    weights a row is multiplied with. kind: bfloat16, int8 or int4."""
    linear = nn.Linear(config.width, min(MOST_OUTPUTS, 2 * config.mlp_width), bias=False, dtype=torch.bfloat16)
    product: nn.Module = linear
    if kind in BITS:
        product = NarrowLinear.of(linear, BITS[kind], False)
    elif can_pack(torch.device("cpu"), torch.bfloat16):
        product = PackedLinear(linear)
    return [best * numbers / linear.weight.numel() for best in _timed(product, config.width, ESTIMATED_ROWS)]


def _timed(product: nn.Module, width: int, counts: Sequence[int]) -> Iterator[float]:
    for count in counts:
        rows = torch.randn(count, width).to(torch.bfloat16)
        product(rows)
        found = []
        for _ in range(TIMED_RUNS):
            began = time.perf_counter()
            product(rows)
            found.append(time.perf_counter() - began)
        yield min(found)
