"""The confidence rule of Fast-dLLM (arXiv 2505.22618) in the pass that joins the row statistics.

For each of B canvas rows, over its n scored positions that may be committed, with p1 and the top-1 id of each:

    commit the top-1 id where p1 >= threshold, and at the position of the largest p1 (the lowest of equals)

Nothing is committed in a row without such positions. Reads logits [B, n, V], or their summaries (``row_statistics``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.kernels.jit import Build, LaunchConfig, jit, tl
from dllm.kernels.row_statistics import (
    Summaries,
    final_statistics,
    load_summaries,
    row_statistics,
    statistics_of,
    summarise_logits,
)


def reference(
    logits: Tensor, columns: Tensor, committable: Tensor, tokens: Tensor, masked: Tensor, threshold: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """New tokens and masked [B, L], the proposals [B, n] and their float64 confidences [B, n].

    logits [B, n, V] of the positions ``columns`` [B, n] (L: padding), of which ``committable`` [B, n] may be committed.
    tokens, masked [B, L]: the canvas. threshold [B] float64.
    """
    found = row_statistics(logits, frozenset({"first"}))
    return commit_proposals(found["token"], found["first"], columns, committable, tokens, masked, threshold)


def commit_proposals(
    token: Tensor, first: Tensor, columns: Tensor, committable: Tensor, tokens: Tensor, masked: Tensor,
    threshold: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The rule, from proposals and their confidences [B, n]."""
    committable = committable & (columns < tokens.shape[1])
    score = torch.where(committable, first, -1.0)
    commit = committable & (score >= threshold[:, None])
    if score.shape[1]:
        best = score.argmax(1, keepdim=True)
        commit = commit | torch.zeros_like(commit).scatter(1, best, committable.gather(1, best))
    place = torch.where(commit, columns, tokens.shape[1])
    wide = torch.cat([tokens, tokens[:, :1]], 1).scatter(1, place, token)
    still = torch.cat([masked, masked[:, :1]], 1).scatter(1, place, False)
    return wide[:, :-1], still[:, :-1], token, first


@jit("n", "length", "plane", "splits")
def _commit(sums, index, columns, committable, tokens, masked, threshold, token, first, n, length, plane, splits,
            POSITIONS: tl.constexpr):  # fmt: skip
    """One program per canvas row."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, POSITIONS)[:, None]
    inside, at = lane < n, row * n + lane
    m, found, second, rest, spread = load_summaries(sums, index, at, inside, plane, splits)
    p, _, _, _, _ = final_statistics(m, second, rest, spread)
    column = tl.load(columns + at, mask=inside, other=length)
    may = inside & (column < length) & (tl.load(committable + at, mask=inside, other=0) != 0)
    score = tl.where(may, p, -1.0)
    best = tl.min(tl.where(score == tl.max(score, axis=0, keep_dims=True), lane, POSITIONS), axis=0, keep_dims=True)
    chosen = may & ((score >= tl.load(threshold + row)) | (lane == best))
    tl.store(token + at, found.to(tl.int64), mask=inside)
    tl.store(first + at, p, mask=inside)
    tl.store(tokens + row * length + column, found.to(tl.int64), mask=chosen)
    tl.store(masked + row * length + column, tl.zeros([POSITIONS, 1], tl.int8), mask=chosen)


def threshold_commit(
    logits: Tensor | Summaries, columns: Tensor, committable: Tensor, tokens: Tensor, masked: Tensor,
    threshold: Tensor, triton: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """``reference``. triton: the kernel, which also takes the summaries of a head that stored no logits."""
    if not triton:
        assert isinstance(logits, Tensor)
        return reference(logits, columns, committable, tokens, masked, threshold)
    summaries = logits if isinstance(logits, Summaries) else summarise_logits(logits.reshape(-1, logits.shape[-1]))
    (rows, n), splits = columns.shape, summaries.ids.shape[1]
    if n > 512:  # a program holds all positions of its row; more of them would spill registers
        found = statistics_of(summaries)
        token, first = found["token"].view(rows, n), found["first"].view(rows, n)
        return commit_proposals(token, first, columns, committable, tokens, masked, threshold)
    tokens, masked = tokens.clone(memory_format=torch.contiguous_format), masked.to(torch.int8)
    token = torch.empty_like(columns, memory_format=torch.contiguous_format)
    first = torch.empty(rows, n, dtype=torch.float64, device=token.device)
    if rows and n:
        _commit[(rows,)](
            *summaries, columns.contiguous(), committable.to(torch.int8).contiguous(), tokens, masked,
            threshold.contiguous(), token, first, n, tokens.shape[1], rows * n * splits, splits,
            **_config(n).arguments,
        )  # fmt: skip
    return tokens, masked.bool(), token, first


def _config(n: int) -> LaunchConfig:
    positions = 32 if n <= 32 else 128 if n <= 128 else 512
    return LaunchConfig({"POSITIONS": positions}, warps=positions // 32)


BUILDS = tuple(
    Build(
        f"commit-{n}", _commit, _config(n),
        {"sums": "*fp32", "index": "*i32", "columns": "*i64", "committable": "*i8", "tokens": "*i64", "masked": "*i8",
         "threshold": "*fp64", "token": "*i64", "first": "*fp64", "n": "i32", "length": "i32", "plane": "i32",
         "splits": "i32"},
    )
    for n in (32, 128, 512)
)  # fmt: skip
