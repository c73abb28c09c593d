"""The gate of a gated MLP (arXiv 2002.05202) in one pass: y = round(f(a)) * b, with f(a) = a / (1 + exp(-g)).

g = a is SiLU; g = sqrt(8 / pi) (a + 0.044715 a^3) is GELU in its tanh form (Gemma).

a, b [..., D], which may be the halves of one product [..., 2 D]. ``round`` is to the dtype of the rows, as in the
published code of LLaDA and Dream. As separate operations the two move five times D numbers a row instead of three.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from dllm.kernels.jit import Build, LaunchConfig, contiguous_rows, each_type, jit, tl

_CONFIG = LaunchConfig({"BLOCK": 1024}, warps=4)


def reference(a: Tensor, b: Tensor, gelu: bool = False) -> Tensor:
    """silu(a) * b, or gelu(a) * b by the tanh form."""
    return (F.gelu(a, approximate="tanh") if gelu else F.silu(a)) * b


@jit()
def _silu_times(a, b, out, D, a_stride, b_stride, GELU: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """One program per row and BLOCK columns."""
    KIND: tl.constexpr = tl.float64 if WIDE else tl.float32
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < D
    gate = tl.load(a + row * a_stride + columns, mask=inside, other=0.0).to(KIND)
    other = tl.load(b + row * b_stride + columns, mask=inside, other=0.0).to(KIND)
    steep = gate
    if GELU:
        steep = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    open_ = (gate / (1 + tl.exp(-steep))).to(a.dtype.element_ty).to(KIND)
    tl.store(out + row * D + columns, (open_ * other).to(a.dtype.element_ty), mask=inside)


def silu_times(a: Tensor, b: Tensor, gelu: bool = False, triton: bool = False) -> Tensor:
    """``reference``. triton: the kernel, equal up to the rounding of the exponential."""
    if not triton or torch.compiler.is_compiling():  # torch.compile fuses this itself
        return reference(a, b, gelu)
    width = a.shape[-1]
    out = torch.empty_like(a, memory_format=torch.contiguous_format)
    a, b = contiguous_rows(a), contiguous_rows(b)
    if out.numel():
        _silu_times[(len(a), -(-width // _CONFIG.blocks["BLOCK"]))](
            a, b, out, width, a.stride(0), b.stride(0), GELU=gelu, WIDE=a.dtype == torch.float64, **_CONFIG.arguments
        )
    return out


GATES: dict[str, Callable[..., Tensor]] = {
    "silu": silu_times,
    "gelu_tanh": partial(silu_times, gelu=True),
}  # by activation


def _build(kind: str, gelu: bool = False) -> Build:
    return Build(
        f"{'gelu' if gelu else 'silu'}_times-{kind}",
        _silu_times,
        _CONFIG,
        each_type({"a b out": f"*{kind}", "D a_stride b_stride": "i32/16"}),
        {"GELU": gelu, "WIDE": False},
    )


BUILDS = (*(_build(kind) for kind in ("bf16", "fp32", "fp16")), _build("bf16", True))
