"""What a sampler decides in a turn: what its candidates commit, and what becomes of the rows.

Letters as in ``dllm/contract/types.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from dllm.common.rowwise import Owner, select
from dllm.contract.canvas import Canvas

State = dict[str, Tensor]  # what a sampler or a cache remembers of its rows, by name; every tensor [B, ...]


@dataclass(frozen=True)
class Mixture:
    """What positions show between mask and token in the next forward of their block. What the ``weights`` of k tokens
    leave to 1 is the mask's. In papers: soft tokens, continuous masks."""

    where: Tensor  # [N, L] positions that show a mixture
    tokens: Tensor  # [N, L, k] ids, the likeliest first
    weights: Tensor  # [N, L, k] their weights, float64; 0 for a token that takes no part
    rejected: Tensor | None = None  # [N, L] masks whose mixture was taken back (None: the rule takes none back)

    def stands(self, canvas: Canvas, at: Literal["decided", "undecided"]) -> Tensor:
        """Where it is shown [N, L] on the ``canvas`` after a turn, since constraints, ends of text and schedules may
        have decided otherwise than the rule. at: as in ``Soft``."""
        if at == "undecided":
            return self.where & canvas.undecided
        return self.where & ~canvas.masked & (canvas.tokens == self.tokens[..., 0])


@dataclass(frozen=True)
class Step:
    """What a sampler decides for N candidates of B rows; ``View.step`` fills in what a rule leaves out. In papers:
    action, transfer."""

    commit: Tensor  # [N, L] positions to fix; papers: `transfer_index`
    tokens: Tensor  # [N, L] what to fix them to; papers: x0
    confidence: Tensor  # [N, L] of these tokens (nan: not known)
    # [N, L] commits that the rule itself accepted; the rest are forced (None: a schedule, which judges no single
    # position). Of a rule that renoises: positions that show its draw, decided or not
    accepted: Tensor | None
    remask: Tensor  # [N, L] commits to undo first; papers: remask index
    # [N, L] decided positions to fix again, to ``tokens``, without ever being masked (None: the rule never edits);
    # papers: token-to-token
    edit: Tensor | None
    # [N, L] what undecided positions of the open blocks show from now on (None: what they showed); papers: renoising
    shown: Tensor | None
    # overrides what positions of the block show in its next forward (None: what is on the canvas); one candidate a row;
    # papers: soft tokens
    mixture: Mixture | None
    owner: Owner  # the row of each candidate
    state: State  # changed entries of the sampler's state [B, ...]
    # [B, L] what it will commit in its next turn, numbered from 1 in its order (0: not then), or the span that this is
    # in (``SamplerTraits.spans``); papers: decoding order
    next_positions: Tensor
    # [B] rows that are finished now, even with open blocks; papers: early commit, early exit
    stop: Tensor
    # [B] rows whose full block is kept open so that an editing rule can revisit it; the rule must limit how often
    keep_open: Tensor

    def but(self, **changes: Any) -> Step:
        """The same step with other entries."""
        return replace(self, **changes)

    def alone(self, rows: Tensor) -> Step:
        """The step with only the first candidate in each of ``rows`` [B] (boolean)."""
        if self.owner.is_single:
            return self
        row = self.owner.row
        candidates = (~rows[row]).index_fill(0, self.owner.first, True).nonzero()[:, 0]
        entries = {name: getattr(self, name) for name in OF_CANDIDATES}
        return self.but(**select(entries, candidates), owner=Owner(row[candidates], len(rows)))

    @property
    def written(self) -> Tensor:
        """Positions that get a token [N, L]: commits and edits."""
        return self.commit if self.edit is None else self.commit | self.edit


# The entries of a step that lead with the candidate; the others lead with the row.
OF_CANDIDATES = ("commit", "tokens", "confidence", "accepted", "remask", "edit", "shown")
