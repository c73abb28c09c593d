"""Attention that every key receives from a set of query rows, in one read of the weights.

    out[b, s] = sum over heads h and real rows m of weights[b, h, m, s]

weights [B, H, m, S], real [B, m], out [B, S]. Elastic-Cache (arXiv 2510.14973) tracks the positions that receive most
attention of its window. Fused attention returns no weights, so ``dllm.cache.drift`` computes them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.kernels.jit import Build, LaunchConfig, jit, tl

_CONFIG = LaunchConfig({"ROWS": 32, "BLOCK": 64}, warps=4)


def reference(weights: Tensor, real: Tensor) -> Tensor:
    """Received attention [B, S] of weights [B, H, m, S], summed over all heads and the ``real`` rows [B, m]."""
    return (weights.sum(1) * real[:, :, None]).sum(1)


@jit("R", "M", "S")
def _attention_received(weights, real, out, R, M, S, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """One program per batch row and block of keys. It adds up all R = H M rows itself: no atomics, so the sum repeats
    exactly."""
    batch = tl.program_id(0).to(tl.int64)
    key, line = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :], tl.arange(0, ROWS)[:, None]
    total = tl.zeros([1, BLOCK], tl.float32)
    for start in range(0, R, ROWS):
        row = start + line
        counts = tl.load(real + batch * M + row % M, mask=row < R, other=0) != 0
        place = weights + (batch * R + row) * S + key
        total += tl.sum(tl.load(place, mask=counts & (key < S), other=0.0).to(tl.float32), axis=0, keep_dims=True)
    tl.store(out + batch * S + key, total, mask=key < S)


def attention_received(weights: Tensor, real: Tensor, triton: bool = False) -> Tensor:
    """``reference``. triton: the kernel, in float32, equal up to the order of the sum."""
    if not triton:
        return reference(weights, real)
    batch, heads, rows, keys = weights.shape
    out = torch.zeros(batch, keys, dtype=torch.float32, device=weights.device)
    if weights.numel():
        _attention_received[(batch, -(-keys // _CONFIG.blocks["BLOCK"]))](
            weights.contiguous(), real.to(torch.int8).contiguous(), out, heads * rows, rows, keys,
            **_CONFIG.arguments,
        )  # fmt: skip
    return out


BUILDS = (
    Build(
        "attention_received", _attention_received, _CONFIG,
        {"weights": "*fp32", "real": "*i8", "out": "*fp32", "R": "i32", "M": "i32", "S": "i32"},
    ),
)  # fmt: skip
