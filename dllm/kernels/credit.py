"""Credit fusion (CreditDecoding, arXiv 2510.06133): dense over the vocabulary, and exactly the same from a few slots.

Only tokens that were ever top-1 at a position hold credit, at most one new a turn. So K slots (id, credit) per position
stand for the dense [B, L, V]; with C the credit and p = softmax(z), of which one row needs only the slots' entries:

    w = (1 + C)^alpha    confidence = max p w / (1 + sum over slots of p (w - 1))

When a token is new and all K slots are held, the one with the least credit makes room: an approximation, exact again
when K is the number of turns a block can take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dllm.kernels.jit import Build, Shape, contiguous_rows, jit, power_of_two

if TYPE_CHECKING:
    import triton.language as tl

SLOTS = 16
ROWS = 8  # positions of one program


def reference(
    logits: Tensor, credit: Tensor, masked: Tensor, beta: float, gamma: float, alpha: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One turn of CreditDecoding: token [B, L], confidence [B, L] and the new credit [B, L, V], all in float64.

    logits [B, L, V] z, credit [B, L, V] C of the last turn, masked [B, L]. With p = softmax(z) and v = argmax p:

        C <- beta C;  C[v] += p[v]^gamma where masked;  z' = z + alpha ln(1 + C);  confidence = max softmax(z')

    ``dllm.samplers.credit`` computes the same from a few slots per position and never holds a tensor of credit's size.
    """
    logits = logits.double()
    top = logits.argmax(-1, keepdim=True)
    gain = logits.softmax(-1).gather(-1, top) ** gamma * masked.unsqueeze(-1)
    credit = (beta * credit).scatter_add(-1, top, gain)
    fused = (logits + alpha * torch.log1p(credit)).softmax(-1)
    return fused.argmax(-1), fused.amax(-1), credit


def sparse(
    slots: Tensor, token: Tensor, first: Tensor, logsumexp: Tensor, ids: Tensor, credit: Tensor, masked: Tensor,
    beta: Tensor, gamma: Tensor, alpha: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The same from slots: token and confidence [R], and the new ids and credit [R, K].

    slots [R, K]: the logits of ``ids`` [R, K]; token, first, logsumexp [R]: the row's top-1, its probability, and log
    of the sum; credit [R, K] float64, 0 in free slots; masked [R]; beta, gamma, alpha [R].
    """
    credit = credit * beta[:, None]
    held = (credit > 0) & (ids == token[:, None])
    gain = torch.where(masked, first**gamma, 0.0)
    new = ~held.any(1) & (gain > 0)
    place = torch.arange(ids.shape[1], device=ids.device) == credit.argmin(1, keepdim=True)
    taken = place & new[:, None]  # the first free slot, else the poorest
    ids = torch.where(taken, token[:, None], ids)
    credit = torch.where(taken, 0.0, credit) + gain[:, None] * (held | taken)
    used = credit > 0
    p = torch.where(ids == token[:, None], first[:, None], (slots.double() - logsumexp[:, None]).exp())
    p = torch.where(used, p, 0.0)
    weight = torch.where(used, (1 + credit) ** alpha[:, None], 1.0)
    total, boosted = 1 + (p * (weight - 1)).sum(1), p * weight
    highest = boosted.amax(1)
    winner = torch.where(used & (boosted == highest[:, None]), ids, torch.iinfo(ids.dtype).max).amin(1)
    changed = masked & used.any(1)
    return torch.where(changed, winner, token), torch.where(changed, highest / total, first), ids, credit


@jit("rows")
def _credit(slots, token, first, logsumexp, ids, credit, masked, beta, gamma, alpha, rows,
            chosen, confidence, new_ids, new_credit,
            ROWS: tl.constexpr, K: tl.constexpr):  # fmt: skip
    """One program per ROWS positions; everything in float64, a few numbers each."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    lane = tl.arange(0, K)[None, :]
    inside, place = row < rows, row * K + lane
    every = inside & (lane < K)
    held_by = tl.load(ids + place, mask=every, other=-1)
    amount = tl.load(credit + place, mask=every, other=0.0) * tl.load(beta + row, mask=inside, other=0.0)
    top, p = tl.load(token + row, mask=inside, other=0), tl.load(first + row, mask=inside, other=0.0)
    live = tl.load(masked + row, mask=inside, other=0) != 0
    power = tl.load(gamma + row, mask=inside, other=1.0)
    gain = tl.where(live, tl.where(power == 0, 1.0, tl.exp(power * tl.log(tl.maximum(p, 1e-300)))), 0.0)
    held = (amount > 0) & (held_by == top)
    new = (tl.max(held.to(tl.int32), axis=1, keep_dims=True) == 0) & (gain > 0)
    least = tl.min(amount, axis=1, keep_dims=True)
    poorest = tl.min(tl.where(amount == least, lane, K), axis=1, keep_dims=True)
    taken = (lane == poorest) & new
    held_by = tl.where(taken, top, held_by)
    amount = tl.where(taken, 0.0, amount) + tl.where(held | taken, gain, 0.0)
    used = amount > 0
    z = tl.load(slots + place, mask=every, other=0.0).to(tl.float64)
    each = tl.where(held_by == top, p, tl.exp(z - tl.load(logsumexp + row, mask=inside, other=0.0)))
    each = tl.where(used, each, 0.0)
    weight = tl.where(used, tl.exp(tl.load(alpha + row, mask=inside, other=0.0) * tl.log(1 + amount)), 1.0)
    total = 1 + tl.sum(each * (weight - 1), axis=1, keep_dims=True)
    boosted = each * weight
    highest = tl.max(boosted, axis=1, keep_dims=True)
    winner = tl.min(tl.where(used & (boosted == highest), held_by, 9223372036854775807), axis=1, keep_dims=True)
    changed = live & (tl.max(used.to(tl.int32), axis=1, keep_dims=True) != 0)
    tl.store(chosen + row, tl.where(changed, winner, top), mask=inside)
    tl.store(confidence + row, tl.where(changed, highest / total, p), mask=inside)
    tl.store(new_ids + place, held_by, mask=every)
    tl.store(new_credit + place, amount, mask=every)


def sparse_credit(
    slots: Tensor, token: Tensor, first: Tensor, logsumexp: Tensor, ids: Tensor, credit: Tensor, masked: Tensor,
    beta: Tensor, gamma: Tensor, alpha: Tensor, triton: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """``sparse``, by the kernel when ``triton``; K must then be a power of two."""
    if not triton or ids.shape[1] != power_of_two(ids.shape[1]):
        return sparse(slots, token, first, logsumexp, ids, credit, masked, beta, gamma, alpha)
    rows, k = ids.shape
    out = torch.empty_like(token), torch.empty_like(first), torch.empty_like(ids), torch.empty_like(credit)
    if rows:
        parameters = (value.expand(rows).double().contiguous() for value in (beta, gamma, alpha))
        _credit[(-(-rows // ROWS),)](
            slots.contiguous(), token.contiguous(), first.contiguous(), logsumexp.contiguous(), ids.contiguous(),
            credit.contiguous(), masked.to(torch.int8), *parameters, rows, *out, **shape_of(k).arguments,
        )  # fmt: skip
    return out


def slot_logits_reference(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """Logits [R, K] of ``ids`` [R, K] at hidden rows [R, D] under head ``weight`` [V, D], without all the others."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    return (weight[ids].to(wide) * hidden[:, None].to(wide)).sum(-1).to(hidden.dtype).to(wide)


@jit()
def _slot_logits(hidden, weight, ids, out, D, WIDE: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr):
    """One program per slot."""
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
    """``slot_logits_reference``, by the kernel when ``triton``."""
    if not triton:
        return slot_logits_reference(hidden, weight, ids)
    hidden, ids = contiguous_rows(hidden), ids.contiguous()
    kind = torch.promote_types(hidden.dtype, torch.float32)
    out = torch.empty(ids.shape, dtype=kind, device=ids.device)
    if ids.numel():
        _slot_logits[(ids.numel(),)](hidden, weight, ids, out, hidden.shape[1], WIDE=kind == torch.float64,
                                     K=ids.shape[1], **DOT.arguments)  # fmt: skip
    return out


def shape_of(slots: int) -> Shape:
    return Shape({"ROWS": ROWS, "K": slots}, warps=1)


DOT = Shape({"BLOCK": 1024}, warps=4)
BUILDS = (
    *(Build(f"credit-{slots}", _credit,
            {"slots": "*fp32", "token": "*i64", "first": "*fp64", "logsumexp": "*fp64", "ids": "*i64",
             "credit": "*fp64", "masked": "*i8", "beta": "*fp64", "gamma": "*fp64", "alpha": "*fp64", "rows": "i32",
             "chosen": "*i64", "confidence": "*fp64", "new_ids": "*i64", "new_credit": "*fp64"},
            shape_of(slots).blocks, shape_of(slots).warps, shape_of(slots).stages) for slots in (SLOTS,)),
    Build("credit.slot_logits-bf16", _slot_logits,
          {"hidden": "*bf16", "weight": "*bf16", "ids": "*i64", "out": "*fp32", "D": "i32/16"},
          {"WIDE": False, "K": SLOTS, **DOT.blocks}, DOT.warps, DOT.stages),
)  # fmt: skip
