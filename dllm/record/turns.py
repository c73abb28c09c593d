"""What one turn of a decode did to a row, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isnan, nan

from torch import Tensor

from dllm.contract import Turn
from dllm.record.cost import CostModel


@dataclass(frozen=True)
class Commits:
    """positions: relative to the answer's start. tokens: the ids they were fixed to. confidence: the tokens'
    probability (None: not known). forced: committed because a turn must commit something, or by the cache's plan, not
    accepted by the rule, or of a token that a constraint
    asked for. entropy: in nats, of the distribution that the token came from."""

    positions: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    confidence: list[float | None] = field(default_factory=list)
    forced: list[bool] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)

    def rows(self) -> Iterator[tuple[int, int, float | None, float, bool]]:
        """Position, token, confidence, entropy (nan where it was not measured) and forced of every commit."""
        entropy = self.entropy or [nan] * len(self.positions)
        return zip(self.positions, self.tokens, self.confidence, entropy, self.forced, strict=True)


@dataclass(frozen=True)
class TurnRecord:
    """One turn of one request.

    kept: which candidate of the last turn the row went on with. candidates: what each candidate of this turn committed
    on top of it; most samplers have one. Per candidate: remasked: positions remasked before that; edited: tokens that
    replaced others, beside these commits (none at all where the sampler never edits); filled: positions that the
    end-of-text policy filled; rolled: positions that the block schedule remasked.

    queries: query rows of the forward per layer (one number: equal in all), summed over candidates. keys: rows that
    each of them attends to. refreshed: rows of layers that compute the whole canvas again. computed: query rows with
    those that pad a row to its call's width. flops, bytes: what the forward takes if the row is decoded alone
    (``dllm.record.cost``). block: number, begin and end of the current block, relative to the answer.

    Under a constraint, steered: positions whose proposal was not the model's own. Per candidate, refused: commits that
    wait because they do not go with the others; replaced: those made with another token that does.
    """

    turn: int
    kept: int
    candidates: list[Commits]
    remasked: list[list[int]]
    filled: list[list[int]]
    rolled: list[list[int]]
    queries: list[int]
    block: tuple[int, int, int]
    seconds: float = 0.0
    keys: list[int] = field(default_factory=list)
    refreshed: list[int] = field(default_factory=list)
    flops: float = 0.0
    bytes: float = 0.0
    computed: list[int] = field(default_factory=list)
    steered: list[int] = field(default_factory=list)
    refused: list[list[int]] = field(default_factory=list)
    replaced: list[list[int]] = field(default_factory=list)
    edited: list[Commits] = field(default_factory=list)

    def written(self, number: int) -> list[Commits]:
        """What a candidate committed, and what it edited."""
        return [self.candidates[number], *self.edited[number : number + 1]]


def record_turn(turn: Turn, row: int, seconds: float, cost: CostModel | None = None) -> TurnRecord:
    """What ``turn`` did to batch row ``row``, and what it cost."""
    blocks, view, work = turn.view.blocks, turn.view, turn.cost
    start = int(view.canvas.start[row])
    rows, asked = ((owner.row == row).nonzero()[:, 0].tolist() for owner in (turn.step.owner, turn.tried_owner))
    return TurnRecord(
        turn=int(blocks.turn[row]), kept=asked.index(int(turn.chosen[row])),
        candidates=[_commits(turn, turn.step.commit, n, row, start) for n in rows],
        remasked=[_positions(turn.step.remask, n, start) for n in rows],
        filled=[_positions(_filled(turn, n, row), None, start) for n in rows],
        rolled=[_positions(_rolled(turn, n, row), None, start) for n in rows],
        queries=work.queries[asked].sum(0).tolist(),
        block=(int(blocks.index[row]), int(blocks.begin[row]) - start, int(blocks.end[row]) - start), seconds=seconds,
        keys=work.keys[asked].amax(0).tolist(), refreshed=work.refreshed[asked].sum(0).tolist(),
        flops=0.0 if cost is None else float(cost.flops(work)[asked].sum()),
        bytes=0.0 if cost is None else float(cost.bytes(work)[asked].sum()) + cost.weights(),
        computed=work.computed[asked].sum(0).tolist(), steered=_positions(turn.marks.corrected, row, start),
        refused=[_positions(turn.marks.refused, n, start) for n in rows],
        replaced=[_positions(turn.marks.replaced, n, start) for n in rows],
        edited=[] if turn.step.edit is None else [_commits(turn, turn.step.edit, n, row, start) for n in rows],
    )  # fmt: skip


def probabilities(turn: Turn) -> Tensor:
    """Probability [N, L] of the token that each candidate writes at each position.

    nan where it is not known: the sampler writes another token than was proposed and gives no probability of its own
    (the oracle's, credited ones), or ``eos_last`` has replaced the confidence.
    """
    return turn.step.confidence.masked_fill(turn.step.confidence < 0, nan)


def _commits(turn: Turn, where: Tensor, candidate: int, row: int, start: int) -> Commits:
    """The commits or the edits ``where`` [N, L] of a candidate. No edit is forced."""
    step, edits = turn.step, where is turn.step.edit
    columns = where[candidate].nonzero()[:, 0]
    # The decision itself, not the canvas after the end-of-text policy, which may have cut some of it off.
    tokens = step.tokens[candidate][columns]
    accepted = None if step.accepted is None or edits else step.accepted[candidate][columns]
    entropy = turn.view.scores.statistics.get("entropy")
    return Commits(
        positions=(columns - start).tolist(), tokens=tokens.tolist(),
        confidence=[None if isnan(p) else p for p in probabilities(turn)[candidate, columns].tolist()],
        forced=(turn.marks.replaced[candidate][columns] if accepted is None else ~accepted).tolist(),
        entropy=[] if entropy is None else entropy[row][columns].tolist(),
    )  # fmt: skip


def _filled(turn: Turn, candidate: int, row: int) -> Tensor:
    was_masked = turn.view.canvas.masked[row] | turn.step.remask[candidate]
    return was_masked & ~turn.candidates.masked[candidate] & ~turn.step.commit[candidate]


def _rolled(turn: Turn, candidate: int, row: int) -> Tensor:
    undone = turn.view.canvas.masked[row] | turn.step.remask[candidate]
    return turn.candidates.masked[candidate] & (turn.step.commit[candidate] | ~undone)


def _positions(where: Tensor | None, row: int | None, start: int) -> list[int]:
    if where is None:
        return []
    return ((where if row is None else where[row]).nonzero()[:, 0] - start).tolist()
