"""Threshold, at least one, commit: the confidence rule in the pass that joins the row statistics.

Per canvas row, over its n scored positions that are ready: commit the top-1 id wherever p1 >= threshold, and at the
most confident position in any case (ties: the lowest); nothing where nothing is ready, so a finished row costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dllm.kernels.jit import Build, Shape, jit
from dllm.kernels.row_statistics import Partial, finished, gathered, merge, row_statistics, sum_up

if TYPE_CHECKING:
    import triton.language as tl


def reference(
    logits: Tensor, columns: Tensor, ready: Tensor, tokens: Tensor, masked: Tensor, threshold: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """New tokens and masked [B, L], the proposals [B, n] and their float64 confidences [B, n].

    logits [B, n, V] of target ``columns`` [B, n] (L: padding), of which those ``ready`` [B, n] may be committed;
    threshold [B] float64.
    """
    found = row_statistics(logits, frozenset({"first"}))
    return decided(found["token"], found["first"], columns, ready, tokens, masked, threshold)


def decided(
    token: Tensor, first: Tensor, columns: Tensor, ready: Tensor, tokens: Tensor, masked: Tensor, threshold: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The rule, from proposals and their confidences [B, n]."""
    ready = ready & (columns < tokens.shape[1])
    score = torch.where(ready, first, -1.0)
    commit = ready & (score >= threshold[:, None])
    if score.shape[1]:
        best = score.argmax(1, keepdim=True)
        commit = commit | torch.zeros_like(commit).scatter(1, best, ready.gather(1, best))
    place = torch.where(commit, columns, tokens.shape[1])
    wide = torch.cat([tokens, tokens[:, :1]], 1).scatter(1, place, token)
    still = torch.cat([masked, masked[:, :1]], 1).scatter(1, place, False)
    return wide[:, :-1], still[:, :-1], token, first


@jit("n", "length", "plane", "splits")
def _commit(sums, index, columns, ready, tokens, masked, threshold, token, first, n, length, plane, splits,
            POSITIONS: tl.constexpr):  # fmt: skip
    """One program per canvas row."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, POSITIONS)[:, None]
    inside, at = lane < n, row * n + lane
    m, found, second, rest, spread = gathered(sums, index, at, inside, plane, splits)
    p, _, _, _, _ = finished(m, second, rest, spread)
    column = tl.load(columns + at, mask=inside, other=length)
    may = inside & (column < length) & (tl.load(ready + at, mask=inside, other=0) != 0)
    score = tl.where(may, p, -1.0)
    best = tl.min(tl.where(score == tl.max(score, axis=0, keep_dims=True), lane, POSITIONS), axis=0, keep_dims=True)
    chosen = may & ((score >= tl.load(threshold + row)) | (lane == best))
    tl.store(token + at, found.to(tl.int64), mask=inside)
    tl.store(first + at, p, mask=inside)
    tl.store(tokens + row * length + column, found.to(tl.int64), mask=chosen)
    tl.store(masked + row * length + column, tl.zeros([POSITIONS, 1], tl.int8), mask=chosen)


def commit(
    logits: Tensor | Partial, columns: Tensor, ready: Tensor, tokens: Tensor, masked: Tensor, threshold: Tensor,
    triton: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """``reference``, also from the summaries of a head whose logits were never stored (``triton`` only)."""
    if not triton:
        assert isinstance(logits, Tensor)
        return reference(logits, columns, ready, tokens, masked, threshold)
    partial = logits if isinstance(logits, Partial) else sum_up(logits.reshape(-1, logits.shape[-1]))
    (rows, n), splits = columns.shape, partial.ids.shape[1]
    if n > 512:  # a program holds all positions of its row, and more would spill registers
        found = merge(partial)
        token, first = found["token"].view(rows, n), found["first"].view(rows, n)
        return decided(token, first, columns, ready, tokens, masked, threshold)
    tokens, masked = tokens.clone(memory_format=torch.contiguous_format), masked.to(torch.int8)
    token = torch.empty_like(columns, memory_format=torch.contiguous_format)
    first = torch.empty(rows, n, dtype=torch.float64, device=token.device)
    if rows and n:
        _commit[(rows,)](
            *partial, columns.contiguous(), ready.to(torch.int8).contiguous(), tokens, masked, threshold.contiguous(),
            token, first, n, tokens.shape[1], rows * n * splits, splits, **shape_of(n).arguments,
        )  # fmt: skip
    return tokens, masked.bool(), token, first


def shape_of(n: int) -> Shape:
    positions = 32 if n <= 32 else 128 if n <= 128 else 512
    return Shape({"POSITIONS": positions}, warps=positions // 32)


BUILDS = tuple(
    Build(f"commit-{n}", _commit,
          {"sums": "*fp32", "index": "*i32", "columns": "*i64", "ready": "*i8", "tokens": "*i64", "masked": "*i8",
           "threshold": "*fp64", "token": "*i64", "first": "*fp64", "n": "i32", "length": "i32", "plane": "i32",
           "splits": "i32"}, shape_of(n).blocks, shape_of(n).warps, shape_of(n).stages)
    for n in (32, 128, 512)
)  # fmt: skip
