"""Logits of a few tokens per row, from hidden states and rows of the head: z[r, k] = W[ids[r, k]] . h[r].

h [R, D], W [V, D], ids and z [R, K]. The other logits are not computed. A logit is rounded to the dtype of h, as the
library's product rounds it, and returned in float32 or wider. Serves CreditDecoding's slots (``credit``), and the
log-probability of the token that is at a position.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.kernels.credit import SLOTS
from dllm.kernels.jit import Build, LaunchConfig, contiguous_rows, each_type, jit, tl

_CONFIG = LaunchConfig({"BLOCK": 1024}, warps=4)


def reference(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """Logits [R, K] of ``ids`` [R, K] at hidden states [R, D] under head ``weight`` [V, D]."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    return (weight[ids].to(wide) * hidden[:, None].to(wide)).sum(-1).to(hidden.dtype).to(wide)


@jit()
def _slot_logits(hidden, weight, ids, out, D, WIDE: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr):
    """One program per slot: K of them in each row."""
    KIND: tl.constexpr = tl.float64 if WIDE else tl.float32
    place = tl.program_id(0).to(tl.int64)
    row, token = place // K, tl.load(ids + place)
    lanes, total = tl.arange(0, BLOCK), tl.zeros([BLOCK], KIND)
    for start in range(0, D, BLOCK):
        depth = start + lanes
        h = tl.load(hidden + row * D + depth, mask=depth < D, other=0.0).to(KIND)
        total += h * tl.load(weight + token * D + depth, mask=depth < D, other=0.0).to(KIND)
    tl.store(out + place, tl.sum(total, axis=0).to(hidden.dtype.element_ty).to(KIND))


def slot_logits(hidden: Tensor, weight: Tensor, ids: Tensor, triton: bool = False) -> Tensor:
    """``reference``. triton: the kernel, equal up to the order of the sum."""
    if not triton:
        return reference(hidden, weight, ids)
    hidden, ids = contiguous_rows(hidden), ids.contiguous()
    kind = torch.promote_types(hidden.dtype, torch.float32)
    out = torch.empty(ids.shape, dtype=kind, device=ids.device)
    if ids.numel():
        _slot_logits[(ids.numel(),)](
            hidden, weight, ids, out, hidden.shape[1], WIDE=kind == torch.float64, K=ids.shape[1], **_CONFIG.arguments
        )
    return out


BUILDS = (
    Build(
        "slot_logits-bf16",
        _slot_logits,
        _CONFIG,
        each_type({"hidden weight": "*bf16", "ids": "*i64", "out": "*fp32", "D": "i32/16"}),
        {"WIDE": False, "K": SLOTS},
    ),
)
