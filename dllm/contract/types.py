"""What the parts of a decode exchange in a turn. Read ``dllm/loop/denoise.py`` first: it shows in which order.

    candidates, blocks -> ForwardPlan (cache) -> Scores, ForwardCost (network and head) -> View -> Step (sampler)
                       -> candidates, blocks (end-of-text policy, block schedule) -> Turn

Every tensor leads with the row. Letters: B rows, N candidates of them (N = B for most samplers), L columns of the
canvas, V tokens of the vocabulary. All types are frozen: a change makes a new value.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from dllm.common.rowwise import Owner, Rowwise
from dllm.contract.attention import AttentionNeed, AttentionWeights
from dllm.contract.beside import Beside
from dllm.contract.canvas import Canvas
from dllm.contract.constrained import Constrained, ConstraintMarks, Reproposer
from dllm.contract.logits import Logits, Lookup
from dllm.contract.shapes import Shapes
from dllm.errors import UserError, in_choices

REGIONS = ("block", "suffix", "answer", "ahead", "before")
State = dict[str, Tensor]  # what a sampler or a cache remembers of its rows, by name; every tensor [B, ...]


@dataclass(frozen=True)
class Need:
    """What a part needs scored: a region of the canvas, and which statistics besides token and confidence."""

    # ``block`` (the open blocks), ``suffix`` (from the block's start on), ``answer`` (all of it, or its columns
    # ``span``), ``ahead`` (columns ``span`` from the block's start on, or ``ratio`` of the answer), ``before`` (all up
    # to the open blocks' end)
    region: str = "block"
    committed: bool = False  # score committed and given positions, too
    span: tuple[int, int] | None = None  # columns of the region, from its origin
    ratio: float | None = None  # the region's length as a share of the answer's
    # names of further statistics, see ``Scores.statistics``
    statistics: frozenset[str] = field(default_factory=frozenset)
    logits: bool = False  # keep all logits
    first_forward_only: bool = False  # only in the forward that opens a block
    lookup: bool = False  # make ``Scores.lookup``, for the logits of a few tokens
    attention: AttentionNeed | None = None  # make ``Scores.attention``

    def __post_init__(self) -> None:
        in_choices("Need.region", self.region, REGIONS)
        if isinstance(self.statistics, str):
            raise UserError(f"Need.statistics={self.statistics!r} must be a set of names: {{{self.statistics!r}}}.")
        object.__setattr__(self, "statistics", frozenset(self.statistics))

    def mask(self, canvas: Canvas, blocks: BlockState) -> Tensor:
        """The positions to score [N, L]."""
        wanted = canvas.valid if self.committed else canvas.undecided
        if self.region == "block":
            return wanted & blocks.in_open
        if self.region == "before":
            return wanted & (canvas.columns < blocks.open_end[:, None])
        low, high = self._bounds(canvas, blocks)
        return wanted & (canvas.columns >= low[:, None]) & (canvas.columns < high[:, None])

    def _bounds(self, canvas: Canvas, blocks: BlockState) -> tuple[Tensor, Tensor]:
        if self.region == "suffix":
            return blocks.begin, canvas.end
        origin = blocks.begin if self.region == "ahead" else canvas.start
        if self.ratio is not None:
            return origin, origin + (self.ratio * (canvas.initial_end - canvas.start)).floor().long()
        if self.span is None:
            return origin, canvas.end
        return origin + self.span[0], origin + self.span[1]


@dataclass(frozen=True)
class Scores:
    """What one forward says about each position, laid out by column [N, L]; zero where ``scored`` is False. In papers:
    logits, confidences."""

    scored: Tensor  # [N, L] where there are statistics
    token: Tensor  # [N, L] the proposal; papers: x0
    # [N, L] its probability, float64 (-1 for end-of-text proposals under ``sampling.eos_last``); papers: confidence,
    # `x0_p`
    confidence: Tensor
    committable: Tensor  # [N, L] scored, and the cache's plan allows its commit; papers: eligible
    # those that some part asked for. first: probability of the likeliest token; second: of the runner-up; gap:
    # difference of the two largest logits; entropy: in nats; logsumexp: of the logits; current: log-probability of the
    # token now on the canvas (where a draft lies beside a mask: the draft's); shadow: the same from an extra query
    # that does not see it; papers: top-1, top-2 probability, margin, verification confidence
    statistics: dict[str, Tensor] = field(default_factory=dict)
    logits: Logits | None = None  # None: no part asked for them; papers: logits
    lookup: Lookup | None = None  # None: no part asked for it
    repropose: Reproposer | None = None  # proposals anew among fewer tokens (None: no row is under a constraint)
    attention: AttentionWeights | None = None  # None: no part asked for it; papers: attention map
    # [N, L] numbers of the drafts that lay beside a mask, from 1, 0 elsewhere (None: there were none); papers: draft
    # tokens
    drafts: Tensor | None = None

    def statistic(self, name: str) -> Tensor:
        """A statistic [N, L]. AssertionError for one that no part declared in its needs."""
        assert name in self.statistics, f"statistic {name!r} was read but not declared in any need"
        return self.statistics[name]


@dataclass(frozen=True)
class BlockState(Rowwise):
    """Where the blocks of each row stand. Columns and counts are int64. In papers: block index."""

    shared: ClassVar[tuple[str, ...]] = ("lookahead", "shapes")

    begin: Tensor  # [B] first column of the current block; papers: block start
    end: Tensor  # [B] column behind its last; papers: block end
    open_end: Tensor  # [B] column behind the last open block (= ``end`` without lookahead)
    index: Tensor  # [B] index of the current block; papers: `num_block`
    masks: Tensor  # [B] masks that it had when it opened
    forwards: Tensor  # [B] forwards that it has had, the one under way included; papers: inner step
    turn: Tensor  # [B] forwards of the whole row; papers: global step
    done: Tensor  # [B] nothing is left to decide; papers: finished
    host_wait: Tensor  # [B] turns that the row still waits for the host to know that its block has opened
    active: Tensor  # [B] takes part in the coming turn
    in_block: Tensor  # [B, L] columns of the current block; papers: block mask
    in_open: Tensor  # [B, L] columns of all open blocks
    params: dict[str, Tensor]  # [B] each: the schedule's parameters of each row, such as its block length
    lookahead: int  # further blocks that are open
    shapes: Shapes  # how wide tensors may be

    def resized(self, canvas: Canvas, end: Tensor, open_end: Tensor) -> BlockState:
        """The same blocks with other ends. Their masks are computed here once, not in every turn."""
        behind = canvas.columns >= self.begin[:, None]
        in_block, in_open = (behind & (canvas.columns < edge[:, None]) for edge in (end, open_end))
        masks = (canvas.undecided & in_block).sum(1)
        return replace(self, end=end, open_end=open_end, masks=masks, in_block=in_block, in_open=in_open)

    def update(self, new: BlockState) -> BlockState:
        """``new`` in the active rows; those that wait stay as they are."""
        return self.shapes.update(self.active, new, self)

    def after_forward(self) -> BlockState:
        """After one more forward of the active rows."""
        one = self.active.long() if self.shapes.waits else 1
        return replace(self, forwards=self.forwards + one, turn=self.turn + one)

    @property
    def opened(self) -> Tensor:
        """Rows whose block opened just now [B]: it has had no forward, and they wait as long as they ever will."""
        return (self.forwards == 0) & (self.host_wait == self.shapes.open_delay)

    def after_turn(self, before: BlockState) -> BlockState:
        """After the blocks ``before`` have advanced to these: who takes part in the coming turn."""
        if not self.shapes.waits:
            return self
        held = torch.where(self.index != before.index, self.shapes.open_delay, (self.host_wait - 1).clamp(min=0))
        return replace(self, host_wait=held, active=(held == 0) & ~self.done)


@dataclass(frozen=True)
class View:
    """What a sampler sees. In papers: state s, observation."""

    canvas: Canvas  # [B] the canvas; papers: x
    scores: Scores  # [B] its scores
    blocks: BlockState  # where the blocks stand
    # [B, L] what the rule may commit: masked, in an open block, and committable; papers: eligible positions
    open: Tensor
    forced: Tensor  # [B, L] what the cache's plan commits automatically, with the proposals
    editable: Tensor  # [B, L] decided positions of the current block whose token an editing rule may replace
    active: Tensor  # [B] rows for which the rule is called: something is open or editable, and nothing forced
    owner: Owner  # one candidate for each row

    @staticmethod
    def of(
        canvas: Canvas, scores: Scores, blocks: BlockState, forced: Tensor, owner: Owner, edits: bool = False
    ) -> View:
        """edits: the rule replaces tokens."""
        open_, editable = canvas.undecided & blocks.in_open & scores.committable, canvas.no_positions
        acts = open_.any(1)
        if edits:
            editable = canvas.revisable & blocks.in_block & scores.scored
            acts = acts | editable.any(1)
        if forced is not canvas.no_positions:
            forced = forced & canvas.undecided
            acts = acts & ~forced.any(1)
        return View(canvas, scores, blocks, open_, forced, editable, acts, owner)

    @property
    def may_force(self) -> bool:
        """Whether anything is forced, as far as the host knows."""
        return self.forced is not self.canvas.no_positions and self.blocks.shapes.any(self.forced)

    @property
    def block_step(self) -> Tensor:
        """Index of this forward within the block [B], from 0; fixed schedules count by it."""
        return self.blocks.forwards - 1

    def step(
        self, commit: Tensor, *, tokens: Tensor | None = None, confidence: Tensor | None = None,
        accepted: Tensor | None = None, remask: Tensor | None = None, owner: Owner | None = None,
        state: State | None = None, next_positions: Tensor | None = None, stop: Tensor | None = None,
        edit: Tensor | None = None, keep_open: Tensor | None = None,
    ) -> Step:  # fmt: skip
        """The step that commits ``commit`` [N, L]. Defaults: the proposals with their confidences (nan for other
        ``tokens``), nothing remasked, one candidate a row, no state changed, nothing announced, no row stopped, nothing
        edited, no block held."""
        owner = owner or self.owner
        proposed, nothing, none = (
            owner.per_candidate(self.scores.token),
            self.canvas.no_positions,
            torch.zeros_like(self.active),
        )
        if keep_open is not None and edit is None:
            edit = owner.per_candidate(nothing)
        if confidence is None:
            confidence = owner.per_candidate(self.scores.confidence)
            if isinstance(tokens, Tensor) and tokens.shape == proposed.shape:
                confidence = torch.where(tokens == proposed, confidence, torch.nan)
        return Step(
            commit, proposed if tokens is None else tokens, confidence, accepted,
            owner.per_candidate(nothing) if remask is None else remask, owner, state or {},
            nothing if next_positions is None else next_positions, none if stop is None else stop, edit,
            none if keep_open is None else keep_open,
        )  # fmt: skip


@dataclass(frozen=True)
class Step:
    """What a sampler decides for N candidates of B rows; ``View.step`` fills in what a rule leaves out. In papers:
    action, transfer."""

    commit: Tensor  # [N, L] positions to fix; papers: `transfer_index`
    tokens: Tensor  # [N, L] what to fix them to; papers: x0
    confidence: Tensor  # [N, L] of these tokens (nan: not known)
    # [N, L] commits that the rule itself accepted; the rest are forced (None: a schedule, which judges no single
    # position)
    accepted: Tensor | None
    remask: Tensor  # [N, L] commits to undo first; papers: remask index
    owner: Owner  # the row of each candidate
    state: State  # changed entries of the sampler's state
    # [B, L] what it will commit in its next turn, numbered from 1 in its order (0: not then); papers: decoding order
    next_positions: Tensor
    # [B] rows that are finished now, whatever their blocks still wait for; papers: early commit, early exit
    stop: Tensor
    # [N, L] decided positions to fix anew, to ``tokens``, without ever being masked (None: the rule never edits);
    # papers: token-to-token
    edit: Tensor | None
    # [B] rows whose block must not close although it may be full: an editing rule sees it once more, and must bound
    # how often
    keep_open: Tensor

    @property
    def written(self) -> Tensor:
        """Positions that get a token [N, L]: commits and edits."""
        return self.commit if self.edit is None else self.commit | self.edit


@dataclass(frozen=True)
class ForwardPlan(Rowwise):
    """What one forward shall compute, chosen by a cache for each row independently. In papers: cache strategy."""

    shared: ClassVar[tuple[str, ...]] = ("shapes", "state")

    columns: Tensor  # [B, L] columns to compute; papers: query positions
    committable: Tensor  # [B, L] positions that may be committed from it
    forced: Tensor  # [B, L] a row with such positions commits exactly these
    # [B, x] columns (L: none) with an extra query: a mask that sees the others and every column but its own, and that
    # no ordinary query sees; papers: shadow tokens
    shadows: Tensor
    # [B, L] columns that count as keys (with several candidates: every valid one); papers: attended positions
    keys: Tensor
    shapes: Shapes  # how wide the forward may be
    state: State  # changed entries of what the policy remembers [B, ...]
    # query tokens that are computed and not kept (None: there are none)
    beside: Beside | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class ForwardCost(Rowwise):
    """What one forward of N candidates computed, per layer (l = layers, or 1 where all layers are alike)."""

    shared: ClassVar[tuple[str, ...]] = ("copies",)

    queries: Tensor  # [N, l] query tokens asked for; papers: computed tokens
    keys: Tensor  # [N, l] keys that each of them attends to; papers: context length
    # [N, l] query tokens computed because the layer computes the whole canvas again; papers: refreshed tokens
    refreshed: Tensor
    computed: Tensor  # [N, l] query tokens that ran, with padding
    scored: Tensor  # [N] hidden states that the head ran on
    copies: int = 1  # how often a row has keys of its own (2 under guidance)
    values: Tensor | int = 0  # [N, l] tokens of which the value alone was computed


@dataclass(frozen=True)
class Ledger(Rowwise):
    """What is recorded of every row while it decodes. Sums are float64, over all forwards of the row. In papers:
    statistics."""

    commit_turn: Tensor  # [B, L] turn after which the column kept its token (0: none)
    proposal: Tensor  # [B, L] what the last forward that scored a masked column, or one that it edited, proposed there
    confidence: Tensor  # [B, L] its confidence; papers: confidence
    queries: Tensor  # [B, l] query tokens
    computed: Tensor  # [B, l] query tokens that ran, with padding
    pairs: Tensor  # [B, l] queries times keys; papers: attention scores
    kv_tokens: Tensor  # [B, l] queries and keys of all copies
    scored: Tensor  # [B] hidden states that the head ran on
    idle: Tensor  # [B] forwards in which the row waited
    values: Tensor  # [B, l] tokens of which the value alone was computed

    @staticmethod
    def start(canvas: Canvas) -> Ledger:
        """Before the first turn."""
        blank, none = torch.zeros_like(canvas.tokens), torch.zeros_like(canvas.temperature)
        return Ledger(blank, blank, blank.double(), *(none[:, None],) * 4, none, none, none[:, None])

    def after(self, cost: ForwardCost, owner: Owner, view: View, step: Step) -> Ledger:
        """After one more turn: what its candidates [M] cost, whose row is ``owner``, what the sampler saw, and what it
        decided."""

        def add(total: Tensor, more: Tensor) -> Tensor:
            return total + owner.sum(more.double())

        queries, keys, scores, masked = cost.queries.double(), cost.keys, view.scores, view.canvas.masked
        if step.edit is not None:
            masked = masked | step.owner.per_row(step.edit)
        told = masked & scores.scored
        return Ledger(
            commit_turn=torch.where(masked, view.blocks.turn[:, None], self.commit_turn),
            proposal=torch.where(told, scores.token, self.proposal),
            confidence=torch.where(told, scores.confidence, self.confidence),
            queries=add(self.queries, queries), computed=add(self.computed, cost.computed),
            pairs=add(self.pairs, queries * keys), kv_tokens=add(self.kv_tokens, queries + cost.copies * keys),
            scored=add(self.scored, cost.scored), idle=self.idle + (~view.blocks.active).double(),
            values=self.values if isinstance(cost.values, int) else add(self.values, cost.values),
        )  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """One forward and the step that followed it, for the rows still unfinished. Its tensors last until the next turn: a
    recorded turn writes to the same ones. Whoever keeps them copies them. In papers: step, iteration."""

    tried: Canvas  # [M] candidates that the forward ran on; papers: drafts
    tried_owner: Owner  # the row of each
    chosen: Tensor  # [B] the candidate with which each row went on; papers: accepted draft
    cost: ForwardCost  # [M] what was computed for each
    view: View  # what the sampler saw of the chosen ones
    step: Step  # its decision
    candidates: Canvas  # [N] canvases after the step and the end-of-text policy; those of a finished row are alike
    blocks: BlockState  # where the blocks stand then
    ledger: Ledger  # [B] what is recorded of the rows by now
    constraints: Constrained  # the constraints that the rows are under
    marks: ConstraintMarks  # what these changed in this turn
    finished: tuple[int, ...]  # rows that the host knows to be complete, so that they leave; papers: finished sequences

    @property
    def canvas(self) -> Canvas:
        """The canvases [B] before the step."""
        return self.view.canvas

    @property
    def active(self) -> Tensor:
        """Rows [B] that took part; the others waited."""
        return self.view.blocks.active
