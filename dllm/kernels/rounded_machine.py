"""What this processor makes of products of bytes: tried and timed once, and noted (``dllm.common.machine_note``).

Which way is faster changes numbers by a rounding at most, so a stopwatch may choose; ``kernels=invariant`` takes
the whole numbers always.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache

import torch
from torch import Tensor

from dllm.common.machine_note import least_seconds, noted
from dllm.kernels.narrow_linear import TIMED_WEIGHTS, crossing, laid_out
from dllm.kernels.narrow_product import GROUP
from dllm.kernels.native import passes
from dllm.kernels.rounded_four import FourBitTiles
from dllm.kernels.rounded_rows import PackedBytes, in_steps

ROW_LEVELS = (127, 63)  # steps of rows on each side of zero: the most whose products are exact
PACKS = (64, 32)  # outputs that an AVX-512 or an AVX2 operator keeps together in four bits


@dataclass(frozen=True)
class Processor:
    """What is best here."""

    most: int = 0  # steps of a row on each side of zero; 0: weights alone are narrow
    pack: int = 0  # outputs whose four-bit weights are together; 0: another layout, weights alone are narrow
    plain: bool = False  # tiles of four bits go through PyTorch's own product of bytes, faster here than oneDNN's
    four_from: int = 0  # rows from which widening four bits to eight is faster than PyTorch's operator


def exact_levels() -> int:
    """The most steps of ``ROW_LEVELS`` whose products oneDNN adds up exactly; 0: none, or there is no such operator."""
    weight = torch.full((64, 256), 127, dtype=torch.int8)
    weight[::2] = -127
    expected = weight.double().sum(1)
    for most in ROW_LEVELS:
        rows = torch.full((3, 256), float(most))
        rows[1] = -most
        with suppress(RuntimeError, AttributeError, NotImplementedError):
            steps = in_steps(rows, most)
            product = PackedBytes(weight, torch.ones(64), most)(steps, torch.float64)
            if torch.allclose(product, rows[:, :1].double() * expected, rtol=1e-5, atol=1e-3):
                return most
    return 0


def layout() -> int:
    """The outputs of ``PACKS`` whose weights this processor's operator keeps together; 0: another layout."""
    steps = (torch.arange(128)[:, None] * 5 + torch.arange(GROUP) * 3).remainder(16).to(torch.int8) - 8
    with suppress(RuntimeError, AttributeError):
        there = laid_out(steps).flatten()
        for pack in PACKS:
            low, high = (steps + 8).to(torch.uint8).view(-1, 2, pack // 2, GROUP).transpose(2, 3).unbind(1)
            if torch.equal((low | high << 4).flatten(), there):
                return pack
    return 0


@torch.inference_mode()
def measured_processor() -> Processor:
    """Try and time it: about a fifth of a second."""
    most, pack = exact_levels(), layout()
    if not most:
        return Processor()
    weight = torch.randint(-127, 128, TIMED_WEIGHTS, dtype=torch.int8)
    scale = torch.ones(len(weight), dtype=torch.bfloat16)
    packed = PackedBytes(weight, scale, most)
    rows = torch.randn(32, weight.shape[1]).to(torch.bfloat16)
    of_bytes = least_seconds(lambda: packed(in_steps(rows, most), torch.bfloat16))
    if of_bytes > least_seconds(lambda: torch._weight_int8pack_mm(rows, weight, scale)):
        return Processor()
    if not pack:
        return Processor(most)
    sizes = torch.ones(weight.shape[1] // GROUP, len(weight), 2, dtype=torch.bfloat16)
    four = FourBitTiles(laid_out(weight >> 4), sizes, pack)

    def tiles(rows: Tensor, plain: bool) -> Tensor:
        return four.product(in_steps(rows, most), rows.dtype, most, plain)

    plain = least_seconds(lambda: tiles(rows, True)) < least_seconds(lambda: tiles(rows, False))
    return Processor(most, pack, plain, crossing(four.operator, lambda rows: tiles(rows, plain)))


@cache
def this_processor() -> Processor:
    """As noted, or measured now."""
    with suppress(TypeError):  # a note that someone else has written
        return Processor(**noted(f"rounded rows, {passes()}", lambda: asdict(measured_processor())))
    return measured_processor()
