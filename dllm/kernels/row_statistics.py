"""Statistics of rows of logits z [..., V] in one pass: top-1 id, p1, p2, top-2 gap, entropy and logsumexp, each [...].

Online softmax (arXiv 1805.02867), with the sum of z exp z beside that of exp z. Five numbers summarise a row, or any
part of it: the largest logit m, its lowest id i, the second largest m2, and over all entries but i the sums
r = sum exp(z - m) and t = sum (z - m) exp(z - m). Two summaries join without loss (``join_summaries``), so several
programs can share a row. Since r leaves the largest entry out, 1 - p1 = r / (1 + r) stays precise near 0:

    p1 = 1 / (1 + r)    p2 = exp(m2 - m) / (1 + r)    gap = m - m2
    logsumexp = m + log(1 + r)    entropy = log(1 + r) - t / (1 + r)

Sums are float32 (float64 for float64 logits), and the statistics float64. Entries below -1e30 count as -inf. A row of
nothing but -inf has token 0, probabilities, gap and entropy 0, and logsumexp -inf.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dllm.kernels.jit import Build, LaunchConfig, contiguous_rows, each_type, jit, power_of_two, processors, tl

ROW_STATISTICS = ("first", "second", "gap", "entropy", "logsumexp")  # first, second: p1 and p2
ALL_STATISTICS = frozenset(ROW_STATISTICS)
_SUMMARISE = LaunchConfig({"LANES": 1024, "EACH": 4}, warps=4)
_FINISH = LaunchConfig({"ROWS": 4}, warps=1)


def reference(logits: Tensor, wanted: frozenset[str] = ALL_STATISTICS) -> dict[str, Tensor]:
    """``token`` (int64) and the ``wanted`` statistics (float64) of logit rows [..., V], each [...]."""
    best = first_largest(logits)
    largest = logits.gather(-1, best)
    below = logits - largest.clamp(min=torch.finfo(logits.dtype).min)  # of minus infinities: again minus infinity
    largest = largest.squeeze(-1)
    once = wanted.isdisjoint(("second", "gap", "entropy"))  # ``below`` is not read again: its memory can be reused
    weight = (below.exp_() if once else below.exp()).scatter_(-1, best, 0.0)
    total = 1 + weight.sum(-1).double()
    out = {"token": best.squeeze(-1)}
    if "first" in wanted:
        out["first"] = (largest > -torch.inf) / total
    if "second" in wanted or "gap" in wanted:
        runner = below.scatter(-1, best, -torch.inf).amax(-1).double()
        out |= {"second": runner.exp() / total, "gap": (-runner).masked_fill(largest == -torch.inf, 0.0)}
    if "entropy" in wanted:
        spread = (weight * below.masked_fill(below == -torch.inf, 0.0)).sum(-1).double()
        out["entropy"] = (total - 1).log1p() - spread / total
    if "logsumexp" in wanted:
        out["logsumexp"] = largest.double() + (total - 1).log1p()
    return {name: value for name, value in out.items() if name in wanted or name == "token"}


def first_largest(logits: Tensor, block: int = 256) -> Tensor:
    """Index [..., 1] of the largest of V logits, the lowest of equals.

    On a CPU by blocks: the maximum takes a tenth of the time of ``argmax`` (4.5 ms for 32 rows of 126,464).
    """
    length = logits.shape[-1]
    if logits.device.type != "cpu" or length < 4 * block:
        return logits.argmax(-1, keepdim=True)
    whole = length // block * block
    highest = logits[..., :whole].unflatten(-1, (-1, block)).amax(-1)
    if whole < length:
        highest = torch.cat([highest, logits[..., whole:].amax(-1, keepdim=True)], -1)
    begin = block * highest.argmax(-1, keepdim=True)
    inside = (begin + torch.arange(block)).clamp(max=length - 1)
    return inside.gather(-1, logits.gather(-1, inside).argmax(-1, keepdim=True))


class Summaries(NamedTuple):
    """R rows of logits, each summarised in S parts: ``sums`` [4, R, S] (m, m2, r, t) and ``ids`` int32 [R, S] (i)."""

    sums: Tensor
    ids: Tensor


@jit()
def join_summaries(m, at, second, rest, spread, m_b, at_b, second_b, rest_b, spread_b):
    """Two summaries as one. Ties go to the first, which holds the lower ids."""
    later = m_b > m
    drop = tl.minimum(m, m_b) - tl.maximum(m, m_b)
    scale = tl.exp(drop)
    joined = tl.where(
        later, spread_b + scale * (spread + drop * (rest + 1)), spread + scale * (spread_b + drop * (rest_b + 1))
    )
    rest = tl.where(later, rest_b + scale * (rest + 1), rest + scale * (rest_b + 1))
    second = tl.where(later, tl.maximum(second_b, m), tl.maximum(second, m_b))
    return tl.maximum(m, m_b), tl.where(later, at_b, at), second, rest, joined


@jit()
def fold_summaries(m, at, second, rest, spread):
    """Summaries [R, S] joined along S, each [R, 1]."""
    best = tl.max(m, axis=1, keep_dims=True)
    lowest = tl.min(tl.where(m == best, at, 2147483647), axis=1, keep_dims=True)
    own = (m == best) & (at == lowest)
    scale = tl.exp(m - best)
    second = tl.max(tl.where(own, second, m), axis=1, keep_dims=True)
    spread = tl.sum(scale * (spread + (m - best) * (rest + 1)), axis=1, keep_dims=True)
    rest = tl.sum(scale * (rest + tl.where(own, 0.0, 1.0)), axis=1, keep_dims=True)
    return best, lowest, second, rest, spread


@jit()
def summarise_tile(z, ids):
    """The summaries [R, 1] of logits [R, W] at vocabulary ``ids`` [1, W], not below -1e30."""
    m = tl.max(z, axis=1, keep_dims=True)
    at = tl.min(tl.where(z == m, ids, 2147483647), axis=1, keep_dims=True)
    second = tl.max(tl.where(ids == at, -1e30, z), axis=1, keep_dims=True)
    weight = tl.where(ids == at, 0.0, tl.exp(z - m))
    return m, at, second, tl.sum(weight, axis=1, keep_dims=True), tl.sum(weight * (z - m), axis=1, keep_dims=True)


@jit("plane", "splits")
def _summarise(
    logits, sums, index, V, stride, plane, splits, WIDE: tl.constexpr, LANES: tl.constexpr, EACH: tl.constexpr
):
    """One program per row and split, which it reads in tiles of EACH logits for each of LANES lanes. plane: elements of
    each of the four planes of ``sums``.

    A lane keeps its largest logit, the tile that first held it, and the sums over all of its logits, scaled once a tile
    instead of once a logit: 12 instructions a logit on sm_90, where a summary of each logit takes 27. Then the first
    tile that holds the largest of all is read again, for its lowest id, and the lane of that id, for the second largest
    and the sums that leave the largest out.
    """
    KIND: tl.constexpr = tl.float64 if WIDE else tl.float32
    UNIT: tl.constexpr = 1.0 if WIDE else 1.4426950408889634  # exponents are of 2, but for float64
    TILE: tl.constexpr = LANES * EACH
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    width = tl.cdiv(tl.cdiv(V, TILE), splits) * TILE
    begin, end = part * width, tl.minimum((part + 1) * width, V)
    lane, offsets = tl.arange(0, LANES)[None, :], tl.arange(0, EACH)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    m, first = tl.full([1, LANES], -1e30, KIND), tl.zeros([1, LANES], tl.int32) + begin
    total, spread = tl.zeros([1, LANES], KIND), tl.zeros([1, LANES], KIND)
    for start in range(begin, end, TILE):
        z = load_logits(logits + row * stride, start + offsets, start + offsets < end, KIND)
        top = tl.max(z, axis=0, keep_dims=True)
        first = tl.where(top > m, start, first)
        top = tl.maximum(top, m)
        drop, below = (m - top) * UNIT, (z - top) * UNIT
        scale = tl.exp(drop) if WIDE else tl.exp2(drop)
        weight = tl.exp(below) if WIDE else tl.exp2(below)
        spread = scale * (spread + drop * total) + tl.sum(weight * below, axis=0, keep_dims=True)
        total = scale * total + tl.sum(weight, axis=0, keep_dims=True)
        m = top
    best = tl.max(m, axis=1, keep_dims=True)
    columns = tl.min(tl.where(m == best, first, 2147483647), axis=1, keep_dims=True) + offsets
    z = load_logits(logits + row * stride, columns, columns < end, KIND)
    ids = tl.where((z == best) & (columns < end), columns, 2147483647)
    at = tl.min(tl.min(ids, axis=0, keep_dims=True), axis=1, keep_dims=True)
    drop = (m - best) * UNIT
    scale = tl.where(lane == (at - begin) % LANES, 0.0, tl.exp(drop) if WIDE else tl.exp2(drop))
    second = tl.max(tl.where(lane == (at - begin) % LANES, -1e30, m), axis=1, keep_dims=True)
    rest = tl.sum(scale * total, axis=1, keep_dims=True)
    spread = tl.sum(scale * (spread + drop * total), axis=1, keep_dims=True) / UNIT
    for start in range(begin, end, LANES * LANES):  # once: a lane has fewer than LANES logits
        beside = start + (at - begin) % LANES + lane * LANES
        others = (beside < end) & (beside != at)
        own = load_logits(logits + row * stride, beside, others, KIND)
        taken = tl.where(others, tl.exp(own - best), 0.0)
        second = tl.maximum(second, tl.max(own, axis=1, keep_dims=True))
        rest += tl.sum(taken, axis=1, keep_dims=True)
        spread += tl.sum(taken * (own - best), axis=1, keep_dims=True)
    place = row * splits + part + tl.zeros([1, 1], tl.int64)
    tl.store(index + place, at)
    tl.store(sums + place, best)
    tl.store(sums + plane + place, second)
    tl.store(sums + 2 * plane + place, rest)
    tl.store(sums + 3 * plane + place, spread)


@jit()
def load_logits(place, columns, inside, kind: tl.constexpr):
    """Logits of ``kind``, not below -1e30, which they are where not ``inside``."""
    return tl.maximum(tl.load(place + columns, mask=inside, other=-float("inf")).to(kind), -1e30)


@jit()
def load_summaries(sums, index, rows, inside, plane, splits):
    """The summaries [R, 1] of ``rows`` int64 [R, 1], joined from splits, eight at a time; empty if not ``inside``."""
    lane = tl.arange(0, 8)[None, :]
    m, at, second, rest, spread = _eight(sums, index, rows * splits + lane, inside & (lane < splits), plane)
    for start in range(8, splits, 8):
        place, there = rows * splits + start + lane, inside & (start + lane < splits)
        m_b, at_b, second_b, rest_b, spread_b = _eight(sums, index, place, there, plane)
        m, at, second, rest, spread = join_summaries(m, at, second, rest, spread, m_b, at_b, second_b, rest_b, spread_b)
    return m, at, second, rest, spread


@jit()
def _eight(sums, index, place, there, plane):
    m = tl.load(sums + place, mask=there, other=-1e30)
    at = tl.load(index + place, mask=there, other=0)
    second = tl.load(sums + plane + place, mask=there, other=-1e30)
    rest = tl.load(sums + 2 * plane + place, mask=there, other=0.0)
    spread = tl.load(sums + 3 * plane + place, mask=there, other=0.0)
    return fold_summaries(m, at, second, rest, spread)


@jit()
def final_statistics(m, second, rest, spread):
    """p1, p2, gap, entropy, logsumexp in float64."""
    m, second, rest, spread = m.to(tl.float64), second.to(tl.float64), rest.to(tl.float64), spread.to(tl.float64)
    dead, alone, total = m <= -1e30, second <= -1e30, 1 + rest
    first = tl.where(dead, 0.0, 1 / total)
    runner = tl.where(alone, 0.0, tl.exp(second - m) / total)
    gap = tl.where(dead, 0.0, tl.where(alone, float("inf"), m - second))
    entropy = tl.where(dead, 0.0, tl.log(total) - spread / total)
    return first, runner, gap, entropy, tl.where(dead, -float("inf"), m + tl.log(total))


@jit("rows", "plane", "splits")
def _finish(sums, index, token, out, rows, plane, splits, ROWS: tl.constexpr):
    """One program per ROWS rows. Joins their splits, and writes token [R] and the five statistics ``out`` [5, R]."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    inside = row < rows
    m, at, second, rest, spread = load_summaries(sums, index, row, inside, plane, splits)
    first, runner, gap, entropy, logsumexp = final_statistics(m, second, rest, spread)
    tl.store(token + row, at.to(tl.int64), mask=inside)
    tl.store(out + row, first, mask=inside)
    tl.store(out + rows + row, runner, mask=inside)
    tl.store(out + 2 * rows + row, gap, mask=inside)
    tl.store(out + 3 * rows + row, entropy, mask=inside)
    tl.store(out + 4 * rows + row, logsumexp, mask=inside)


def summarise_logits(logits: Tensor) -> Summaries:
    """The summaries of logit rows [R, V]. Each row is split over as many programs as keep the GPU busy."""
    rows, vocabulary = logits.shape
    splits = split_count(rows, vocabulary, math.prod(_SUMMARISE.blocks.values()), processors(logits.device))
    kind = torch.promote_types(logits.dtype, torch.float32)
    summaries = empty_summaries(rows, splits, kind, logits.device)
    if rows:
        stride = logits.stride(0) if rows > 1 else vocabulary  # a single row may have any stride
        sizes, wide = (vocabulary, stride, rows * splits, splits), kind == torch.float64
        _summarise[(rows, splits)](logits, *summaries, *sizes, WIDE=wide, **_SUMMARISE.arguments)
    return summaries


def empty_summaries(rows: int, splits: int, kind: torch.dtype, device: torch.device) -> Summaries:
    sums = torch.empty(4, rows, splits, dtype=kind, device=device)
    return Summaries(sums, torch.empty(rows, splits, dtype=torch.int32, device=device))


def split_count(rows: int, vocabulary: int, block: int, processors: int) -> int:
    """Programs per row, a power of two: in all about four per processor, each with one block of logits or more."""
    max_splits = power_of_two(vocabulary // block + 1)
    return max(1, min(64, max_splits, power_of_two(-(-4 * processors // max(rows, 1)))))


def statistics_of(summaries: Summaries) -> dict[str, Tensor]:
    """Token and all statistics [R] of summarised rows."""
    rows, splits = summaries.ids.shape
    token = torch.empty(rows, dtype=torch.int64, device=summaries.ids.device)
    out = torch.empty(len(ROW_STATISTICS), rows, dtype=torch.float64, device=token.device)
    if rows:
        grid = (-(-rows // _FINISH.blocks["ROWS"]),)
        _finish[grid](*summaries, token, out, rows, rows * splits, splits, **_FINISH.arguments)
    return {"token": token, **dict(zip(ROW_STATISTICS, out, strict=True))}


def row_statistics(logits: Tensor, wanted: frozenset[str] = ALL_STATISTICS, triton: bool = False) -> dict[str, Tensor]:
    """``reference``. triton: the kernels, equal up to the order of the sums; all statistics cost them the same."""
    if not triton:
        return reference(logits, wanted)
    shape = logits.shape[:-1]
    out = statistics_of(summarise_logits(contiguous_rows(logits)))
    return {name: value.view(shape) for name, value in out.items() if name in wanted or name == "token"}


BUILDS = (
    *(
        Build(
            f"row_statistics.summarise-{kind}",
            _summarise,
            _SUMMARISE,
            each_type(
                {"logits": f"*{kind}", "sums": "*fp32", "index": "*i32", "V stride": "i32/16", "plane splits": "i32"}
            ),
            {"WIDE": False},
        )
        for kind in ("bf16", "fp16", "fp32")
    ),
    Build(
        "row_statistics.finish",
        _finish,
        _FINISH,
        each_type({"sums": "*fp32", "index": "*i32", "token": "*i64", "out": "*fp64", "rows plane splits": "i32"}),
    ),
)
