"""What every forward decided, counted while a batch decodes: bits, commits, and those the rule did not accept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from dllm.contract import Turn
from dllm.record.trace import probabilities

Decided = tuple[float, int, int]  # bits, commits, forced commits


@dataclass(frozen=True)
class Noted:
    """One turn on the device: numbers [B] of its requests and which took part, owner [N] of its candidates, what each
    decided [N, 3], and, of this forward's candidates, whose each was [M] and which of them are kept [B]."""

    numbers: Tensor
    acts: Tensor
    owner: Tensor
    decided: Tensor
    asked: Tensor
    kept: Tensor

    @staticmethod
    def of(turn: Turn) -> Noted:
        numbers, step = turn.view.canvas.number, turn.step
        commit = step.commit
        forced = torch.zeros_like(commit) if step.accepted is None else commit & ~step.accepted
        chances = probabilities(turn)
        bits = torch.where(commit & ~chances.isnan(), -chances.clamp(min=1e-300).log2(), 0.0).sum(1)
        decided = torch.stack([bits, commit.sum(1), forced.sum(1)], 1)
        return Noted(numbers, turn.active, step.owner.row, decided, turn.tried_owner.row, turn.chosen)


@dataclass
class Tally:
    """An observer of one decode. Decoder pauses its clock while it runs, so that counting costs no measured time.

    It notes a few tensors a turn and asks the device only when a request is finished: a question in every turn would
    take from a GPU the next turn's work that the host could have asked for meanwhile.

    Per request (its number in the decode): one entry a forward in which it took part. Of several candidates the one
    that the next forward keeps counts, as in a trace.
    """

    noted: list[Noted] = field(default_factory=list)
    forwards: dict[int, list[list[Decided]]] = field(default_factory=dict)
    kept: dict[int, list[int]] = field(default_factory=dict)

    def __call__(self, turn: Turn) -> None:
        self.noted.append(Noted.of(turn))

    def columns(self, number: int) -> dict[str, Any]:
        """Entries of a row of results: lists with one number for each forward of the request. Waits for the device."""
        self._read()
        turns = self.forwards.get(number, [])
        kept = [*self.kept.get(number, []), 0][: len(turns)]
        decided = [turn[at] for turn, at in zip(turns, kept, strict=True)]
        return {
            "bits": [round(bits, 4) for bits, _, _ in decided], "commits": [count for _, count, _ in decided],
            "forced": [count for _, _, count in decided],
        }  # fmt: skip

    def _read(self) -> None:
        """Move what is in ``noted`` to ``forwards`` and ``kept``."""
        noted, self.noted = self.noted, []
        names = [entry.name for entry in fields(Noted)]
        turns = zip(*(hosted([getattr(one, name) for one in noted]) for name in names), strict=True)
        for numbers, acts, owners, decided, asked, kept in turns:
            for row, number in enumerate(numbers):
                mine, followed = self.forwards.setdefault(number, []), self.kept.setdefault(number, [])
                if len(followed) < len(mine):  # the first forward after one says what it kept of that
                    followed.append(kept[row] - asked.index(row))
                if acts[row]:
                    made = [one for owner, one in zip(owners, decided, strict=True) if owner == row]
                    mine.append([(bits, int(count), int(forced)) for bits, count, forced in made])


def hosted(tensors: Sequence[Tensor]) -> list[list[Any]]:
    """Their values, in one transfer."""
    if not tensors:
        return []
    values = iter(torch.cat(list(tensors)).tolist())
    return [list(islice(values, len(tensor))) for tensor in tensors]
