"""Who sees whom as two integers per column, rank and reach, and what a kind of attention says of it.

A query sees the keys whose rank is at most its reach. ``dllm.models.network.visibility`` has a class for each kind of
model that gives these numbers, and everything that builds visibility (no cache, the exact cache, training, parity)
reads them.

Letters: B rows, L columns. ``masked`` [B, L]: undecided columns that are attended to. ``start`` [B]: the answer's first
column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dllm.models.network.attention import AllOf, ByRank, MaskParts, Visible

PAGE_COLUMNS = 16  # columns of a page where attention is causal by token; vLLM's, too


@dataclass(frozen=True)
class AttentionOrder:
    """Who sees whom, by rank and reach."""

    rank: Tensor  # [B, L] of a key
    reach: Tensor  # [B, L] a query sees the keys whose rank is at most this
    # [B, L] the rank that a query's window ends with, in layers that have one (None: no layer has)
    origin: Tensor | None = None

    def at(self, columns: Tensor) -> AttentionOrder:
        """The order of the ``columns`` [B, n] alone (L: padding)."""
        length = self.rank.shape[1]
        inside, origin = columns.clamp(max=length - 1), None
        if self.origin is not None:  # padding sees all, since a row that sees nothing would be nan
            origin = self.origin.gather(1, inside).masked_fill(columns >= length, -1)
        return AttentionOrder(self.rank.gather(1, inside), self.reach.gather(1, inside), origin)

    def visible_to(
        self, queries: AttentionOrder, keys: Tensor | None, window: int | None, also: MaskParts | None = None
    ) -> Visible:
        """What each of the ``queries`` [B, n] sees, out of ``keys`` [B, S] (None: all). In layers with a ``window``
        these are of the ranks before its origin the last ones, as many as the window holds beside one more, and all
        from the origin on. also: what else must show a key (None: nothing)."""
        parts: MaskParts = self._parts(queries, keys, window)
        return (parts if also is None else AllOf(parts, also)).visible(queries.reach.shape[1])

    def visible(self, queries: AttentionOrder, keys: Tensor | None) -> Tensor:
        """Which keys each of the ``queries`` [B, n] sees [B, n, S], out of ``keys`` [B, S] (None: all)."""
        return self._parts(queries, keys, None).mask(0, queries.reach.shape[1])

    def _parts(self, queries: AttentionOrder, keys: Tensor | None, window: int | None) -> ByRank:
        rank = self.rank if keys is None else self.rank[:, : keys.shape[1]]
        edge = None if window is None or queries.origin is None else queries.origin - window
        return ByRank(rank, queries.reach, keys, edge)


@dataclass(frozen=True)
class AttentionKind:
    """Full attention (LLaDA, Dream), and the base of the other kinds.

    name: what caches declare to serve. is_called: what messages say of a model. form: of ``text``. advice: what
    ``task=check`` says of caches. grid_at_zero: blocks count from column 0 instead of from the answer's start. causal:
    a decided token sees what is before it alone, so that rows which are in for it, or a prompt of masks (guidance), are
    nothing that the model knows. judges: the row that predicts a decided column tells how likely its token is.
    everywhere: every forward predicts every masked column. sealed: another class computes it, and only its logits are
    seen. pipelined: a block was trained to see unfinished blocks before it. next_token: it predicts the next token
    alone, and was never trained on a mask.
    """

    name: ClassVar[str] = "full"
    is_called: ClassVar[str] = "full"
    form: ClassVar[str] = "full, both ways; blocks of any length"
    advice: ClassVar[str] = "approximate: kept keys go stale as later tokens change"
    grid_at_zero: ClassVar[bool] = False
    causal: ClassVar[bool] = False
    judges: ClassVar[bool] = True
    everywhere: ClassVar[bool] = True
    sealed: ClassVar[bool] = False
    pipelined: ClassVar[bool] = False
    next_token: ClassVar[bool] = False

    @property
    def block(self) -> int | None:
        """Columns of an attention block; None without any."""
        return None

    @property
    def one_by_one(self) -> bool:
        """Whether a forward predicts the next column alone: no rule has several masks to choose among."""
        return self.next_token

    @property
    def text(self) -> str:
        """What ``task=check`` says of who sees whom."""
        return self.form.format(self)

    def order(self, masked: Tensor, start: Tensor) -> AttentionOrder | None:
        """Rank and reach of every column; None: everybody sees everybody."""
        return None

    def pieces(self, masked: Tensor, start: Tensor) -> Tensor:
        """The piece [B, L] of each column, ascending from 0. A piece is final when it and all before it are decided:
        no row of it changes after that. Not for full attention, where nothing is ever final."""
        raise NotImplementedError

    def page_ends(self, start: int, decided: int) -> Sequence[int]:
        """The column after each page of a row whose answer begins at ``start`` and whose first ``decided`` columns are
        decided, ascending. A page and those before it depend on nothing after them, so rows that begin with the same
        pages have the same keys and values there. Not for full attention, where every row depends on all others."""
        return range(PAGE_COLUMNS, decided + 1, PAGE_COLUMNS) if self.causal else ()

    def predicted(self, masked: Tensor, start: Tensor) -> Tensor | None:
        """The columns [B, L] that a forward predicts; None: all."""
        return None

    def alone(self, masked: Tensor, start: Tensor) -> Tensor | None:
        """Columns [B, L] that a forward commits at once and alone in their rows; None: never any."""
        return None

    def block_rows(self, masked: Tensor, start: Tensor) -> Tensor | None:
        """Columns [B, L] of a block that sees itself whole, but for one that is committed alone; None: none differ."""
        return None

    def denoised(self, masked: Tensor, start: Tensor) -> Tensor | None:
        """Columns [B, L] that run by a pass of their own, with other weights than decided text; None: one pass runs."""
        return None


FULL = AttentionKind()


def columns_of(masked: Tensor) -> Tensor:
    """The number of each column [B, L]."""
    return torch.arange(masked.shape[1], device=masked.device).expand_as(masked)


def blocks_behind(columns: Tensor, start: Tensor, length: int) -> Tensor:
    """0 for the ``columns`` [B, L] before ``start`` [B], then 1, 2, ... for blocks of ``length`` from there."""
    return ((columns - start[:, None]) // length + 1).clamp(min=0)
