"""What a decode did, turn by turn: enough to redraw it, to check it, and to compute limits from it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from dllm.contract import Turn
from dllm.errors import UserError, in_words
from dllm.record.cost import CostModel
from dllm.record.tabular import data_frame

if TYPE_CHECKING:
    from pandas import DataFrame

ADVICE = "Name a file of a run's traces folder; decode with trace=true to get one."


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


@dataclass
class Trace:
    """All turns of one request. prompt: ids of its canvas at the start, and given: 1 where they are given. start: the
    answer's first position. length: columns without padding. words: the text of every token id that occurs."""

    prompt: list[int]
    given: list[int]
    mask_id: int
    eos_id: int
    start: int
    length: int
    turns: list[TurnRecord] = field(default_factory=list)
    words: dict[int, str] = field(default_factory=dict)

    def path(self) -> list[tuple[TurnRecord, int]]:
        """The decode's path: every turn with the number of the candidate that the row went on with."""
        kept = [record.kept for record in self.turns[1:]] + [0]
        return list(zip(self.turns, kept[: len(self.turns)], strict=True))

    def canvases(self) -> Iterator[list[int]]:
        """The canvas before every forward, then the final one: ids, with the mask id where undecided."""
        candidates = [list(self.prompt)]
        for record in self.turns:
            canvas = candidates[record.kept]
            yield list(canvas)
            candidates = [self._after(canvas, record, number) for number in range(len(record.candidates))]
        yield candidates[0]

    def _after(self, canvas: list[int], record: TurnRecord, number: int) -> list[int]:
        canvas = list(canvas)
        for position in record.remasked[number]:
            canvas[self.start + position] = self.mask_id
        for commits in record.written(number):
            for position, token in zip(commits.positions, commits.tokens, strict=True):
                canvas[self.start + position] = token
        for position in record.filled[number]:
            canvas[self.start + position] = self.eos_id
        for position in record.rolled[number]:
            canvas[self.start + position] = self.mask_id
        return canvas

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Trace:
        turns = [
            TurnRecord(**{
                **turn, "candidates": commits_of(turn["candidates"]), "edited": commits_of(turn.get("edited", ())),
                "block": tuple(turn["block"]),
            })
            for turn in data["turns"]
        ]  # fmt: skip
        words = {int(token): word for token, word in data.get("words", {}).items()}  # JSON's keys are strings
        return Trace(**{**data, "turns": turns, "words": words})

    def to_frame(self) -> DataFrame:
        """One row per committed token, and per token that replaced another (``edited``). Raises UserError where pandas
        is not installed, the extra ``frame``."""
        columns = ["turn", "candidate", "position", "token", "word", "confidence", "entropy", "forced", "edited"]
        rows = [
            (record.turn, number, position, token, self.words.get(token), confidence, entropy, forced, edited > 0)
            for record in self.turns for number in range(len(record.candidates))
            for edited, commits in enumerate(record.written(number))
            for position, token, confidence, entropy, forced in commits.rows()
        ]  # fmt: skip
        return data_frame("to_frame", rows, columns)


def commits_of(data: Sequence[Mapping[str, Any]]) -> list[Commits]:
    return [Commits(**one) for one in data]


def read_trace(file: Path) -> tuple[dict[str, Any], Trace]:
    """The data of a trace file, and its trace. Raises UserError for any other file."""
    try:
        data = json.loads(file.read_text())
        trace = Trace.from_json(data["trace"])
        _ = [data[key] for key in ("id", "sample", "seed", "batch", "config")]
    except OSError as error:
        raise UserError(f"trace={str(file)!r} cannot be read ({error.strerror}). {ADVICE}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"trace={str(file)!r} is no trace of this program ({in_words(error)}). {ADVICE}") from None
    return data, trace


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
        block=(int(blocks.number[row]), int(blocks.begin[row]) - start, int(blocks.end[row]) - start), seconds=seconds,
        keys=work.keys[asked].amax(0).tolist(), refreshed=work.refreshed[asked].sum(0).tolist(),
        flops=0.0 if cost is None else float(cost.flops(work)[asked].sum()),
        bytes=0.0 if cost is None else float(cost.bytes(work)[asked].sum()) + cost.weights(),
        computed=work.computed[asked].sum(0).tolist(), steered=_positions(turn.marks.steered, row, start),
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
    was_masked = turn.view.canvas.masked[row]
    return was_masked & ~turn.candidates.masked[candidate] & ~turn.step.commit[candidate]


def _rolled(turn: Turn, candidate: int, row: int) -> Tensor:
    undone = turn.view.canvas.masked[row] | turn.step.remask[candidate]
    return turn.candidates.masked[candidate] & (turn.step.commit[candidate] | ~undone)


def _positions(where: Tensor | None, row: int | None, start: int) -> list[int]:
    if where is None:
        return []
    return ((where if row is None else where[row]).nonzero()[:, 0] - start).tolist()
