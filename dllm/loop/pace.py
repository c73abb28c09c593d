"""Whether rows get on: a decode ends, because every turn decides a position of every row that has one open.

The host counts what rows report anyway (``Rows.numbers``), so it waits for nothing. Under ``lag`` it knows of a row
that does not change for that many turns.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dllm.common.errors import Refusal, name_of
from dllm.compose.fitted import Parts
from dllm.contract import BlockState, Turn
from dllm.contract.canvas import Canvas


class Pace(NamedTuple):
    """remaining: positions that a row has still to decide. fewest: the least that it ever had. turns: those it has had.
    still: turns in a row that have brought no fewer. behind: turns since there were ``fewest``. patience: how many
    still turns its parts may take; limit: how many turns they may take to come back to ``fewest``, where they take
    back what they commit."""

    remaining: int
    fewest: int
    turns: int
    still: int
    behind: int
    patience: int
    limit: int

    @staticmethod
    def start(canvas: Canvas, blocks: BlockState, patience: Tensor) -> tuple[Pace, ...]:
        """Of the rows of ``canvas`` before their first turn. patience [B]: of the sampler."""
        remaining, late = canvas.undecided.sum(1).tolist(), blocks.shapes.open_delay + blocks.shapes.lag
        waits = torch.maximum(patience, blocks.params.get("min_forwards", patience)).tolist()
        bounds = [late + int(wait) for wait in waits]
        return tuple(
            Pace(now, now, 0, 0, 0, bound, max(bound, 4 * now + 16))
            for now, bound in zip(remaining, bounds, strict=True)
        )

    def after(self, remaining: int) -> Pace:
        """After another turn, which leaves that many."""
        still = 0 if remaining < self.remaining else self.still + 1
        further = remaining < self.fewest
        least, behind = (remaining, 0) if further else (self.fewest, self.behind + 1)
        return Pace(remaining, least, self.turns + 1, still, behind, self.patience, self.limit)

    @property
    def is_stuck(self) -> bool:
        return self.still > self.patience or self.behind > self.limit


def never_ends(turn: Turn, row: int, pace: Pace, parts: Parts) -> Refusal:
    """Says which part keeps a row from its end, and what that part must keep to."""
    sampler, blocks, cache = parts.sampler, parts.blocks, parts.cache
    view = turn.view
    rule, number = f"{{sampler={name_of(sampler)}}}", int(view.canvas.param_index[row])
    since = f"{pace.still} forwards in a row (forwards {pace.turns - pace.still + 1} to {pace.turns} of row {number})"
    state = f"{pace.remaining} positions are left, and the decode would never end"
    if pace.still <= pace.patience:
        return Refusal(
            f"{rule} with {{blocks}} takes back as much as it commits: row {number} has come no further in "
            f"{pace.behind} forwards of {pace.turns}; {state}. Take back fewer positions than a turn commits.",
            [name_of(blocks)],
        )
    if bool(view.open[row].any()):
        return Refusal(
            f"{rule} decided nothing in {since}; {state}. A rule commits at least one position of view.open in every "
            "row of every turn: add argmax_mask(confidence, view.open) to what it commits, or say in its traits by "
            f"patience=N how many turns it may wait ({sampler.traits.patience} now)."
        )
    if bool((view.canvas.undecided & view.blocks.in_block)[row].any()):
        return Refusal(
            f"{{cache}} let nothing of the open block be committed in {since}; {state}. A plan computes and leaves "
            "committable at least one masked position of the open blocks in every forward.",
            [name_of(cache)],
        )
    cause = f"{rule} held" if sampler.traits.edits else f"{{blocks={name_of(blocks)}}} did not close"
    return Refusal(
        f"{cause} a full block for {since}; {state}. A rule that keeps a full block open bounds how often, and says so "
        "by patience; a schedule closes a block that is full."
    )
