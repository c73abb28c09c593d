"""The contract of a cache policy.

A policy (``Cache``) is configuration; ``start`` opens a ``Session`` for one batch, which plans every forward and acts
as the model's memory during it. Every policy is a query set, a write set and a key set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dllm.blocks.base import Span
from dllm.cache.access import Access, Room, Store
from dllm.canvas import Canvas, first_of
from dllm.errors import Unfit, name_of
from dllm.models.config import ModelConfig
from dllm.models.transformer import Copies, Memory
from dllm.record.cost import ForwardCost

if TYPE_CHECKING:
    from dllm.compose.setting import Setting
    from dllm.samplers.base import Sampler
    from dllm.scores import Need


@dataclass(frozen=True)
class Plan:
    """One forward, per row and independent of the other rows.

    columns [B, L]: those to compute; None: every valid one. ready [B, L]: positions that may be committed from it
    (None: all that it predicts). only [B, L]: rows with an entry commit exactly those. shadows [B, x]: columns (L: no
    column) that get an extra row, a mask that sees every column but its own and that no other row sees. widths: the
    most columns that each row can have, where the host knows that (then shapes are static).
    """

    columns: Tensor | None = None
    ready: Tensor | None = None
    only: Tensor | None = None
    shadows: Tensor | None = None
    widths: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Fold:
    """N candidates laid side by side in the B rows they belong to, for a forward in which they share what is frozen.

    owner [N]: the row of each; place [N]: its place in that row; index [B, K]: candidates of each row, the last one
    repeated where a row has fewer than K.
    """

    owner: Tensor
    place: Tensor
    index: Tensor

    @staticmethod
    def of(owner: Tensor) -> Fold:
        first = first_of(owner)
        count = owner.bincount()
        place = torch.arange(len(owner), device=owner.device) - first[owner]
        beside = torch.arange(int(count.max()), device=owner.device)
        return Fold(owner, place, first[:, None] + torch.minimum(beside, count[:, None] - 1))

    @property
    def width(self) -> int:
        return self.index.shape[1]

    def rows(self, values: Tensor) -> Tensor:
        """[N, ...] to [B, K, ...]."""
        return values[self.index]

    def back(self, hidden: Tensor) -> Tensor:
        """[B, K n, D] to [N, n, D]."""
        return hidden.unflatten(1, (self.width, -1))[self.owner, self.place]


@dataclass(frozen=True)
class Drafts:
    """Buffers of candidates that compute everything: one of each row's is kept. owner [b]: the row of each candidate;
    stores: filled layer by layer."""

    owner: Tensor
    stores: list[Store | None]


@dataclass(frozen=True)
class Call:
    """One call of the network. A forward is one call, or several of rows that compute about as many columns.

    rows [b]: which candidates (None: all). columns [b, n]: their query columns (L: padding; None: all in order). slots:
    where the queries are kept; visible, reach: the keys they see; buffers: whose keys these are, as ``Access.rows``.
    fold: the candidates run as so many rows as they belong to. drafts: each candidate has buffers of its own.
    """

    rows: Tensor | None = None
    columns: Tensor | None = None
    slots: Tensor | None = None
    visible: Tensor | None = None
    reach: int = 0
    buffers: Tensor | None = None
    fold: Fold | None = None
    drafts: Drafts | None = None

    def computed(self, length: int) -> Tensor | int:
        """Rows that the network runs for each candidate, padding included: one number, or [b] where they are folded and
        the last one of a row repeats. ``length`` [L]: of a whole row."""
        queries = length if self.columns is None else self.columns.shape[1]
        if self.fold is None:
            return queries
        out = torch.full_like(self.fold.owner, queries)
        out[self.fold.index[:, 0]] += queries * (self.fold.width - self.fold.owner.bincount())
        return out


def computed(calls: Sequence[Call], candidates: int, length: int, device: torch.device) -> Tensor:
    """Rows that the network runs for each of the candidates [N, 1] in all calls; none for those in no call."""
    out = torch.zeros(candidates, dtype=torch.int64, device=device)
    for call in calls:
        out[slice(None) if call.rows is None else call.rows] = call.computed(length)
    return out[:, None]


class Session(Memory):
    """A policy at work on one batch. State has a leading batch dimension. It lies where the canvas does, except what a
    layer keeps, which lies where the layer runs. ``call``: the one under way, ``copies`` what layers on other devices
    have read of it."""

    call: Call
    copies: Copies

    def plan(self, canvas: Canvas, span: Span, upcoming: Tensor | None) -> Plan:
        """Plan the next forward of ``canvas`` [B]. ``upcoming`` [B, L]: what the sampler will commit next, in order
        from 1 (0: not next), if it knows. Rows outside ``span.acts`` keep their state."""
        raise NotImplementedError

    def begin(self, plan: Plan, candidates: Canvas, owner: Tensor | None) -> Sequence[Call]:
        """Ready the memory for the forward of ``candidates`` [N], and say in which calls it is to run."""
        raise NotImplementedError

    def use(self, call: Call) -> None:
        """The network is called with ``call`` next."""
        self.call, self.copies = call, Copies()

    def kept(self, rows: Tensor) -> None:
        """Which of several candidates [B] the forward just done goes on with."""

    def count(self) -> ForwardCost:
        """What the forward just done computed, per candidate and layer."""
        raise NotImplementedError

    def select(self, rows: Tensor) -> Session:
        """The session of the given rows, after some finished."""
        raise NotImplementedError

    def access(self) -> Access:
        """All that the network reads and writes in the forward just begun, besides its rows (static caches only)."""
        raise NotImplementedError

    def lacks(self) -> tuple[int, ...] | None:
        """Shape of the buffer of keys, and of that of values, that every layer still lacks (None: nothing)."""
        return None

    def furnish(self, room: Room) -> None:
        """Take buffers from outside, which may have served another session."""


class Cache:
    """Base of all policies. What it supplies: ``regions`` that its forwards score on every turn (see ``Need``), with
    ``opening`` all there are on the forward that opens a block; ``committed`` positions of the open blocks too;
    ``branches``: several candidates; ``static``: plans whose shapes the host knows; ``follows_commits``: by what a turn
    may commit, so that a schedule must not take back more; ``shadows``: rows that stand in for
    committed tokens; ``full`` and ``block_causal``: kinds of attention it serves."""

    regions: frozenset[str] = frozenset({"block"})
    opening = False
    committed = True
    branches = False
    static = follows_commits = False
    shadows = True
    full = True
    block_causal = False

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> Session:
        """``shrinks``: the end-of-text policy may take columns off the canvas."""
        raise NotImplementedError

    def check(self, setting: Setting, sampler: Sampler, needs: Sequence[Need]) -> None:
        """Refuse parts that ask for what the policy does not compute (Unfit), and options that cannot work."""
        name = f"cache={name_of(self)}"
        for need in needs:
            if need.region not in self.regions and not (need.opening and self.opening):
                when = "when a block opens" if need.opening else "on every one"
                raise Unfit(
                    f"{name} computes only what is open now in most forwards, but a chosen part reads the region "
                    f"{need.region!r} {when} (eos=eotp: not with eos.scope=block)."
                )
            if need.committed and not self.committed:
                raise Unfit(f"{name} computes masked positions, not the committed ones that a chosen part reads.")
            if "shadow" in need.statistics and not self.shadows:
                raise Unfit(f"{name} has no room for the extra rows of sampler={name_of(sampler)}.")
        if sampler.branches and not self.branches:
            raise Unfit(f"{name} cannot share its rows among the several candidates of this sampler.")
        if setting.model.attention_block is not None and not self.block_causal:
            raise Unfit(f"{name} is for models with full attention; this one is block-causal.")
        if setting.model.attention_block is None and not self.full:
            raise Unfit(f"{name} rests on block-causal attention; in this model every row depends on all others.")
