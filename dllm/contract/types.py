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
    """What a part needs scored: a region of the canvas, and which statistics besides token and confidence.

    region: ``block`` (the open blocks), ``suffix`` (from the block's start on), ``answer`` (all of it, or its columns
    ``span``), ``ahead`` (columns ``span`` from the block's start on, or ``ratio`` of the answer's length), ``before``
    (what a forward computes up to the open blocks' end). committed: score committed and given positions, too. logits:
    keep all logits. lookup: make ``Scores.lookup``, for the logits of a few tokens. opening: only in the forward that
    opens a block. attention: make ``Scores.attention``.
    """

    region: str = "block"
    committed: bool = False
    span: tuple[int, int] | None = None
    ratio: float | None = None
    statistics: frozenset[str] = field(default_factory=frozenset)
    logits: bool = False
    opening: bool = False
    lookup: bool = False
    attention: AttentionNeed | None = None

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
            return origin, origin + (self.ratio * (canvas.length - canvas.start)).floor().long()
        if self.span is None:
            return origin, canvas.end
        return origin + self.span[0], origin + self.span[1]


@dataclass(frozen=True)
class Scores:
    """What one forward says about each position, laid out by column [N, L]; zero where ``scored`` is False.

    token: the proposal; confidence: its probability (float64; -1 for end-of-text proposals under
    ``sampling.eos_last``). committable: scored, and the cache's plan allows its commit.
    statistics: those that some part asked for. first: probability of the likeliest token; second: of the runner-up;
    gap: difference of the two largest logits; entropy: in nats; logsumexp: of the logits; current: log-probability of
    the token now on the canvas; shadow: the same from an extra row that does not see it (columns of the block).
    Where a draft lay beside a mask, ``current`` is the draft's. drafts: numbers of these drafts from 1, 0 elsewhere
    (None: there were none). logits, lookup, attention: None if no part asked for them. again: None if no row is under a
    constraint.
    """

    scored: Tensor
    token: Tensor
    confidence: Tensor
    committable: Tensor
    statistics: dict[str, Tensor] = field(default_factory=dict)
    logits: Logits | None = None
    lookup: Lookup | None = None
    again: Reproposer | None = None
    attention: AttentionWeights | None = None
    drafts: Tensor | None = None

    def stat(self, name: str) -> Tensor:
        """A statistic [N, L]. AssertionError for one that no part declared in its needs."""
        assert name in self.statistics, f"statistic {name!r} was read but not declared in any need"
        return self.statistics[name]


@dataclass(frozen=True)
class BlockState(Rowwise):
    """Where the blocks of each row stand. Columns and counts are int64 [B]; masks are [B, L].

    begin, end: first column of the current block, and the column behind its last; in_block: its columns. open_end: end
    of the last open block (= end without lookahead); in_open: the columns of all open blocks. number: index of the
    current block. masks: masks that it had when it opened. forwards: forwards that it has had, the one under way
    included. turn: forwards of the whole row. done [B]: nothing is left to decide. held: turns that the row still waits
    for the host to know that its block has opened. active [B]: takes part in the coming turn. own: the schedule's
    parameters of each row [B]. lookahead: further blocks that are open. shapes: how wide tensors may be.
    """

    shared: ClassVar[tuple[str, ...]] = ("lookahead", "shapes")

    begin: Tensor
    end: Tensor
    open_end: Tensor
    number: Tensor
    masks: Tensor
    forwards: Tensor
    turn: Tensor
    done: Tensor
    held: Tensor
    active: Tensor
    in_block: Tensor
    in_open: Tensor
    own: dict[str, Tensor]
    lookahead: int
    shapes: Shapes

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
        return (self.forwards == 0) & (self.held == self.shapes.hold)

    def after_turn(self, before: BlockState) -> BlockState:
        """After the blocks ``before`` have advanced to these: who takes part in the coming turn."""
        if not self.shapes.waits:
            return self
        held = torch.where(self.number != before.number, self.shapes.hold, (self.held - 1).clamp(min=0))
        return replace(self, held=held, active=(held == 0) & ~self.done)


@dataclass(frozen=True)
class View:
    """What a sampler sees: the canvas [B], its scores, where the blocks stand, and three sets of positions [B, L].

    open: what the rule may commit: masked, in an open block, and committable. forced: what the cache's plan commits by
    itself, with the proposals. editable: decided positions of the current block whose token an editing rule may
    replace; for other rules there are none. active [B]: rows for which the rule is called (something is open or
    editable, nothing is forced). owner: one candidate for each row.
    """

    canvas: Canvas
    scores: Scores
    blocks: BlockState
    open: Tensor
    forced: Tensor
    editable: Tensor
    active: Tensor
    owner: Owner

    @staticmethod
    def of(
        canvas: Canvas, scores: Scores, blocks: BlockState, forced: Tensor, owner: Owner, edits: bool = False
    ) -> View:
        """edits: the rule replaces tokens."""
        open_, editable = canvas.undecided & blocks.in_open & scores.committable, canvas.nothing
        acts = open_.any(1)
        if edits:
            editable = canvas.revisable & blocks.in_block & scores.scored
            acts = acts | editable.any(1)
        if forced is not canvas.nothing:
            forced = forced & canvas.undecided
            acts = acts & ~forced.any(1)
        return View(canvas, scores, blocks, open_, forced, editable, acts, owner)

    @property
    def may_force(self) -> bool:
        """Whether anything is forced, as far as the host knows."""
        return self.forced is not self.canvas.nothing and self.blocks.shapes.any(self.forced)

    @property
    def index(self) -> Tensor:
        """Index of this forward within the block [B], from 0; fixed schedules count by it."""
        return self.blocks.forwards - 1

    def step(
        self, commit: Tensor, *, tokens: Tensor | None = None, confidence: Tensor | None = None,
        accepted: Tensor | None = None, remask: Tensor | None = None, owner: Owner | None = None,
        state: State | None = None, announced: Tensor | None = None, stop: Tensor | None = None,
        edit: Tensor | None = None, hold: Tensor | None = None,
    ) -> Step:  # fmt: skip
        """The step that commits ``commit`` [N, L]. Defaults: the proposals with their confidences (nan for other
        ``tokens``), nothing remasked, one candidate a row, no state changed, nothing announced, no row stopped, nothing
        edited, no block held."""
        owner = owner or self.owner
        proposed, nothing, none = owner.each(self.scores.token), self.canvas.nothing, torch.zeros_like(self.active)
        if hold is not None and edit is None:
            edit = owner.each(nothing)
        if confidence is None:
            confidence = owner.each(self.scores.confidence)
            if isinstance(tokens, Tensor) and tokens.shape == proposed.shape:
                confidence = torch.where(tokens == proposed, confidence, torch.nan)
        return Step(
            commit, proposed if tokens is None else tokens, confidence, accepted,
            owner.each(nothing) if remask is None else remask, owner, state or {},
            nothing if announced is None else announced, none if stop is None else stop, edit,
            none if hold is None else hold,
        )  # fmt: skip


@dataclass(frozen=True)
class Step:
    """What a sampler decides for N candidates of B rows; ``View.step`` fills in what a rule leaves out.

    commit [N, L]: positions to fix. tokens [N, L]: what to fix them to. confidence [N, L]: of these tokens (nan: not
    known). accepted [N, L]: commits that the rule itself accepted; the rest are forced (None: a schedule, which judges
    no single position). remask [N, L]: commits to undo first. owner: the row of each candidate. state: changed entries
    of the sampler's state. announced [B, L]: what it will commit in its next turn, numbered from 1 in its order (0: not
    then). stop [B]: rows that are finished now, whatever their blocks still wait for. edit [N, L]: decided positions to
    fix anew, to ``tokens`` (None: the rule never edits). They are at no time masked. hold [B]: rows whose block must
    not close although it may be full: an editing rule sees it once more, and must bound how often.
    """

    commit: Tensor
    tokens: Tensor
    confidence: Tensor
    accepted: Tensor | None
    remask: Tensor
    owner: Owner
    state: State
    announced: Tensor
    stop: Tensor
    edit: Tensor | None
    hold: Tensor

    @property
    def written(self) -> Tensor:
        """Positions that get a token [N, L]: commits and edits."""
        return self.commit if self.edit is None else self.commit | self.edit


@dataclass(frozen=True)
class ForwardPlan(Rowwise):
    """What one forward shall compute, chosen by a cache for each row by itself. Masks are [B, L].

    columns: those to compute. committable: positions that may be committed from it. forced: a row with such positions
    commits exactly these. shadows [B, x]: columns (L: no column) that get an extra row: a mask that sees the others and
    every column but its own; no ordinary row sees it. keys: columns that count as keys (with several candidates: every
    valid one). shapes: how wide the forward may be. state: changed entries of what is remembered [B, ...]. beside: rows
    that are computed and not kept (None: no row of the batch has any).
    """

    shared: ClassVar[tuple[str, ...]] = ("shapes", "state")

    columns: Tensor
    committable: Tensor
    forced: Tensor
    shadows: Tensor
    keys: Tensor
    shapes: Shapes
    state: State
    beside: Beside | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class ForwardCost(Rowwise):
    """What one forward of N candidates computed, per layer (l = layers, or 1 where all layers are alike).

    queries [N, l]: rows asked for. keys [N, l]: rows that each of them attends to. refreshed [N, l]: rows computed
    because the layer computes the whole canvas again. computed [N, l]: rows that ran, with padding. scored [N]: rows
    that the head ran on. copies: how often a row has keys of its own (2 under guidance). values [N, l]: values alone.
    """

    shared: ClassVar[tuple[str, ...]] = ("copies",)

    queries: Tensor
    keys: Tensor
    refreshed: Tensor
    computed: Tensor
    scored: Tensor
    copies: int = 1
    values: Tensor | int = 0


@dataclass(frozen=True)
class Ledger(Rowwise):
    """What is written down of every row while it decodes [B, ...]. fixed [B, L]: the turn after which each column
    kept its token (0: none). guess, sure [B, L]: what the last forward that scored a masked column, or one that it
    edited, proposed there, and its confidence. The rest are sums over its forwards, float64; [B, l] is per layer, as in
    ``ForwardCost``. queries, computed, values [B, l]; pairs [B, l]: queries times keys; read [B, l]: queries and keys
    of all copies; scored [B]; idle [B]: forwards in which it waited.
    """

    fixed: Tensor
    guess: Tensor
    sure: Tensor
    queries: Tensor
    computed: Tensor
    pairs: Tensor
    read: Tensor
    scored: Tensor
    idle: Tensor
    values: Tensor

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
            masked = masked | step.owner.one(step.edit)
        told = masked & scores.scored
        return Ledger(
            fixed=torch.where(masked, view.blocks.turn[:, None], self.fixed),
            guess=torch.where(told, scores.token, self.guess), sure=torch.where(told, scores.confidence, self.sure),
            queries=add(self.queries, queries), computed=add(self.computed, cost.computed),
            pairs=add(self.pairs, queries * keys), read=add(self.read, queries + cost.copies * keys),
            scored=add(self.scored, cost.scored), idle=self.idle + (~view.blocks.active).double(),
            values=self.values if isinstance(cost.values, int) else add(self.values, cost.values),
        )  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """One forward and the step that followed it, for the rows still unfinished.

    tried [M]: the candidates that the forward ran on. tried_owner: the row of each. cost: what was computed for each.
    chosen [B]: the candidate with which each row went on. view: what the sampler saw of these. step: its decision.
    candidates [N]: the canvases after the step and the end-of-text policy. blocks: where the blocks stand then.
    ledger [B]: what is written down of the rows by now. steering [B]: the constraints that they are under; marks: what
    these changed. finished: rows that the host knows to be complete, so that they leave. Their candidates are alike:
    read the first.

    Its tensors last until the next turn: a recorded turn writes to the same ones. Whoever keeps them copies them.
    """

    tried: Canvas
    tried_owner: Owner
    chosen: Tensor
    cost: ForwardCost
    view: View
    step: Step
    candidates: Canvas
    blocks: BlockState
    ledger: Ledger
    steering: Constrained
    marks: ConstraintMarks
    finished: tuple[int, ...]

    @property
    def canvas(self) -> Canvas:
        """The canvases [B] before the step."""
        return self.view.canvas

    @property
    def active(self) -> Tensor:
        """Rows [B] that took part; the others waited."""
        return self.view.blocks.active
