"""The gate of a gated MLP (arXiv 2002.05202) in one pass: y = round(f(a)) * b, with f(a) = a / (1 + exp(-g)).

g = a is SiLU; g = sqrt(8 / pi) (a + 0.044715 a^3) is GELU in its tanh form (Gemma).

a, b [..., D], which may be the halves of one product [..., 2 D]. ``round`` is to the dtype of the rows, as in the
published code of LLaDA and Dream. As separate operations the two move five times D numbers a row instead of three.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dllm.kernels.jit import Build, LaunchConfig, contiguous_rows, jit, tl

_CONFIG = LaunchConfig({"BLOCK": 1024}, warps=4)


def reference(a: Tensor, b: Tensor) -> Tensor:
    """silu(a) * b."""
    return F.silu(a) * b


def gelu_reference(a: Tensor, b: Tensor) -> Tensor:
    """gelu(a) * b, by the tanh form."""
    return F.gelu(a, approximate="tanh") * b


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


def silu_times(a: Tensor, b: Tensor, triton: bool = False) -> Tensor:
    """``reference``. triton: the kernel, equal up to the rounding of the exponential."""
    if not triton or torch.compiler.is_compiling():  # torch.compile fuses this itself
        return reference(a, b)
    return _launched(a, b, False)


def gelu_times(a: Tensor, b: Tensor, triton: bool = False) -> Tensor:
    """``gelu_reference``. triton: as in ``silu_times``."""
    if not triton or torch.compiler.is_compiling():
        return gelu_reference(a, b)
    return _launched(a, b, True)


GATES = {"silu": silu_times, "gelu_tanh": gelu_times}  # by activation


def _launched(a: Tensor, b: Tensor, gelu: bool) -> Tensor:
    width = a.shape[-1]
    out = torch.empty_like(a, memory_format=torch.contiguous_format)
    a, b = contiguous_rows(a), contiguous_rows(b)
    if out.numel():
        _silu_times[(len(a), -(-width // _CONFIG.blocks["BLOCK"]))](
            a, b, out, width, a.stride(0), b.stride(0), GELU=gelu, WIDE=a.dtype == torch.float64, **_CONFIG.arguments
        )
    return out


def _build(kind: str, gelu: bool = False) -> Build:
    types = dict.fromkeys(("a", "b", "out"), f"*{kind}")
    return Build(
        f"{'gelu' if gelu else 'silu'}_times-{kind}",
        _silu_times,
        _CONFIG,
        types | dict.fromkeys(("D", "a_stride", "b_stride"), "i32/16"),
        {"GELU": gelu, "WIDE": False},
    )


BUILDS = (*(_build(kind) for kind in ("bf16", "fp32", "fp16")), _build("bf16", True))
