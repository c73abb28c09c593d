"""What the parts of a decode exchange in a turn. Read ``dllm/loop/denoise.py`` first: it shows in which order.

    candidates, blocks -> ForwardPlan (cache) -> Scores, ForwardCost (network and head) -> View -> Step (sampler)
                       -> candidates, blocks (end-of-text policy, block schedule) -> Turn

Every tensor leads with the row. Letters: B rows, N candidates of them (N = B for most samplers), L columns of the
canvas, V tokens of the vocabulary. All types are frozen: a change makes a new value.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from dllm.common.rowwise import Owner, Rowwise
from dllm.contract.beside import DraftPlaces
from dllm.contract.canvas import Canvas
from dllm.contract.constrained import Reproposer
from dllm.contract.readouts import Readout
from dllm.contract.shapes import Shapes
from dllm.contract.shared_values import Shared
from dllm.contract.step import Mixture, State, Step

_F = TypeVar("_F")


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
    # token now on the canvas (where a draft is beside a mask: the draft's); likeliest: the likeliest token, where
    # ``token`` is a draw; own: log-probability in nats of the proposal under the model alone, at temperature 1
    # (own_likeliest: of the likeliest token); drawn: under what it was drawn from, as temperature, filters and a
    # constraint left it (0: nothing is drawn; inf: drawn with others); papers: top-1, top-2 probability, margin,
    # verification confidence
    statistics: dict[str, Tensor] = field(default_factory=dict)
    readings: dict[Readout[Any], Any] = field(default_factory=dict)  # what the other readouts found, see ``of``
    # proposals again among fewer tokens, and all logits (None: no row is under a constraint, and none were asked for)
    repropose: Reproposer | None = None
    # [N, L] numbers of the drafts that lay in the forward, from 1, 0 elsewhere (None: there were none); papers: draft
    # tokens
    drafts: Tensor | None = None

    def statistic(self, name: str) -> Tensor:
        """A statistic [N, L]. AssertionError for one that no part declared in its needs."""
        assert name in self.statistics, f"statistic {name!r} was read but not declared in any need"
        return self.statistics[name]

    def of(self, readout: Readout[_F]) -> _F:
        """What a readout found. AssertionError for one that no part declared in its needs."""
        return readout.taken(self.statistics, self.readings)


@dataclass(frozen=True)
class BlockState(Rowwise):
    """Where the blocks of each row stand. Columns and counts are int64. In papers: block index."""

    shared: ClassVar[tuple[str, ...]] = ("lookahead", "alone", "shapes")

    begin: Tensor  # [B] first column of the current block; papers: block start
    end: Tensor  # [B] the column after its last; papers: block end
    open_end: Tensor  # [B] the column after the last open block (= ``end`` without lookahead)
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
    alone: bool  # the host knows that the current block is the only open one, in every turn
    shapes: Shapes  # how wide tensors may be

    def resized(self, canvas: Canvas, end: Tensor, open_end: Tensor) -> BlockState:
        """The same blocks with other ends. Their masks are computed here once, not in every turn."""
        behind = canvas.columns >= self.begin[:, None]
        in_block = in_open = behind & (canvas.columns < end[:, None])
        if not self.alone:
            in_open = behind & (canvas.columns < open_end[:, None])
        masks = (canvas.undecided & in_block).sum(1)
        return replace(self, end=end, open_end=open_end, masks=masks, in_block=in_block, in_open=in_open)

    def closed(self, rows: Tensor | None) -> BlockState:
        """The same with ``rows`` [B] closed: none of their positions is open (None: no row is closed)."""
        if rows is None:
            return self
        out = rows[:, None]
        in_block = self.in_block & ~out
        return replace(self, in_block=in_block, in_open=in_block if self.alone else self.in_open & ~out)

    def moved(self, rows: Tensor, new: BlockState) -> BlockState:
        """``new`` in ``rows`` [B], and these elsewhere. The numbers are chosen as one tensor: three launches fewer,
        unless a compiler makes one launch of them all."""
        names = ("begin", "end", "open_end", "index", "masks", "forwards")
        pairs = [(getattr(new, name), getattr(self, name)) for name in names]
        if torch.compiler.is_compiling():
            mixed = [torch.where(rows, *pair) for pair in pairs]
        else:
            theirs, ours = (torch.stack(each) for each in zip(*pairs, strict=True))
            mixed = list(torch.where(rows, theirs, ours).unbind())
        numbers: dict[str, Any] = dict(zip(names, mixed, strict=True))
        in_block = in_open = torch.where(rows[:, None], new.in_block, self.in_block)
        if not self.alone:
            in_open = torch.where(rows[:, None], new.in_open, self.in_open)
        return replace(self, **numbers, in_block=in_block, in_open=in_open)

    def full(self, candidates: Canvas, owner: Owner) -> Tensor:
        """Candidates [N] with nothing left to decide in the current block of their row."""
        return ~(candidates.undecided & owner.per_candidate(self.in_block)).any(1)

    def update(self, new: BlockState) -> BlockState:
        """``new`` in the active rows; those that wait stay as they are."""
        return self.shapes.update(self.active, new, self)

    def after_forward(self) -> BlockState:
        """After one more forward of the active rows."""
        more = self.active if self.shapes.waits else 1
        return replace(self, forwards=self.forwards + more, turn=self.turn + more)

    @property
    def opened(self) -> Tensor:
        """Rows whose block opened just now [B]: it has had no forward, and their full waiting time is still ahead. Not
        asked where the host reads late and rows do not wait for it."""
        shapes = self.shapes
        if shapes.waits:
            return self.host_wait == shapes.open_delay if shapes.open_delay else self.done
        return self.forwards == 0

    def after_turn(self, before: BlockState) -> BlockState:
        """After the blocks ``before`` have advanced to these: who takes part in the coming turn."""
        if not self.shapes.waits:
            return self
        if not self.shapes.open_delay:
            return replace(self, active=~self.done)
        opened = self.index != before.index
        if self.shapes.open_delay == 1:
            return replace(self, host_wait=opened.long(), active=~(opened | self.done))
        wait = torch.where(opened, self.shapes.open_delay, (self.host_wait - 1).clamp(min=0))
        return replace(self, host_wait=wait, active=(wait == 0) & ~self.done)


@dataclass(frozen=True)
class View:
    """What a sampler sees. In papers: state s, observation."""

    canvas: Canvas  # [B] the canvas; papers: x
    scores: Scores  # [B] its scores
    blocks: BlockState  # where the blocks stand
    # [B, L] what the rule may commit: masked, in an open block, and committable; papers: eligible positions
    open: Tensor
    # [B, L] what the cache's plan commits automatically, with the proposals (None: the host knows that nothing is)
    forced: Tensor | None
    editable: Tensor  # [B, L] decided positions of the current block whose token an editing rule may replace
    active: Tensor  # [B] rows for which the rule is called: something is open or editable, and nothing forced
    owner: Owner  # one candidate for each row
    shared: Shared  # what all rows share, from ``Sampler.shared``

    @staticmethod
    def of(
        canvas: Canvas,
        scores: Scores,
        blocks: BlockState,
        forced: Tensor | None,
        owner: Owner,
        shared: Shared,
        edits: bool = False,
    ) -> View:
        """edits: the rule replaces tokens."""
        open_, editable = canvas.undecided & blocks.in_open & scores.committable, canvas.no_positions
        acts = open_.any(1)
        if edits:
            editable = canvas.revisable & blocks.in_block & scores.scored
            acts = acts | editable.any(1)
        if forced is not None:
            forced = forced & canvas.undecided
            acts = acts & ~forced.any(1)
        return View(canvas, scores, blocks, open_, forced, editable, acts, owner, shared)

    @property
    def forced_now(self) -> Tensor | None:
        """What is forced [B, L], where the host does not know that it is nothing."""
        return self.forced if self.forced is not None and self.blocks.shapes.any(self.forced) else None

    @property
    def forced_positions(self) -> Tensor:
        """What is forced [B, L], no position where the host knows that nothing is."""
        return self.canvas.no_positions if self.forced is None else self.forced

    @property
    def block_step(self) -> Tensor:
        """Index of this forward within the block [B], from 0; fixed schedules count by it."""
        return self.blocks.forwards - 1

    def step(
        self,
        commit: Tensor,
        *,
        tokens: Tensor | None = None,
        confidence: Tensor | None = None,
        accepted: Tensor | None = None,
        remask: Tensor | None = None,
        owner: Owner | None = None,
        state: State | None = None,
        next_positions: Tensor | None = None,
        stop: Tensor | None = None,
        edit: Tensor | None = None,
        keep_open: Tensor | None = None,
        shown: Tensor | None = None,
        mixture: Mixture | None = None,
    ) -> Step:
        """The step that commits ``commit`` [N, L]. Defaults: the proposals with their confidences (nan for other
        ``tokens``), nothing remasked, one candidate a row, no state changed, nothing announced, no row stopped, nothing
        edited, no block held, undecided positions show what they showed, and no position shows a mixture."""
        owner = owner or self.owner
        proposed, nothing = owner.per_candidate(self.scores.token), self.canvas.no_positions
        none = torch.zeros_like(self.active)
        if keep_open is not None and edit is None:
            edit = owner.per_candidate(nothing)
        if confidence is None:
            confidence = owner.per_candidate(self.scores.confidence)
            if isinstance(tokens, Tensor) and tokens.shape == proposed.shape:
                confidence = torch.where(tokens == proposed, confidence, torch.nan)
        return Step(
            commit,
            proposed if tokens is None else tokens,
            confidence,
            accepted,
            owner.per_candidate(nothing) if remask is None else remask,
            edit,
            shown,
            mixture,
            owner,
            state or {},
            nothing if next_positions is None else next_positions,
            none if stop is None else stop,
            none if keep_open is None else keep_open,
        )

    def restated(self, step: Step, **changes: Any) -> Step:
        """A step that a rule made from other scores of this view, with the confidences of this one."""
        proposed, confidence = step.owner.per_candidate(self.scores.token), self.scores.confidence
        own = torch.where(step.tokens == proposed, step.owner.per_candidate(confidence), torch.nan)
        return step.but(confidence=own, **changes)


@dataclass(frozen=True)
class ForwardPlan(Rowwise):
    """What one forward shall compute, chosen by a cache for each row independently. In papers: cache strategy."""

    shared: ClassVar[tuple[str, ...]] = ("shapes", "state")

    columns: Tensor  # [B, L] columns to compute; papers: query positions
    committable: Tensor  # [B, L] positions that may be committed from it
    # [B, L] a row with such positions commits exactly these (None: the host knows that no row has any)
    forced: Tensor | None
    # [B, x] columns (L: none) with an extra query: a mask that sees the others and every column but its own, and that
    # no ordinary query sees; papers: shadow tokens
    shadows: Tensor
    # [B, L] columns that count as keys (with several candidates: every valid one); papers: attended positions
    keys: Tensor
    shapes: Shapes  # how wide the forward may be
    state: State  # changed entries of what the policy remembers [B, ...]
    # where drafts are: in query tokens that are computed and not kept, or in their own columns (None: there are none)
    beside: DraftPlaces | None = field(default=None, kw_only=True)


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
    values: Tensor | int = 0  # [N, l] tokens whose value alone was computed
