"""What a turn gives: the turn itself, and the ledger of what was recorded of the rows.

Letters as in ``dllm/contract/types.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from dllm.common.rowwise import Owner, Rowwise
from dllm.contract.canvas import Canvas
from dllm.contract.constrained import Constrained, ConstraintMarks
from dllm.contract.reshape import Reshape
from dllm.contract.step import State, Step
from dllm.contract.types import BlockState, ForwardCost, View


@dataclass(frozen=True)
class Ledger(Rowwise):
    """What is recorded of every row while it decodes. Sums are float64, over all forwards of the row. In papers:
    statistics."""

    commit_turn: Tensor  # [B, L] turn after which the column kept its token (0: none)
    proposal: Tensor  # [B, L] what the last forward that scored a masked column, or one that it edited, proposed there
    confidence: Tensor  # [B, L] its confidence; papers: confidence
    # [B, 5, l] ``queries``, ``computed``, ``pairs``, ``kv_tokens`` and ``scored``, added up in one launch
    spent: Tensor
    idle: Tensor  # [B] forwards in which the row waited
    values: Tensor  # [B, l] tokens whose value alone was computed

    @staticmethod
    def start(canvas: Canvas) -> Ledger:
        """Before the first turn."""
        blank, none = torch.zeros_like(canvas.tokens), torch.zeros_like(canvas.temperature)
        return Ledger(blank, blank, blank.double(), none.new_zeros(len(none), 5, 1), none, none[:, None])

    @property
    def queries(self) -> Tensor:
        """Query tokens [B, l]."""
        return self.spent[:, 0]

    @property
    def computed(self) -> Tensor:
        """Query tokens that ran, with padding [B, l]."""
        return self.spent[:, 1]

    @property
    def pairs(self) -> Tensor:
        """Queries times keys [B, l]. In papers: attention scores."""
        return self.spent[:, 2]

    @property
    def kv_tokens(self) -> Tensor:
        """Queries and keys of all copies [B, l]."""
        return self.spent[:, 3]

    @property
    def scored(self) -> Tensor:
        """Hidden states that the head ran on [B]."""
        return self.spent[:, 4, 0]

    @property
    def proposed(self) -> Tensor:
        """The last proposal of each column [B, L]; -1 where there was none. No proposal has the probability 0."""
        return torch.where(self.confidence == 0, -1, self.proposal)

    def after(self, cost: ForwardCost, owner: Owner, view: View, step: Step) -> Ledger:
        """After one more turn: what its candidates [M] cost, whose row is ``owner``, what the sampler saw, and what it
        decided."""

        queries, keys, scores, masked = cost.queries, cost.keys, view.scores, view.canvas.masked
        both = torch.add(queries, keys, alpha=cost.copies)
        more = torch.broadcast_tensors(queries, cost.computed, queries * keys, both, cost.scored[:, None])
        if step.edit is not None:
            masked = masked | step.owner.per_row(step.edit)
        shows, token, sure = masked & scores.scored, scores.token, scores.confidence
        if step.shown is not None:  # proposals are draws, and what is committed is likelier
            token = torch.where(step.commit, step.tokens, token)
            sure = torch.where(step.commit, step.confidence, sure)
        return Ledger(
            commit_turn=torch.where(masked, view.blocks.turn[:, None], self.commit_turn),
            proposal=torch.where(shows, token, self.proposal),
            confidence=torch.where(shows, sure, self.confidence),
            spent=self.spent + owner.sum(torch.stack(more, 1)),
            idle=self.idle + ~view.blocks.active,
            values=self.values if isinstance(cost.values, int) else self.values + owner.sum(cost.values),
        )

    def reshaped(self, reshape: Reshape, turn: Tensor) -> Ledger:
        """The ledger by the columns of rows that have changed their lengths after ``turn`` [B], which wrote what is
        filled in."""
        commit_turn = torch.where(reshape.filled, turn[:, None], reshape.moved(self.commit_turn))
        return replace(
            self,
            commit_turn=commit_turn,
            proposal=reshape.moved(self.proposal),
            confidence=reshape.moved(self.confidence),
        )


@dataclass(frozen=True)
class Turn:
    """One forward and the step that followed it, for the rows still unfinished. Its tensors last until the next turn: a
    recorded turn writes to the same ones. Copy them to keep them. In papers: step, iteration."""

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
    # what became of the columns of the rows at its end, which ``candidates``, ``blocks`` and ``ledger`` have followed
    # (None: no row has changed its length)
    reshape: Reshape | None = None
    # [B, ...] what its rows hand to the next forward of their blocks (``loop.rows.Rows.carried``)
    carried: State = field(default_factory=dict)

    @property
    def canvas(self) -> Canvas:
        """The canvases [B] before the step."""
        return self.view.canvas

    @property
    def decided(self) -> Canvas:
        """The canvases [N] after the step, before rows change their lengths: their columns are those of the step."""
        return self.candidates if self.reshape is None else self.reshape.before

    def followed(self, value: Tensor, blank: float = 0) -> Tensor:
        """What is kept by the columns of this forward [B, L, ...], by those after the turn. New ones are ``blank``."""
        return value if self.reshape is None else self.reshape.moved(value, blank)

    @property
    def active(self) -> Tensor:
        """Rows [B] that took part; the others waited."""
        return self.view.blocks.active

    @property
    def forced(self) -> Tensor:
        """Commits [N, L] that the rule did not choose: those it did not accept, and all of a row that the cache's plan
        commits without it (there ``step.accepted`` tells of other rows alone)."""
        step, planned = self.step, self.view.forced
        forced = torch.zeros_like(step.commit) if step.accepted is None else step.commit & ~step.accepted
        return forced if planned is None else forced | (step.commit & planned[step.owner.row])

    @property
    def guesses(self) -> tuple[Tensor, Tensor]:
        """What the forward guesses at each position [B, L], and its probability: the proposals, or the likeliest tokens
        where proposals are draws that a rule shows."""
        scores = self.view.scores
        token, sure = scores.token, scores.confidence
        if self.step.shown is not None:
            token, sure = scores.statistics.get("likeliest", token), scores.statistics.get("first", sure)
        return token, sure
