"""How long a forward takes on this CPU: products of the model's own shape are timed for a second or two, and noted.

By one thread's CPU time, as everywhere here: other programs of the machine do not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

from dllm.common.machine_note import least_seconds, noted
from dllm.kernels.narrow_linear import NarrowLinear
from dllm.kernels.native import passes
from dllm.kernels.packed import PackedLinear, can_pack, packed_from
from dllm.kernels.rounded_linear import RoundedLinear, takes
from dllm.kernels.rounded_machine import this_processor
from dllm.models.config import ModelConfig
from dllm.models.weights.quantize import BITS

ESTIMATED_ROWS = (1, 32, 256)
MOST_OUTPUTS = 8192  # of the product that is timed


def forward_seconds(config: ModelConfig, numbers: int, kind: str, rounds: bool = False) -> list[float] | None:
    """Seconds of a thread for the products of a forward over each number of ``ESTIMATED_ROWS``; None: this CPU cannot.
    numbers: how many weights a row is multiplied with. kind: float32, bfloat16, int8 or int4. rounds: rows are in eight
    bits (``model.activations=int8``)."""
    outputs, rows = min(MOST_OUTPUTS, 2 * config.mlp_width), f"int8 by {passes()}" if rounds else "wide"
    name = f"seconds a weight: {kind}, rows {rows}, {outputs} x {config.width}"
    times = noted(name, lambda: _seconds_a_weight(config.width, outputs, kind, rounds))
    return None if times is None else [float(seconds) * numbers for seconds in times]


@torch.inference_mode()
def _seconds_a_weight(width: int, outputs: int, kind: str, rounds: bool) -> list[float] | None:
    dtype = torch.float32 if kind == "float32" else torch.bfloat16
    linear = nn.Linear(width, outputs, bias=False, dtype=dtype)
    with _single_thread():
        product: nn.Module = linear
        if kind in BITS:
            product = NarrowLinear.of(linear, BITS[kind], False)
            here = this_processor() if rounds else None
            if here is not None:
                if not here.most or not takes(product, here):
                    return None
                product = RoundedLinear(product, here)
        elif can_pack(torch.device("cpu"), dtype) and linear.weight.numel() >= packed_from(dtype):
            product = PackedLinear(linear)
        rows = [torch.randn(count, width).to(dtype) for count in ESTIMATED_ROWS]
        return [least_seconds(partial(product, tensor)) / linear.weight.numel() for tensor in rows]


@contextmanager
def _single_thread() -> Iterator[None]:
    """Threads that wait for each other would count as work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
