"""The rows of a running batch: everything that belongs to a request, in one value.

Rows leave when they finish, and others join between turns. What the parts remember of a row leaves and joins with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dllm.blocks.base import Blocks
from dllm.cache.base import Session
from dllm.canvas import Canvas
from dllm.common.rowwise import Owner, join, select
from dllm.contract import BlockState, State
from dllm.samplers.base import Sampler


@dataclass(frozen=True)
class Rows:
    """N candidates of B rows.

    candidates [N]: their canvases. owner: the row of each. blocks [B]: where the blocks stand. state: the sampler's
    memory of the rows. session: the cache's. announced [B, L]: what the sampler said it will commit next. stopped [B]:
    rows that the sampler stopped since the host last synchronised. The session changes in place: whoever has selected
    or joined goes on with the result alone.
    """

    candidates: Canvas
    owner: Owner
    blocks: BlockState
    state: State
    session: Session
    announced: Tensor
    stopped: Tensor

    @staticmethod
    def start(canvas: Canvas, session: Session, sampler: Sampler, blocks: Blocks, bounded: bool = False) -> Rows:
        """Rows before their first turn, one candidate each. bounded: shapes are bounded instead of exact."""
        rows = len(canvas.request)
        return Rows(
            canvas, Owner.single(rows, canvas.request.device), blocks.start(canvas, sampler.lookahead, bounded),
            sampler.start(canvas, blocks), session, torch.zeros_like(canvas.tokens), torch.zeros_like(canvas.cut),
        )  # fmt: skip

    def __len__(self) -> int:
        return self.owner.rows

    def select(self, kept: Tensor) -> Rows:
        """The rows ``kept`` [B] (boolean), with all that belongs to them."""
        owner, candidates = self.owner.select(kept)
        left = kept.nonzero()[:, 0]
        return Rows(
            self.candidates.select(candidates), owner, select(self.blocks, left), select(self.state, left),
            self.session.select(left), self.announced[left], self.stopped[left],
        )  # fmt: skip

    def join(self, fresh: Rows) -> Rows:
        """These rows, then those of ``fresh``, which were started with the same parts and have had no turn yet."""
        blocks = replace(join(self.blocks, fresh.blocks), shapes=self.blocks.shapes.join(fresh.blocks.shapes))
        return Rows(
            self.candidates.join(fresh.candidates), self.owner.join(fresh.owner), blocks,
            join(self.state, fresh.state), self.session.join(fresh.session), join(self.announced, fresh.announced),
            join(self.stopped, fresh.stopped),
        )  # fmt: skip

    def synchronised(self) -> Rows:
        """The rows after the host has synchronised: all take part in the next turn."""
        return replace(self, blocks=self.blocks.synchronised())

    def waiting(self, active: Tensor) -> Rows:
        """The rows, of which only the ``active`` [B] ones take part in the next turn."""
        blocks = replace(self.blocks, active=active, shapes=self.blocks.shapes.unsynchronised())
        return replace(self, blocks=blocks)
