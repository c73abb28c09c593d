"""The contract of a cache: which columns a forward computes, where it keeps them, and what they attend to.

A policy (``Cache``) is configuration; ``start`` opens a ``Session`` for one batch of rows. For each forward, a policy
chooses a set of queries, a set of columns to keep and a set of keys.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor

from dllm.cache.calls import RowNumbers
from dllm.cache.pages import KnownPrefix
from dllm.cache.passes import Call, ForwardPass
from dllm.common.rowwise import Owner
from dllm.contract import BlockState, ForwardCost, ForwardPlan, Need, Scores, State
from dllm.contract.canvas import Canvas
from dllm.contract.reshape import Reshape
from dllm.contract.setting import Setting
from dllm.contract.shapes import HostView
from dllm.contract.traits import CacheTraits, Rule, declared
from dllm.errors import IncompatibleParts, name_of
from dllm.models.config import ModelConfig
from dllm.models.memory import Buffers, KeyValues, Memory
from dllm.models.visibility import kinds_called

PlanKind = TypeVar("PlanKind", bound=ForwardPlan)  # what a session plans
Pass = TypeVar("Pass", bound=ForwardPass)  # what it makes of that: its own pass, with what its memory reads besides


class Session(Generic[PlanKind, Pass]):
    """The keys and values of one batch under a policy: B rows, N candidates, L columns. It holds buffers alone, in
    attributes that its constructor sets. What the policy remembers of a row is a value [B, ...] that belongs to the row
    (``Rows.remembered``). A forward makes these calls, in this order:

        plan = session.plan(canvas, blocks, next_positions, remembered)   # which columns, per row
        run = session.begin(plan, candidates, owner)         # calls of the network, queries, keys
        for call in run.calls:                               # the network runs, with this memory between its layers
            session.memory(run, call)
        session.cost(run, scored)                            # what it computed
        remembered = session.keep(run, chosen, plan.state)   # which candidates go on
        remembered = session.after_scores(remembered, scores)   # what it said, for policies that have needs

    ``memory`` and the network change the buffers, ``keep`` those of candidates; ``select`` and ``join`` change the
    session itself. Everything is on the canvas's device, except what a layer keeps: that is on the layer's device.
    """

    row_numbers: RowNumbers  # of rows that share a call; it stays the same for the whole decode
    shares = False  # it may take over first columns that another request has computed, and hand out its own
    soft = False  # what positions of the open block show may be mixtures (``SamplerTraits.soft``)
    leads = False  # rows whose first forwards are the same run one of them (``follow``)

    def remembers(self, canvas: Canvas) -> State:
        """What the policy remembers of the rows of ``canvas`` [B] before their first forward."""
        return {}

    def plan(self, canvas: Canvas, blocks: BlockState, next_positions: Tensor, remembered: State) -> PlanKind:
        """Plan the next forward of ``canvas`` [B]. ``next_positions`` [B, L]: what the sampler said it will commit
        next, numbered from 1 (0: not next). ``ForwardPlan.state`` is ``remembered`` with its changed entries; rows that
        wait (not ``blocks.active``) keep theirs."""
        raise NotImplementedError

    def begin(self, plan: PlanKind, candidates: Canvas, owner: Owner) -> Pass:
        """Prepare the forward of ``candidates`` [N] by their ``plan`` [N], and return it with its calls."""
        raise NotImplementedError

    def memory(self, forward: Pass, call: Call) -> Memory:
        """What the layers exchange keys and values with during one call of the forward."""
        raise NotImplementedError

    def cost(self, forward: Pass, scored: Tensor) -> ForwardCost:
        """What the forward computed, per candidate and layer; ``scored`` [N]: rows that the head ran on."""
        queries = forward.queries.sum(1, keepdim=True)
        refreshed = torch.where((forward.queries == forward.valid).all(1, keepdim=True), queries, 0)
        queries, keys = queries + forward.extra_rows(), forward.keys.sum(1, keepdim=True)
        return ForwardCost(queries, keys, refreshed, forward.computed(), scored)

    def keep(self, forward: Pass, chosen: Tensor, remembered: State) -> State:
        """Go on with the ``chosen`` [B] candidates: keep their columns, and drop those of the others. Returns what the
        policy remembers of the rows after the forward."""
        return remembered

    def after_scores(self, remembered: State, scores: Scores) -> State:
        """What the policy remembers after a forward that said ``scores`` [B, L], before anything is committed."""
        return remembered

    def moved(self, reshape: Reshape, remembered: State) -> State:
        """What the policy remembers of the rows [B], whose columns are now those of ``reshape``. What the session keeps
        by column moves with them, or is forgotten. Only caches whose traits say that they follow are asked."""
        raise TypeError(f"{type(self).__name__} does not follow columns that move.")

    def select(self, rows: Tensor) -> Self:
        """Let all rows but the given ones [b], ascending, leave. Changes the session in place, and returns the one to
        go on with."""
        return self

    def join(self, fresh: Self) -> Self:
        """Let the rows of ``fresh``, which has had no forward yet, follow this session's. Changes the session in place,
        takes over what ``fresh`` holds, and returns the one to go on with."""
        return self

    def follow(self, leaders: Sequence[int]) -> None:
        """Give each row what its leader has kept in the forward that is under way (sessions that lead)."""
        raise NotImplementedError

    def take_over(self, known: Sequence[KnownPrefix | None]) -> None:
        """Begin with what is ``known`` [B] of the rows (None: nothing), before ``remembers`` (sessions that share)."""
        raise NotImplementedError

    def final(self, remembered: State) -> tuple[Tensor, Tensor, Sequence[KeyValues | None]]:
        """Tokens [B, L] as the last planned forward has them, the columns [B, L] whose keys and values stay as long as
        these do, those included that it computes, and the buffers of each layer (sessions that share)."""
        raise NotImplementedError

    @property
    def static(self) -> StaticSession[PlanKind, Pass]:
        """The session for fixed shapes. Only runtimes that the policy's traits admit ask for it."""
        raise TypeError(f"{type(self).__name__} is not a StaticSession, so no runtime can fix its shapes.")


class StaticSession(Session[PlanKind, Pass]):
    """A session whose shapes the host can fix, so that turns are recorded and compiled."""

    asks = False  # how a forward goes on depends on what the host reads in it: turns are recorded in two parts
    facts = 0  # how many of the last numbers of ``widths`` bound no shape, but tell the host what it would ask

    @property
    def static(self) -> Self:
        return self

    def widths(self, plan: PlanKind) -> list[Tensor]:
        """What the host must know of the forward of ``plan`` [B]: how many columns each row computes [B], and further
        such numbers [B] that the session asks for."""
        return [plan.columns.sum(1)]

    def max_queries(self, known: Sequence[HostView], width: int) -> tuple[int, ...]:
        """The most columns of each row that the coming forward computes, from what a host that reads late knows of the
        rows that have at most ``width`` open columns each (caches with ``bounds_late`` only)."""
        raise NotImplementedError

    def graph_key(self) -> tuple[Hashable, ...]:
        """What the host knows that decides which operations a forward takes, and the addresses of its buffers."""
        raise NotImplementedError

    def apart(self) -> Self:
        """The same session on the same memory, which another decode may use: what a recording in two parts holds (only
        of sessions that ask)."""
        raise NotImplementedError

    def compared(self) -> Sequence[Tensor]:
        """Buffers that a forward compares with what it then writes there. A recording runs a turn more than once, so
        it puts them back."""
        return ()

    def missing_buffers(self) -> list[tuple[int, ...]] | None:
        """The shapes of all buffers, if they are still missing, else None: keys and values of each layer in turn, then
        what a session keeps besides."""
        return None

    def attach_buffers(self, buffers: Buffers) -> None:
        """Use buffers from outside, which may have served another decode. A session that lacks none never gets any."""
        raise NotImplementedError


AnySession = Session[Any, Any]  # as the loop holds it: it hands each session's plans and passes back to it alone


class Cache:
    """Base of all policies. Order of calls: ``check`` before weights are read, ``start`` once for a batch.

    ``traits`` declare what a policy supports; what it does not declare it counts as not supporting.
    """

    traits: CacheTraits
    shares = False  # what ``Session.final`` says of its columns may be taken over by other requests

    def __init_subclass__(cls) -> None:
        declared(cls, "CacheTraits")

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> AnySession:
        """Open a session for the rows of ``canvas`` [B]. shrinks: the end-of-text policy may cut columns off."""
        raise NotImplementedError

    def kept_numbers(self, columns: int, opened: int, config: ModelConfig) -> int:
        """How many numbers of the model's kind a row of ``columns`` keeps in all layers, when at most
        ``opened`` of them are open. A server counts them before it lets the row join others."""
        return (columns + 1) * config.column_numbers  # the last slot takes what padding writes

    def needs(self) -> tuple[Need, ...]:
        """What must be scored for the policy itself, where its forwards compute it. A policy with ``branches`` has no
        needs."""
        return ()

    def warning(self, setting: Setting) -> str | None:
        """Why the policy works in a setting but may do harm: a sentence for the user. None: no objection."""
        return None

    def check(self, setting: Setting, sampler: Rule, needs: Sequence[Need]) -> None:
        """Raise IncompatibleParts for parts that need what the policy does not compute, and UserError for options that
        cannot work. Called before weights are read."""
        name, kind = f"cache={name_of(self)}", setting.model.attention
        for need in needs:
            if need.region not in (*self.traits.regions, "before") and not (
                need.first_forward_only and self.traits.scores_all_at_open
            ):
                when = "in the forward that opens a block" if need.first_forward_only else "in every forward"
                raise IncompatibleParts(
                    f"{name} computes only the open blocks in most forwards, but a chosen part reads the region "
                    f"{need.region!r} {when}."
                )
            if need.committed and not self.traits.committed:
                raise IncompatibleParts(
                    f"{name} computes masked positions, not the committed ones that a chosen part reads."
                )
            if any(read.extra_queries for read in need.reads) and not self.traits.shadows:
                raise IncompatibleParts(f"{name} has no room for the extra queries of sampler={name_of(sampler)}.")
            if any(read.reads_attention for read in need.reads) and not self.traits.exposes_attention:
                raise IncompatibleParts(
                    f"sampler={name_of(sampler)} reads attention weights, and {name} does not hold the keys that they "
                    "are made of, or does not attend with every row."
                )
        if sampler.traits.soft is not None and not self.traits.soft:
            raise IncompatibleParts(
                f"sampler={name_of(sampler)} shows mixtures of tokens and the mask, which change while the canvas does "
                f"not, and {name} keeps what it computed of the open block."
            )
        if self.traits.verifies and not sampler.traits.verifies:
            raise IncompatibleParts(f"{name} verifies drafts, and this sampler makes none.")
        if sampler.traits.verifies != self.traits.verifies:
            raise IncompatibleParts(f"{name} has no forward that verifies what sampler={name_of(sampler)} drafts.")
        if sampler.traits.branches and not self.traits.branches:
            raise IncompatibleParts(f"{name} cannot share its rows among the several candidates of this sampler.")
        kinds = self.traits.kinds
        if kind.name not in kinds:
            raise IncompatibleParts(
                f"{name} is for models with {kinds_called(kinds)} attention; this one is {kind.is_called}."
            )
