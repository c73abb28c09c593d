"""Credit fusion (CreditDecoding, arXiv 2510.06133) from K slots per position.

One turn of the paper's rule on logits z [B, L, V] and credit C [B, L, V], with p = softmax(z) and v = argmax p:

    C <- beta C    C[v] += p[v]^gamma where masked    z' = z + alpha ln(1 + C)    confidence = max softmax(z')

Only tokens that were once the top-1 of a position have credit, at most one more per turn. So K slots (id, credit) of
each of R positions stand for the dense C, and only the logits of those ids are needed:

    w = (1 + C)^alpha    confidence = max p w / (1 + sum over slots of p (w - 1))

If a new token finds all K slots taken, it replaces the one with the least credit. This is exact as long as K is at
least the number of turns that a block takes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.kernels.jit import Build, LaunchConfig, each_type, jit, power_of_two, tl

SLOTS = 16
POSITIONS_PER_PROGRAM = 8


def reference(
    slots: Tensor,
    token: Tensor,
    first: Tensor,
    logsumexp: Tensor,
    ids: Tensor,
    credit: Tensor,
    masked: Tensor,
    beta: Tensor,
    gamma: Tensor,
    alpha: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Token and confidence [R], and the new ids and credit [R, K].

    slots [R, K]: logits of the slots' ``ids`` [R, K]. token, first, logsumexp [R]: of each row the top-1 id, its
    probability, and ln sum exp z. credit [R, K]: float64, 0 in free slots. masked, beta, gamma, alpha [R].
    """
    credit = credit * beta[:, None]
    has = (credit > 0) & (ids == token[:, None])
    gain = torch.where(masked, first**gamma, 0.0)
    new = ~has.any(1) & (gain > 0)
    place = torch.arange(ids.shape[1], device=ids.device) == credit.argmin(1, keepdim=True)
    fresh = place & new[:, None]  # the first free slot, else the one with the least credit
    ids = torch.where(fresh, token[:, None], ids)
    credit = torch.where(fresh, 0.0, credit) + gain[:, None] * (has | fresh)
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
    """One program per ROWS positions. All in float64: a position has a few numbers only."""
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
    slots: Tensor,
    token: Tensor,
    first: Tensor,
    logsumexp: Tensor,
    ids: Tensor,
    credit: Tensor,
    masked: Tensor,
    beta: Tensor,
    gamma: Tensor,
    alpha: Tensor,
    triton: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``reference``. triton: the kernel where K is a power of two, equal up to the rounding of exp and log."""
    if not triton or ids.shape[1] != power_of_two(ids.shape[1]):
        return reference(slots, token, first, logsumexp, ids, credit, masked, beta, gamma, alpha)
    rows, k = ids.shape
    out = torch.empty_like(token), torch.empty_like(first), torch.empty_like(ids), torch.empty_like(credit)
    if rows:
        tensors = [
            tensor.contiguous() for tensor in (slots, token, first, logsumexp, ids, credit, masked.to(torch.int8))
        ]
        tensors += [value.expand(rows).double().contiguous() for value in (beta, gamma, alpha)]
        _credit[(-(-rows // POSITIONS_PER_PROGRAM),)](*tensors, rows, *out, **_config(k).arguments)
    return out


def _config(slots: int) -> LaunchConfig:
    return LaunchConfig({"ROWS": POSITIONS_PER_PROGRAM, "K": slots}, warps=1)


BUILDS = (
    Build(
        f"credit-{SLOTS}", _credit, _config(SLOTS),
        each_type({"slots": "*fp32", "token ids chosen new_ids": "*i64", "masked": "*i8", "rows": "i32",
                   "first logsumexp credit beta gamma alpha confidence new_credit": "*fp64"}),
    ),
)  # fmt: skip
