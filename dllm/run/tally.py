"""What every forward decided, counted while a batch decodes: bits, commits, and those the rule did not accept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dllm.denoise import Turn
from dllm.limits import bits_of
from dllm.trace import probabilities

Decided = tuple[float, int, int]  # bits, commits, forced commits


@dataclass
class Tally:
    """An observer of one decode. Decoder pauses its clock while it runs, so that counting costs no measured time.

    Per request (its number in the decode): one entry a forward. Of several candidates the one that the next forward
    keeps counts, as in a trace.
    """

    forwards: dict[int, list[list[Decided]]] = field(default_factory=dict)
    kept: dict[int, list[int]] = field(default_factory=dict)

    def __call__(self, turn: Turn) -> None:
        numbers, owner = turn.view.canvas.number.tolist(), turn.step.owner
        owners = list(range(len(numbers))) if owner is None else owner.tolist()
        asked = None if turn.forwarded_by is None else turn.forwarded_by.tolist()
        for row, number in enumerate(numbers):
            kept = 0 if turn.kept is None or asked is None else int(turn.kept[row]) - asked.index(row)
            self.kept.setdefault(number, []).append(kept)
            candidates = [self._decided(turn, at, row) for at, mine in enumerate(owners) if mine == row]
            self.forwards.setdefault(number, []).append(candidates)

    def _decided(self, turn: Turn, candidate: int, row: int) -> Decided:
        commit = turn.step.commit[candidate]
        chances = probabilities(turn, candidate, row)[commit].tolist()
        accepted = turn.step.accepted
        forced = 0 if accepted is None else int((~accepted[candidate][commit]).sum())
        return bits_of(chances), int(commit.sum()), forced

    def columns(self, number: int) -> dict[str, Any]:
        """Entries of a row of results: lists with one number for each forward of the request."""
        turns = self.forwards.get(number, [])
        kept = [*self.kept.get(number, [])[1:], 0]
        decided = [turn[at] for turn, at in zip(turns, kept, strict=True)] if turns else []
        return {
            "bits": [round(bits, 4) for bits, _, _ in decided], "commits": [count for _, count, _ in decided],
            "forced": [count for _, _, count in decided],
        }  # fmt: skip
