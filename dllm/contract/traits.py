"""What parts say of themselves before any turn, for other parts to go by: what a part is, not what it is called.

Every class of a part declares its traits (``traits = SamplerTraits(...)``, ``traits = Static.traits.but(...)``), or
inherits those of the class that it extends. What a run can check is checked there (``dllm.contract.checks``).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Protocol, Self

from torch import Tensor

from dllm.common.errors import UserError
from dllm.contract.canvas import Canvas


class Traits:
    """Base of the traits of each kind of part."""

    def but(self, **changes: Any) -> Self:
        """The same traits but for ``changes``."""
        return replace(self, **changes)  # type: ignore[type-var]


def declared(cls: type, kind: str, *methods: str) -> None:
    """Raise UserError for a class of a part that declares no traits: it inherits none, or it does otherwise than the
    class it extends in one of the ``methods`` that its traits speak of; and for one that refuses by a method."""
    own = vars(cls)
    if "check" in own:
        raise UserError(f"{cls.__name__} defines check, which nothing calls: write clashes = (Clash(...), ...).")
    if "traits" in own or (hasattr(cls, "traits") and not set(methods) & own.keys()):
        return
    names = ", ".join(entry.name for entry in fields(TRAITS[kind]))
    raise UserError(f"{cls.__name__} declares no traits: write traits = {kind}(...) in the class ({names}).")


@dataclass(frozen=True)
class Soft:
    """Which mixtures a rule says that positions of the open block show. In papers: soft tokens, continuous masks."""

    # ``decided`` positions, as long as they hold the likeliest token of their mixture, or ``undecided`` ones
    at: Literal["decided", "undecided"]
    tokens: int  # how many tokens a mixture has beside the mask
    restores_norm: bool = False  # an embedding is stretched to the mean of its parts' norms, weighted as they are


@dataclass(frozen=True, kw_only=True)
class SamplerTraits(Traits):
    """What other parts must know of a rule."""

    stateless: bool  # it carries nothing but parameters from turn to turn
    deterministic: bool  # the same scores give the same step in every turn
    by_confidence: bool  # it commits positions of confidence -1 (``sampling.eos_last``) only when no other is open
    # ``confidence``, or a statistic such as ``entropy`` (lowest first): of the open positions of a block it commits the
    # first in that order, however many (empty: it goes by something else as well)
    ranks_by: str = ""
    thresholds: bool = True  # it compares confidences with numbers, not only with each other
    revocable: bool = False  # it may remask
    # it is for models of uniform noise: it draws every undecided position of the open blocks again in every turn, at a
    # temperature of its own, and says what they show next
    renoises: bool = False
    soft: Soft | None = None  # positions of the open block may show mixtures, and which (None: tokens and masks alone)
    edits: bool = False  # it may replace tokens of the current block, and keep the block open when it is full
    # it may offer several candidates; the first has every mask of the others, because caches plan by it
    branches: bool = False
    plans_ahead: bool = False  # its step says what it will commit in its next turn
    # its step announces the columns of a span, among which its next turn will commit (``next_positions``)
    spans: bool = False
    # what it says so are drafts, to be verified by a forward in which they are ``beside`` their masks, or ``in_place``:
    # in their own columns, as if they were decided (empty: it makes none)
    verifies: Literal["", "beside", "in_place"] = ""
    tempered: bool = False  # confidences come from the tempered distribution (Dream's convention)
    # its step asks the device, such as how many steps there are, so a turn with it cannot be recorded
    syncs: bool = False
    fixed_order: bool = False  # it commits the positions that a plan names, without regard to their scores
    left_to_right: bool = False  # that plan goes from left to right, so that no mask is ever asked
    commits_ahead: bool = False  # a turn may commit what only later turns of the rule inside would
    # what it commits: ``proposed``, the forward's proposals; ``reweighed``, the likeliest tokens of logits that it has
    # changed; ``given``, tokens from elsewhere
    tokens: Literal["proposed", "reweighed", "given"] = "proposed"
    lookahead: int = 0  # how many blocks are open beyond the current one
    # what it decides in a block depends on the columns before it, or on what it remembers of earlier blocks
    beyond_block: bool = False
    # how many turns in a row it may leave a row as it is, although something is open, or a full block is kept open
    patience: int = 16


@dataclass(frozen=True, kw_only=True)
class BlocksTraits(Traits):
    """What other parts must know of a block schedule."""

    slides: bool  # a row has one block, which moves after every turn; no other opens, and it never closes
    rolls_back: bool  # it may remask what earlier turns committed
    one_at_a_time: bool = True  # without lookahead, the current block is the only open one
    # where a block ends follows from where it begins, so that it is open in a row whose length has changed
    follows: bool = False


@dataclass(frozen=True, kw_only=True)
class CacheTraits(Traits):
    """What a cache supports. A trait that it does not declare is not supported."""

    regions: frozenset[str] = frozenset({"block"})  # what every forward computes, see ``Need``
    scores_all_at_open: bool = False  # the forward that opens a block computes all regions
    committed: bool = False  # forwards compute the open blocks' committed positions too
    branches: bool = False  # several candidates of a row
    shadows: bool = False  # extra queries that are in for committed tokens
    # how it verifies what a sampler drafts (``SamplerTraits``); it serves no other sampler
    verifies: Literal["", "beside", "in_place"] = ""
    # every column that is computed attends to keys that the cache holds, and its memory shows both (``Memory``)
    exposes_attention: bool = False
    # names of the kinds of attention that it serves (``dllm.models.network.visibility``)
    kinds: frozenset[str] = frozenset({"full"})
    attends_all: bool = False  # every forward attends to every valid column
    # every forward computes all of the open blocks, which may show mixtures; nothing rests on what those left once the
    # block has closed
    soft: bool = False
    exact: bool = False  # scores are those of a forward without a cache, but for rounding
    bounded_shapes: bool = False  # neither its plans nor its sessions ask the device: the host knows bounds alone
    # its memory does more in a layer than to keep keys and values, so a forward is neither compiled nor recorded alone
    acts_in_layers: bool = False
    one_call: bool = False  # all rows run in one call: what each of them computes shows only inside
    reads_weights: bool = False  # its memory computes attention weights, under a mask of the keys: a count does not do
    # how a forward goes on depends on what the host reads in it (``Memory.answer``): turns are recorded in two parts
    asks: bool = False
    facts: int = 0  # how many of the last numbers of ``Session.widths`` bound no shape, but tell the host what it asks
    bounds_late: bool = False  # the host bounds its plans turns ahead, by ``max_queries``, and may read reports late
    # these bounds rest on what is masked: they hold where rules alone commit, and take nothing back
    bounds_by_masks: bool = False
    # such a host must know which blocks have just opened, because their first forward computes more
    full_on_open: bool = True
    closes: bool = False  # a decided block takes a forward more, which computes it whole and commits nothing
    follows: bool = False  # it keeps nothing by column, or moves it when the columns of a row do (``Session.move``)
    shares: bool = False  # first columns that a request has computed serve others (``Session.final``)
    # rows whose first forwards are the same run one of them: nothing but what the session keeps tells them apart
    leads: bool = False
    # under tensor parallelism, where a rank holds some of the heads: ``local``, what it finds does not depend on heads;
    # ``summed``, it adds up over ``config.ranks`` what it reads of them (empty: not said, so it is refused there)
    heads: Literal["", "local", "summed"] = ""

    def but(self, **changes: Any) -> Self:
        """The same traits but for ``changes``. What acts in layers says of its own how it reads heads, and leads."""
        own = {"heads": "", "leads": False} if changes.get("acts_in_layers") else {}
        return super().but(**(own | changes))


@dataclass(frozen=True, kw_only=True)
class EosTraits(Traits):
    """What other parts must know of an end-of-text policy."""

    # it acts on tokens of a block that is still open, which an editing rule may replace, so no such rule goes with it
    at_once: bool
    shrinks: bool  # it may cut columns off the canvas, so no cache rests on all of them
    # it decides open positions of a row that goes on, so no rule that drafts whole turns goes with it: the drafts do
    # not include it
    fills: bool
    syncs: bool = False  # it asks the device, so a turn with it cannot be recorded
    writes: bool = False  # it may commit a token in a block that has just opened
    leaves_rows: bool = False  # it does nothing, so that another part may say how long rows are


@dataclass(frozen=True, kw_only=True)
class LengthTraits(Traits):
    """What other parts must know of a part that says how long a row is."""

    changes: bool  # it may change the length of a row in a turn
    moves: bool = False  # it may insert masks, so that what follows them moves
    takes_back: bool = False  # it may cut decided text off, so that nothing is final before the row is done
    probes: bool = False  # it tries lengths before the first turn, and needs a gap of unknown size


TRAITS: dict[str, Any] = {
    kind.__name__: kind for kind in (SamplerTraits, BlocksTraits, CacheTraits, EosTraits, LengthTraits)
}


class Schedule(Protocol):
    """What other parts may ask of a block schedule (``dllm.parts.blocks.base.Blocks``)."""

    @property
    def traits(self) -> BlocksTraits: ...

    @property
    def fixed_length(self) -> int | None: ...

    @property
    def per_request(self) -> tuple[str, ...]: ...

    def count(self, canvas: Canvas) -> Tensor | None: ...

    def widest(self, length: int) -> int: ...


class Rule(Protocol):
    """What other parts may ask of a sampler (``dllm.parts.samplers.base.Sampler``)."""

    @property
    def traits(self) -> SamplerTraits: ...
