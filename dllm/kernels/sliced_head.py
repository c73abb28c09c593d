"""Row statistics of a head whose ids are shared out among ranks: each summarises its own, and the summaries are joined.

A summary is five numbers of a row (``row_statistics``), and joining loses nothing. So 40 bytes a row are exchanged in
float64, and 20 in float32, instead of its logits. Ids are exact in float32 up to 2^24.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dllm.common.ranks import Ranks
from dllm.kernels.head_statistics import CHUNK_ROWS, FUSED_BANNED, FUSED_ROWS, can_fuse, summarise_head
from dllm.kernels.jit import contiguous_rows
from dllm.kernels.row_statistics import ROW_STATISTICS, Summaries, statistics_of, summarise_logits
from dllm.kernels.slot_logits import slot_logits

ABSENT = -1e30  # logits below it count as -inf


@dataclass(frozen=True)
class HeadSlice:
    """A rank's share of a head."""

    ranks: Ranks  # that share it
    vocab: int  # ids of the whole head
    logits: Callable[[Tensor], Tensor]  # makes own logits [R, v] of hidden rows [R, D], in float32 or wider
    weight: Tensor | None  # own rows [v, D] of the head; None: it is not a plain product
    scale: float = 1.0  # of logits

    @property
    def begin(self) -> int:
        """The first of its ids."""
        return self.ranks.share(self.vocab)[0]

    def inside(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Which global ids are its own, and where these are in it."""
        begin, end = self.ranks.share(self.vocab)
        return (ids >= begin) & (ids < end), (ids - begin).clamp(0, end - begin - 1)

    def lookup(self, hidden: Tensor, ids: Tensor, triton: bool) -> Tensor:
        """Logits [R, K] of a few ids [R, K] of the whole head: the owner's, added up over ranks."""
        assert self.weight is not None
        mine, at = self.inside(ids)
        logits = slot_logits(hidden, self.weight, at, triton and can_fuse(hidden, self.weight))
        return self.ranks.sum(torch.where(mine, logits * self.scale, 0.0))


def sliced_head_statistics(
    hidden: Tensor,
    head: HeadSlice,
    banned: tuple[int, ...],
    wanted: frozenset[str],
    at: Tensor | None = None,
    triton: bool = False,
) -> dict[str, Tensor]:
    """``head_statistics`` of rows [R, D] under a head that ranks share, in one exchange. banned, at: global ids."""
    begin, end = head.ranks.share(head.vocab)
    own = tuple(token - begin for token in banned if begin <= token < end)
    rows = hidden.split(CHUNK_ROWS)
    places = [None] * len(rows) if at is None else at.split(CHUNK_ROWS)
    parts = [_own_part(*chunk, head, own, triton) for chunk in zip(rows, places, strict=True)]
    summaries = head.ranks.gather(parts[0] if len(parts) == 1 else torch.cat(parts, 1))  # [N, 5 or 6, R]
    sums, ids = summaries[:, :4].permute(1, 2, 0), summaries[:, 4].T
    if triton:
        out = statistics_of(Summaries(sums.contiguous(), ids.to(torch.int32).contiguous()))
    else:
        out = final(fold(sums, ids))
    out = {name: value for name, value in out.items() if name in wanted or name == "token"}
    return out if at is None else out | {"logit": summaries[:, 5].sum(0).double()}


def _own_part(hidden: Tensor, at: Tensor | None, head: HeadSlice, banned: tuple[int, ...], triton: bool) -> Tensor:
    """What a rank says of rows: their summaries [5, R], and the logits of global ids ``at`` [R] that it holds."""
    few, weight = len(banned) <= FUSED_BANNED and len(hidden) <= FUSED_ROWS, head.weight
    mine, place = (None, None) if at is None else head.inside(at)
    if triton and few and weight is not None and can_fuse(hidden, weight):
        sums, ids = summarise_head(hidden, weight, banned, head.scale)
        rows = fold(sums, ids.to(sums.dtype) + head.begin)
        values = None if place is None else head.scale * slot_logits(hidden, weight, place[:, None], triton)
    else:
        logits = head.logits(hidden)
        for token in banned:
            logits.select(-1, token).fill_(-torch.inf)
        rows = own_summary(logits, head.begin, triton)
        values = None if place is None else logits.gather(1, place[:, None])
    if mine is None or values is None:
        return rows
    return torch.cat([rows, torch.where(mine, values.squeeze(1), 0.0).to(rows.dtype)[None]])


def own_summary(logits: Tensor, begin: int, triton: bool) -> Tensor:
    """The summaries [5, R] of logits [R, v] of ids from ``begin`` on, the ids last."""
    sums, ids = summarise_logits(contiguous_rows(logits)) if triton else summarise(logits)
    return fold(sums, ids.to(sums.dtype) + begin)


def summarise(logits: Tensor) -> Summaries:
    """The summaries of logits [R, v] in one part, in plain operations."""
    z = logits.clamp(min=ABSENT)
    m, ids = z.amax(-1, keepdim=True), torch.arange(z.shape[-1], device=z.device)
    at = torch.where(z == m, ids, z.shape[-1]).amin(-1, keepdim=True)  # of equals the lowest
    own, below = ids == at, z - m
    second = z.masked_fill(own, ABSENT).amax(-1, keepdim=True)
    weight = below.exp().masked_fill(own, 0.0)
    sums = m, second, weight.sum(-1, keepdim=True), (weight * below).sum(-1, keepdim=True)
    return Summaries(torch.stack(sums), at.to(torch.int32))


def fold(sums: Tensor, ids: Tensor) -> Tensor:
    """Summaries sums [4, R, S] and ids [R, S] joined along S: [5, R], the ids last."""
    m, second, rest, spread = sums
    best = m.amax(1, keepdim=True)
    lowest = torch.where(m == best, ids, 2.0**31).amin(1, keepdim=True)
    own = (m == best) & (ids == lowest)
    drop = m - best
    scale = drop.exp()
    second = torch.where(own, second, m).amax(1)
    spread = (scale * (spread + drop * (rest + 1))).sum(1)
    rest = (scale * (rest + torch.where(own, 0.0, 1.0))).sum(1)
    return torch.stack([best[:, 0], second, rest, spread, lowest[:, 0].to(m.dtype)])


def final(folded: Tensor) -> dict[str, Tensor]:
    """Token and all statistics [R] of summaries [5, R]: ``row_statistics.final_statistics`` in plain operations."""
    m, second, rest, spread, ids = folded.double()
    dead, alone, total = m <= ABSENT, second <= ABSENT, 1 + rest
    runner = ((second - m).exp() / total).masked_fill(alone, 0.0)
    gap = (m - second).masked_fill(alone, torch.inf).masked_fill(dead, 0.0)
    entropy = (rest.log1p() - spread / total).masked_fill(dead, 0.0)
    values = (1 / total).masked_fill(dead, 0.0), runner, gap, entropy, (m + rest.log1p()).masked_fill(dead, -torch.inf)
    return {"token": ids.long(), **dict(zip(ROW_STATISTICS, values, strict=True))}
