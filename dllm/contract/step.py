"""What a sampler decides in a turn: what its candidates commit, and what becomes of the rows.

Letters as in ``dllm/contract/types.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor

from dllm.common.rowwise import Owner, Rowwise, select

State = dict[str, Tensor]  # what a sampler or a cache remembers of its rows, by name; every tensor [B, ...]


@dataclass(frozen=True)
class CandidateStep(Rowwise):
    """What each of N candidates commits."""

    commit: Tensor  # [N, L] positions to fix; papers: `transfer_index`
    tokens: Tensor  # [N, L] what to fix them to; papers: x0
    confidence: Tensor  # [N, L] of these tokens (nan: not known)
    # [N, L] commits that the rule itself accepted; the rest are forced (None: a schedule, which judges no single
    # position). Of a rule that renoises: positions that show its draw, decided or not
    accepted: Tensor | None
    remask: Tensor  # [N, L] commits to undo first; papers: remask index
    # [N, L] decided positions to fix anew, to ``tokens``, without ever being masked (None: the rule never edits);
    # papers: token-to-token
    edit: Tensor | None
    # [N, L] what undecided positions of the open blocks show from now on (None: what they showed); papers: renoising
    shown: Tensor | None = None


@dataclass(frozen=True)
class RowStep(Rowwise):
    """What becomes of each of B rows, whatever its candidates commit."""

    state: State  # changed entries of the sampler's state
    # [B, L] what it will commit in its next turn, numbered from 1 in its order (0: not then); papers: decoding order
    next_positions: Tensor
    # [B] rows that are finished now, whatever their blocks still wait for; papers: early commit, early exit
    stop: Tensor
    # [B] rows whose block must not close although it may be full: an editing rule sees it once more, and must bound
    # how often
    keep_open: Tensor


@dataclass(frozen=True)
class Step:
    """What a sampler decides for N candidates of B rows; ``View.step`` fills in what a rule leaves out. In papers:
    action, transfer."""

    candidates: CandidateStep  # [N] what they commit
    owner: Owner  # the row of each candidate
    rows: RowStep  # [B] what becomes of the rows

    @property
    def commit(self) -> Tensor:
        return self.candidates.commit

    @property
    def tokens(self) -> Tensor:
        return self.candidates.tokens

    @property
    def confidence(self) -> Tensor:
        return self.candidates.confidence

    @property
    def accepted(self) -> Tensor | None:
        return self.candidates.accepted

    @property
    def remask(self) -> Tensor:
        return self.candidates.remask

    @property
    def edit(self) -> Tensor | None:
        return self.candidates.edit

    @property
    def shown(self) -> Tensor | None:
        return self.candidates.shown

    @property
    def state(self) -> State:
        return self.rows.state

    @property
    def next_positions(self) -> Tensor:
        return self.rows.next_positions

    @property
    def stop(self) -> Tensor:
        return self.rows.stop

    @property
    def keep_open(self) -> Tensor:
        return self.rows.keep_open

    def but(self, **changes: Any) -> Step:
        """The same step with other entries of ``candidates`` and ``rows``."""
        parts = {part: {name: value for name, value in changes.items() if name in names} for part, names in _HALVES}
        unknown = set(changes).difference(*parts.values())
        assert not unknown, f"a step has no {unknown}"
        return replace(self, **{part: replace(getattr(self, part), **new) for part, new in parts.items() if new})

    def alone(self, rows: Tensor) -> Step:
        """The step with only the first candidate in each of ``rows`` [B] (boolean)."""
        if self.owner.is_single:
            return self
        row, first = self.owner.row, self.owner.first
        kept = (~rows[row]).index_fill(0, first, True).nonzero()[:, 0]
        return replace(self, candidates=select(self.candidates, kept), owner=Owner(row[kept], len(rows)))

    @property
    def written(self) -> Tensor:
        """Positions that get a token [N, L]: commits and edits."""
        return self.commit if self.edit is None else self.commit | self.edit


_HALVES = [("candidates", [entry.name for entry in fields(CandidateStep)]),
           ("rows", [entry.name for entry in fields(RowStep)])]  # fmt: skip
