"""The contract of a cache: which columns a forward computes, where it keeps them, and what they attend to.

A policy (``Cache``) is configuration; ``start`` opens a ``Session`` for one batch of rows. For each forward, a policy
chooses a set of queries, a set of columns to keep and a set of keys.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from copy import copy
from typing import ClassVar, Self

from torch import Tensor

from dllm.common.rowwise import Owner
from dllm.contract import BlockState, ForwardCost, ForwardPlan, Need, Scores, State
from dllm.contract.canvas import Canvas
from dllm.contract.clash import Clash, Mismatch, Selection
from dllm.contract.reshape import Reshape
from dllm.contract.setting import Setting
from dllm.contract.shapes import HostView
from dllm.contract.traits import CacheTraits, declared
from dllm.models.config import ModelConfig
from dllm.models.network.memory import KeyValues, Memory
from dllm.models.network.visibility import kinds_phrase
from dllm.parts.cache.calls import RowNumbers
from dllm.parts.cache.kept import LAYER_KEYS, LAYER_VALUES, Kept, KeptTensors
from dllm.parts.cache.passes import Call, ForwardPass


class Session:
    """What is kept of one batch under a policy: B rows, N candidates, L columns. It holds tensors alone. What the
    policy remembers of a row is a value [B, ...] that belongs to the row (``Rows.cache_state``). A forward makes these
    calls, in this order:

        plan = session.plan(canvas, blocks, next_positions, state)   # which columns, per row
        forward = session.begin(plan, candidates, owner)     # calls of the network, queries, keys
        for call in forward.calls:                           # the network runs, with this memory between its layers
            session.memory(forward, call)
        session.cost(forward, scored_rows)                   # what it computed
        state = session.keep(forward, candidates, plan.state)   # which candidates go on
        state = session.after_scores(state, scores)          # what it said, for policies that have needs

    ``memory`` and the network change the tensors, ``keep`` those of candidates; ``select`` and ``join`` change the
    session itself. Everything is on the canvas's device, except what a layer keeps: that is on the layer's device.
    """

    def __init__(self, policy: Cache, canvas: Canvas, config: ModelConfig, even: bool = False, slots: int = 0) -> None:
        self.policy, self.traits, self.config = policy, policy.traits, config
        rows, length = canvas.masked.shape
        self.kept = KeptTensors(policy.kept(), config, rows, length, slots)
        self.row_numbers = RowNumbers()  # of rows that share a call; it stays the same for the whole decode
        # The host knows: that every column is always attended to, so attention needs no mask, which would slow it down;
        # and that the keys of a row are its first columns, because every plan left them to be all valid ones.
        self.even, self.gapless = even, not policy.traits.reads_weights
        self.steady = True  # rules alone commit, and take nothing back, so masks only get fewer
        self.soft = False  # what positions of the open block show may be mixtures (``SamplerTraits.soft``)

    @property
    def rows(self) -> int:
        """B."""
        return self.kept.rows

    @property
    def length(self) -> int:
        """L."""
        return self.kept.length

    @property
    def stores(self) -> list[KeyValues | None]:
        """Keys and values of each layer; None before its first forward."""
        return self.kept.stores

    def remembers(self, canvas: Canvas) -> State:
        """What the policy remembers of the rows of ``canvas`` [B] before their first forward."""
        return {}

    def plan(self, canvas: Canvas, blocks: BlockState, next_positions: Tensor, state: State) -> ForwardPlan:
        """Plan the next forward of ``canvas`` [B]. ``next_positions`` [B, L]: what the sampler said it will commit
        next, numbered from 1 (0: not next). ``ForwardPlan.state`` is ``state`` with its changed entries; rows that
        wait (not ``blocks.active``) keep theirs."""
        raise NotImplementedError

    def widths(self, plan: ForwardPlan) -> list[Tensor]:
        """What a host that fixes shapes must know of the forward of ``plan`` [B]: how many columns each row computes
        [B], and further such numbers [B] that the policy asks for."""
        return [plan.columns.sum(1)]

    def max_queries(self, host_views: Sequence[HostView], width: int) -> tuple[int, ...]:
        """The most columns of each row that the coming forward computes, from what a host that reads late knows of the
        rows that have at most ``width`` open columns each (caches with ``bounds_late`` only)."""
        raise NotImplementedError

    def counts(self, canvas: Canvas, blocks: BlockState, next_positions: Tensor, state: State) -> list[Tensor]:
        """What a host that reads late must know besides, for ``max_queries``: numbers [B] of the rows as they are after
        a turn."""
        return []

    def most(self, host_views: Sequence[HostView]) -> tuple[int, ...]:
        """What bounds the further numbers of ``widths`` in the coming forward of such a host."""
        return ()

    def begin(self, plan: ForwardPlan, candidates: Canvas, owner: Owner) -> ForwardPass:
        """Prepare the forward of ``candidates`` [N] by their ``plan`` [N], and return it with its calls."""
        raise NotImplementedError

    def memory(self, forward: ForwardPass, call: Call) -> Memory:
        """What the layers exchange keys and values with during one call of the forward."""
        raise NotImplementedError

    def cost(self, forward: ForwardPass, scored_rows: Tensor) -> ForwardCost:
        """What the forward computed, per candidate and layer. scored_rows [N]: how many rows the head ran on."""
        return forward.cost(scored_rows)

    def keep(self, forward: ForwardPass, candidates: Tensor, state: State) -> State:
        """Go on with these ``candidates`` [B]: keep their columns, and drop those of the others. Returns what the
        policy remembers of the rows after the forward."""
        return state

    def after_scores(self, state: State, scores: Scores) -> State:
        """What the policy remembers after a forward that said ``scores`` [B, L], before anything is committed."""
        return state

    def move(self, reshape: Reshape, state: State) -> State:
        """What the policy remembers of the rows [B], whose columns are now those of ``reshape``. What the session keeps
        by column moves with them, or is forgotten. Only caches whose traits say that they follow are asked."""
        raise TypeError(f"{type(self).__name__} does not follow columns that move.")

    def select(self, rows: Tensor) -> Self:
        """Let all rows but the given ones [b], ascending, leave. Changes the session in place, and returns the one to
        go on with."""
        self.kept.select(rows)
        return self

    def join(self, fresh: Self) -> Self:
        """Let the rows of ``fresh``, which has had no forward yet, follow this session's. Changes the session in place,
        takes over what ``fresh`` holds, and returns the one to go on with."""
        self.kept.join(fresh.kept)
        self.even = False
        return self

    def graph_key(self) -> tuple[Hashable, ...]:
        """What the host knows that decides which operations a forward takes, and where its tensors are."""
        return self.even, self.gapless, *self.kept.key()

    def apart(self) -> Self:
        """The same session on the same tensors, which another decode may use: what a recording in two parts holds."""
        same = copy(self)
        same.kept, same.row_numbers = self.kept.apart(), copy(self.row_numbers)
        return same

    def final(self, state: State) -> tuple[Tensor, Tensor]:
        """Tokens [B, L] as the last planned forward has them, and the columns [B, L] whose keys and values stay as long
        as these do, those included that it computes (policies that share)."""
        raise NotImplementedError


def _lack(need: Need, traits: CacheTraits) -> str:
    """The first thing of a need that a cache does not serve."""
    at_open = need.first_forward_only and traits.scores_all_at_open
    if need.region not in (*traits.regions, "before") and not at_open:
        return "region"
    if need.committed and not traits.committed:
        return "committed"
    if not traits.shadows and any(read.extra_queries for read in need.reads):
        return "shadows"
    return "attention" if not traits.exposes_attention and any(read.reads_attention for read in need.reads) else ""


def _refusal_words(c: Selection, lack_of_need: str) -> dict[str, str] | None:
    """The words of a refusal, if ``lack_of_need`` is the first thing of the first need that the cache does not
    serve."""
    for need in c.needs:
        if lack := _lack(need, c.part.traits):
            when = "in the forward that opens a block" if need.first_forward_only else "in every forward"
            return {"region": need.region, "when": when} if lack == lack_of_need else None
    return None


class Cache:
    """Base of all policies. Order of calls: ``start`` once for a batch.

    ``traits`` declare what a policy supports; what it does not declare it counts as not supporting.
    """

    traits: CacheTraits
    clashes: ClassVar[tuple[Clash, ...]] = (
        Mismatch(lambda c: _refusal_words(c, "region"),
                 "{cache} computes only the open blocks in most forwards, but a chosen part reads the region "
                 "{region:value} {when:value}."),
        Mismatch(lambda c: _refusal_words(c, "committed"),
                 "{cache} computes masked positions, not the committed ones that a chosen part reads."),
        Mismatch(lambda c: _refusal_words(c, "shadows"),
                 "{cache} has no room for the extra queries of {sampler}."),
        Mismatch(lambda c: _refusal_words(c, "attention"),
                 "{sampler} reads attention weights, and {cache} does not hold the keys that they are made of, or does "
                 "not attend with every row."),
        Mismatch(lambda c: c.does.soft is not None and not c.part.traits.soft,
                 "{sampler} shows mixtures of tokens and the mask, which change while the canvas does not, and {cache} "
                 "keeps what it computed of the open block."),
        Mismatch(lambda c: c.part.traits.verifies and not c.does.verifies,
                 "{cache} verifies drafts, and {sampler} makes none."),
        Mismatch(lambda c: c.does.verifies != c.part.traits.verifies,
                 "{cache} has no forward that verifies what {sampler} drafts."),
        Mismatch(lambda c: c.does.branches and not c.part.traits.branches,
                 "{cache} cannot share its rows among the several candidates of {sampler}."),
        Mismatch(lambda c: c.attention.name not in c.part.traits.kinds and kinds_phrase(c.part.traits.kinds),
                 "{cache} is for models with {what:value} attention; this one is {kind:value}."),
    )  # fmt: skip
    shares = False  # what ``Session.final`` says of its columns may be taken over by other requests

    def __init_subclass__(cls) -> None:
        declared(cls, "CacheTraits")

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> Session:
        """Open a session for the rows of ``canvas`` [B]. shrinks: the end-of-text policy may cut columns off."""
        raise NotImplementedError

    def kept(self) -> tuple[Kept, ...]:
        """What its sessions keep of every layer."""
        return LAYER_KEYS, LAYER_VALUES

    def slots(self, columns: int, open_columns: int, config: ModelConfig) -> int:
        """How many slots a row of ``columns`` has, of which at most ``open_columns`` are open (policies that
        keep by slot)."""
        return 0

    def kept_numbers(self, columns: int, open_columns: int, config: ModelConfig) -> int:
        """How many numbers of the model's kind such a row keeps in all layers. A server counts them before it lets the
        row join others."""
        slots = self.slots(columns, open_columns, config)
        return sum(
            tensor.numbers(tensor.shape(config, layer, 1, columns + 1 if tensor.by == "column" else slots))
            for tensor in self.kept()
            for layer in range(tensor.from_layer, config.layers)
        )

    def needs(self) -> tuple[Need, ...]:
        """What must be scored for the policy itself, where its forwards compute it. A policy with ``branches`` has no
        needs."""
        return ()

    def warning(self, setting: Setting) -> str | None:
        """Why the policy works in a setting but may do harm: a sentence for the user. None: no objection."""
        return None
