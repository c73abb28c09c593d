"""A forward under way, as a value: what a cache makes of its plan, and what the network's calls read.

``Session.begin`` makes a ``ForwardPass``. Every call of it runs with a memory of its own. ``cost`` and ``keep`` take
the same pass after the calls. The session keeps only what outlives the forward.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from einops import rearrange
from torch import Tensor

from dllm.common.rowwise import Owner
from dllm.contract import ForwardCost, State
from dllm.models.network.attention import ALL, Visible
from dllm.models.network.memory import KeyValues


@dataclass(frozen=True)
class CandidatePacking:
    """N candidates packed side by side into the B rows they belong to, for a call in which they share what is frozen.
    In papers: tree attention, packed drafts."""

    row: Tensor  # [N] the row of each candidate
    place: Tensor  # [N] its place in that row
    candidates: Tensor  # [B, K] those of each row

    @staticmethod
    def of(owner: Owner) -> CandidatePacking:
        """owner: of rows that have as many candidates each."""
        table, place = owner.table()
        return CandidatePacking(owner.row, place, table)

    @property
    def width(self) -> int:
        """K."""
        return self.candidates.shape[1]

    def pack(self, values: Tensor) -> Tensor:
        """[N, n] to [B, K n]."""
        return rearrange(values[self.candidates], "b k n -> b (k n)")

    def unpack(self, hidden: Tensor) -> Tensor:
        """[B, K n, D] to [N, n, D]."""
        return rearrange(hidden, "b (k n) d -> b k n d", k=self.width)[self.row, self.place]


@dataclass(frozen=True)
class CandidateBuffers:
    """Key and value buffers of candidates that compute everything; each row keeps those of one candidate."""

    row: Tensor  # [b] the row of each candidate
    stores: list[KeyValues | None]  # filled layer by layer


@dataclass(frozen=True)
class Call:
    """One call of the network. A forward is one call, or several of rows that compute about as many columns. In papers:
    model call."""

    candidates: Tensor | None = None  # [b] which ones run (None: all)
    # [b, n] their query columns (L: padding; None: all, in order); papers: query positions
    columns: Tensor | None = None
    slots: Tensor | None = None  # where the queries are kept, see ``StaticMemory``; papers: slot mapping
    visible: Visible = ALL  # the keys that each query sees; papers: attention mask
    reach: int = 0  # how many slots count as keys; papers: context length
    buffers: Tensor | None = None  # [b] whose keys and values these are
    side_by_side: CandidatePacking | None = None  # the candidates of a row run as one row
    drafts: CandidateBuffers | None = None  # each candidate has buffers of its own
    # the same rows as ranges of neighbours, whose keys attention reads in place
    ranges: tuple[tuple[int, int], ...] | None = None
    # [b, n] queries that hold a mask whatever the canvas holds, and alone predict (None: the queries are the canvas's)
    masks: Tensor | None = None

    def rows_run(self, length: int) -> int:
        """Rows that the network runs for each candidate, padding included. ``length``: L."""
        return length if self.columns is None else self.columns.shape[1]


@dataclass(frozen=True)
class ForwardPass:
    """One forward of N candidates of B rows, under way."""

    calls: Sequence[Call]  # those in which it runs
    owner: Owner  # the row of each candidate
    queries: Tensor  # [N, L] columns that it computes; papers: query positions
    keys: Tensor  # [N, L] columns that count as keys; papers: attended positions
    valid: Tensor  # [N, L] columns of the canvas; papers: attention mask
    shadows: Tensor  # [N, x] columns that get an extra query; papers: shadow tokens
    whole: bool  # the host knows that every column of every row is computed
    remembered: State  # [B, ...] what the policy remembers of the rows, as planned
    # what the calls find out about the rows, by names of ``remembered``; filled while the network runs
    notes: State = field(default_factory=dict, kw_only=True)
    # what its layers find out, by name and layer. ``ran`` [B]: columns that a layer computed, for ``cost``
    found: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list), kw_only=True)

    def rows_run(self) -> Tensor:
        """Rows that the network runs for each candidate [N, 1], padding included; 0 for a candidate in no call."""
        candidates, length = self.queries.shape
        if len(self.calls) == 1 and self.calls[0].candidates is None:
            return self.queries.new_full((candidates, 1), self.calls[0].rows_run(length), dtype=torch.int64)
        out = torch.zeros(candidates, dtype=torch.int64, device=self.queries.device)
        for call in self.calls:
            rows, count = call.candidates, call.rows_run(length)
            if rows is None:
                out[:] = count
            else:
                out.index_fill_(0, rows, count)  # an indexed assignment of a number copies it from the host
        return out[:, None]

    def cost(self, scored_rows: Tensor) -> ForwardCost:
        """What it computed, per candidate and layer, after its calls. scored_rows [N]: how many rows the head ran on.
        By default all layers compute the same; else what they say that ``ran``, each padded to its widest row."""
        if ran := self.found.get("ran"):
            queries = torch.stack([count.to(self.valid.device) for count in ran], 1)
            valid = self.valid.sum(1, keepdim=True)
            rows_run = queries.amax(0).expand_as(queries)
            return ForwardCost(queries, valid.expand_as(queries), queries * (queries == valid), rows_run, scored_rows)
        queries = self.queries.sum(1, keepdim=True)
        refreshes = torch.where((self.queries == self.valid).all(1, keepdim=True), queries, 0)
        queries, keys = queries + self.extra_rows(), self.keys.sum(1, keepdim=True)
        return ForwardCost(queries, keys, refreshes, self.rows_run(), scored_rows)

    def extra_rows(self) -> Tensor | int:
        """Extra rows of each candidate [N, 1]."""
        if self.shadows.shape[1] == 0:
            return 0
        return (self.shadows < self.queries.shape[1]).sum(1, keepdim=True)
