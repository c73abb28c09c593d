"""Residual add and RMSNorm (arXiv 1910.07467) in one pass over the rows.

    s = x + r    y = round(s / sqrt(mean(s^2) + eps)) * gain

x, r, s, y [..., D], gain [D]. ``round`` is to the dtype of the rows, as in the published code of LLaDA and Dream: the
sum is rounded, and the normalised row again before the gain. As separate operations the two take six launches and twice
the memory traffic. At batch 1 a launch takes longer than the 1 MB that it moves. Caches may keep s (``KeepRows``).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dllm.kernels.jit import Build, LaunchConfig, each_type, jit, power_of_two, tl


class KeepRows(NamedTuple):
    """Where rows [..., D] are kept besides."""

    into: Tensor  # [N, D] rows that are kept
    places: Tensor  # [R] which of them each row replaces


def reference(
    x: Tensor, residual: Tensor | None, gain: Tensor, eps: float, keep: KeepRows | None = None
) -> tuple[Tensor, Tensor]:
    """x + residual and its RMSNorm, both [..., D]. residual None: of x alone. keep: where the sum is kept besides."""
    total = x if residual is None else x + residual
    if keep is not None:
        keep.into.index_copy_(0, keep.places, total.reshape(-1, total.shape[-1]))
    if x.dtype == gain.dtype and x.dtype.itemsize > 2:  # nothing is rounded before the gain
        return total, F.rms_norm(total, total.shape[-1:], gain, eps)
    wide = total.to(torch.promote_types(x.dtype, torch.float32))
    return total, F.rms_norm(wide, wide.shape[-1:], None, eps).to(x.dtype) * gain


@jit("rows")
def _add_norm(x, residual, gain, kept, places, total, out, rows, D, EPS: tl.constexpr, WIDE: tl.constexpr,
              ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """One program per ROWS rows. residual None: nothing is added, and ``total`` is not stored. kept None: nothing is
    kept."""
    KIND: tl.constexpr = tl.float64 if WIDE else tl.float32
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    lanes = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (lanes < D)
    place = row * D + lanes
    value = tl.load(x + place, mask=inside, other=0.0).to(KIND)
    if residual is not None:
        value += tl.load(residual + place, mask=inside, other=0.0).to(KIND)
        value = value.to(x.dtype.element_ty)
        tl.store(total + place, value, mask=inside)
        value = value.to(KIND)
    if kept is not None:
        at = tl.load(places + row, mask=row < rows, other=0)
        tl.store(kept + at * D + lanes, value.to(x.dtype.element_ty), mask=inside)
    square = tl.sum(value * value, axis=1, keep_dims=True) / D
    normal = (value / tl.sqrt(square + EPS)).to(x.dtype.element_ty).to(KIND)
    scale = tl.load(gain + lanes, mask=lanes < D, other=0.0).to(KIND)
    tl.store(out + place, (normal * scale).to(x.dtype.element_ty), mask=inside)


def _config(width: int) -> LaunchConfig:
    """For rows of ``width``: a program holds at least about 2,048 numbers."""
    block = power_of_two(width)
    return LaunchConfig({"ROWS": max(1, 2048 // block), "BLOCK": block}, warps=4 if block <= 2048 else 8)


def add_norm(
    x: Tensor, residual: Tensor | None, gain: Tensor, eps: float, keep: KeepRows | None = None, triton: bool = False
) -> tuple[Tensor, Tensor]:
    """``reference``. triton: the kernel, equal up to the order of the sum."""
    if not triton or x.dtype != gain.dtype or torch.compiler.is_compiling():  # torch.compile fuses this itself
        return reference(x, residual, gain, eps, keep)
    x = x.contiguous()
    out, total = torch.empty_like(x), x if residual is None else torch.empty_like(x)
    if x.numel():
        width, config = x.shape[-1], _config(x.shape[-1])
        rows = x.numel() // width
        tensors = x, None if residual is None else residual.contiguous(), gain, *(keep or (None, None)), total, out
        constants = {"EPS": eps, "WIDE": x.dtype == torch.float64}
        _add_norm[(-(-rows // config.blocks["ROWS"]),)](*tensors, rows, width, **constants, **config.arguments)
    return total, out


def _build(kind: str, width: int, added: bool, kept: bool = False) -> Build:
    return Build(
        f"add_norm-{kind}-{width}-{added}{'-kept' * kept}",
        _add_norm,
        _config(width),
        {"residual": f"*{kind}" if added else None, "kept": f"*{kind}" if kept else None}
        | each_type({"x gain total out": f"*{kind}", "rows": "i32", "D": "i32/16", "places": "*i64" if kept else None}),
        {"EPS": 1e-5, "WIDE": False},
    )


BUILDS = (
    *(_build("bf16", width, True) for width in (1024, 2048, 4096, 8192)),
    *(_build("bf16", width, False) for width in (128, 4096)),
    _build("fp32", 4096, True),
    _build("fp16", 4096, True),
    *(_build("bf16", 4096, added, True) for added in (True, False)),
)
