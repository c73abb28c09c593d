"""First columns of requests that are computed once: found before a row starts, and kept after its turns."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from dllm.contract.canvas import Request
from dllm.loop.rows import Rows
from dllm.parts.cache.pages import Beginning, PageStore


def beginning_of(request: Request, tenant: str = "") -> Beginning:
    """What decides the keys of a request's first columns. tenant: whose pages it may use."""
    masked = list(request.masked)
    return Beginning(
        request.tokens, masked.index(True) if True in masked else len(masked), request.answer_start, tenant
    )


@torch.inference_mode()
def keep_pages(pages: PageStore, rows: Rows, numbers: Iterable[int], tenants: Iterable[str]) -> None:
    """Keep what is final of the rows ``numbers`` after a turn, for the ``tenants`` whose they are: prompts, and answers
    as far as a forward has computed them when they were decided. Does nothing for caches that do not share."""
    if not rows.session.traits.shares or not rows.owner.is_single:
        return
    tokens, final = rows.session.final(rows.cache_state)
    if rows.plan is not None:  # planned, but not computed yet
        final = final & ~rows.plan.columns
    counts = final.long().cumprod(1).sum(1)
    for row, tenant in zip(numbers, tenants, strict=True):
        count, start = int(counts[row]), int(rows.candidates.start[row])
        pages.add(Beginning(tokens[row, :count].tolist(), count, start, tenant), row, rows.session.stores)
