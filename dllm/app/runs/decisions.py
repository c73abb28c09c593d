"""What every forward decided and refreshed, counted while a batch decodes: bits, commits (forced, late), layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from dllm.contract import Turn
from dllm.record.turns import probabilities

ForwardDecision = tuple[float, int, int, int]  # bits, commits, forced commits, late commits


@dataclass(frozen=True)
class LastProposals:
    """What the model proposed last at each column, up to a turn."""

    numbers: Tensor  # [B] the requests' numbers in the decode
    tokens: Tensor  # [B, L] -1: no forward has scored the column yet

    @staticmethod
    def after(turn: Turn) -> LastProposals:
        return LastProposals(turn.view.canvas.param_index.clone(), turn.ledger.proposed)

    def of(self, numbers: Tensor, columns: int) -> Tensor:
        """Those of the requests ``numbers`` [n], in canvases of ``columns`` [n, columns]. A request that has joined
        since has none; a batch that it has made wider has more columns."""
        same = numbers[:, None] == self.numbers
        tokens = pad(self.tokens, (0, columns - self.tokens.shape[1]), value=-1)
        return torch.where(same.any(1, keepdim=True), tokens[same.long().argmax(1)], -1)


@dataclass(frozen=True)
class TurnDecisions:
    """One turn, on the device."""

    numbers: Tensor  # [B] the requests' numbers in the decode
    acts: Tensor  # bool [B] which of them took part
    owner: Tensor  # [N] the request of each new candidate
    decided: Tensor  # [N, 4] bits, commits, forced and late commits of each new candidate
    rows: Tensor  # [M] the request's row of each candidate of this forward
    winners: Tensor  # [B] the candidate that each request keeps
    refreshed: Tensor  # bool [B, l] which layers of it computed the whole canvas (l 1: all alike)

    @staticmethod
    def of(turn: Turn, before: LastProposals | None) -> TurnDecisions:
        """before: the proposals of the turns before it (None: there was no turn)."""
        numbers, step = turn.view.canvas.param_index, turn.step
        commit = step.commit
        chances = probabilities(turn)
        bits = torch.where(commit & ~chances.isnan(), -chances.clamp(min=1e-300).log2(), 0.0).sum(1)
        late = torch.zeros_like(commit)
        if before is not None:
            late = commit & (step.tokens == before.of(numbers, commit.shape[1])[step.owner.row])
        decided = torch.stack([bits, commit.sum(1), turn.forced.sum(1), late.sum(1)], 1)
        numbers, acts, owner, rows, winners = (
            tensor.clone()  # it lasts until the next turn
            for tensor in (numbers, turn.active, step.owner.row, turn.tried_owner.row, turn.chosen)
        )
        return TurnDecisions(numbers, acts, owner, decided, rows, winners, turn.cost.refreshed[turn.chosen] > 0)


@dataclass
class DecisionCount:
    """An observer of one decode. Decoder pauses its clock while it runs, so that counting costs no measured time.

    It keeps a few tensors of every turn, and copies them to the host when a request is finished. A copy in every turn
    would make the host wait for the GPU, instead of launching the next turn.
    Where a turn has several candidates, the one that the next forward keeps counts, as in a trace.
    """

    noted: list[TurnDecisions] = field(default_factory=list)  # turns whose numbers are still on the device
    before: LastProposals | None = None  # of the turns so far
    # by the request's number: an entry for each forward in which it took part
    forwards: dict[int, list[list[ForwardDecision]]] = field(default_factory=dict)
    # by the request's number: the candidate that each of its forwards keeps
    winners: dict[int, list[int]] = field(default_factory=dict)
    # by the request's number: for each of its forwards, which layers computed the whole canvas
    refreshed: dict[int, list[list[bool]]] = field(default_factory=dict)

    def __call__(self, turn: Turn) -> None:
        self.noted.append(TurnDecisions.of(turn, self.before))
        self.before = LastProposals.after(turn)

    def columns(self, number: int) -> dict[str, Any]:
        """Columns of a row of results: lists with a number for each forward of the request. Waits for the device."""
        self._unpack()
        turns = self.forwards.get(number, [])
        winners = [*self.winners.get(number, []), 0][: len(turns)]
        decided = [turn[at] for turn, at in zip(turns, winners, strict=True)]
        return {
            "bits": [round(bits, 4) for bits, *_ in decided],
            "commits": [commits for _, commits, _, _ in decided],
            "forced": [forced for _, _, forced, _ in decided],
            "late": [late for *_, late in decided],
            **self._refreshed(number),
        }

    def _refreshed(self, number: int) -> dict[str, Any]:
        """How many forwards refreshed all that the cache keeps, by layer and in all: a forward counts as the share of
        its layers that did."""
        forwards = self.refreshed.get(number, [])
        layers = max(map(len, forwards), default=0)  # a forward whose layers are alike may have one entry for all
        forwards = [flags if len(flags) == layers else flags * layers for flags in forwards]
        by_layer = [sum(layer) for layer in zip(*forwards, strict=True)]
        return {"refreshed": round(sum(by_layer) / max(1, len(by_layer)), 4), "refreshed_by_layer": by_layer}

    def _unpack(self) -> None:
        """Move what is in ``noted`` to ``forwards`` and ``winners``."""
        noted, self.noted = self.noted, []
        layers = max((turn.refreshed.shape[1] for turn in noted), default=1)
        noted = [replace(turn, refreshed=turn.refreshed.expand(-1, layers)) for turn in noted]
        names = [entry.name for entry in fields(TurnDecisions)]
        turns = zip(*(on_host([getattr(turn, name) for turn in noted]) for name in names), strict=True)
        for numbers, acts, owners, decided, rows, winners, refreshed in turns:
            for row, number in enumerate(numbers):
                mine, followed = self.forwards.setdefault(number, []), self.winners.setdefault(number, [])
                if len(followed) < len(mine):  # the first forward after one says what it kept of that
                    followed.append(winners[row] - rows.index(row))
                if acts[row]:
                    self.refreshed.setdefault(number, []).append(refreshed[row])
                    decisions = [decision for owner, decision in zip(owners, decided, strict=True) if owner == row]
                    mine.append([(bits, int(count), int(forced), int(late)) for bits, count, forced, late in decisions])


def on_host(tensors: Sequence[Tensor]) -> list[list[Any]]:
    """Their values, in one transfer."""
    if not tensors:
        return []
    values = iter(torch.cat(list(tensors)).tolist())
    return [list(islice(values, len(tensor))) for tensor in tensors]
