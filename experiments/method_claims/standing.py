"""Which answer stands on a canvas before it is committed: the model's first choice at every mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import fmean

import torch

from dllm import Model, Result
from dllm.contract import Turn
from dllm.tasks.mini import tasks as mini
from dllm.tasks.mini.items import Sample
from experiments.method_claims.runs import Run, text_of, until_end
from experiments.support.markdown import percent

SHARES = (0.25, 0.5, 0.75)  # of the forwards
HEADS = (
    "order", "items", "score", *(f"stands at {100 * share:.0f} %" for share in SHARES),
    *(f"right at {100 * share:.0f} %" for share in SHARES), "settled", "committed at 50 %",
)  # fmt: skip


@dataclass
class Standing:
    """An observer. seen: by request, for each forward what stood on the answer's canvas: the tokens that were there
    before it, and at masks the first choice."""

    seen: dict[int, list[list[int]]] = field(default_factory=dict)

    def __call__(self, turn: Turn) -> None:
        canvas, scores = turn.view.canvas, turn.view.scores
        standing = torch.where(canvas.masked & scores.scored, scores.token, canvas.tokens)
        for row, number in enumerate(canvas.param_index.tolist()):
            if bool(turn.active[row]):
                self.seen.setdefault(number, []).append(standing[row, int(canvas.start[row]) :].tolist())


def at_share(count: int, share: float) -> int:
    """The forward, from 0, with which ``share`` of ``count`` forwards are done."""
    return max(1, ceil(share * count)) - 1


@dataclass(frozen=True)
class Course:
    """Of one item. stands: for each forward, whether what stood at the answer's positions, its end included, is the
    final answer. right: the scores at ``SHARES``. committed: share of these positions fixed at half of the forwards."""

    stands: list[bool]
    right: list[float]
    committed: float

    def settled(self) -> float:
        """The share of the forwards after which the answer stands for good."""
        last = next((at for at in reversed(range(len(self.stands))) if not self.stands[at]), -1)
        return min(1.0, (last + 2) / len(self.stands))


def courses(model: Model, items: Sequence[Sample], done: Run, seen: Standing, lead: str = "") -> list[Course]:
    """lead: given text before the answer."""
    return [course(model, item, row, seen.seen[number], lead)
            for number, (item, row) in enumerate(zip(items, done.rows, strict=True))]  # fmt: skip


def course(model: Model, item: Sample, row: Result, seen: Sequence[Sequence[int]], lead: str) -> Course:
    """seen: what stood in each forward of the row."""
    stop = until_end(row.canvas, model.ids.ends) + 1
    stands = [list(tokens[: len(row.canvas[:stop])]) == row.canvas[:stop] for tokens in seen]
    fixed = [turn <= ceil(0.5 * row.nfe) for turn in row.turns[:stop]]
    at = [seen[at_share(len(seen), share)] for share in SHARES]
    texts = [text_of(model, tokens[: len(row.canvas)], lead) for tokens in at]
    return Course(stands, [mini.score(item, text)["score"] for text in texts], fmean(fixed))


def line(label: str, done: Run, found: Sequence[Course]) -> tuple[str, ...]:
    """A row of the table."""
    stands = [[float(one.stands[at_share(len(one.stands), share)]) for one in found] for share in SHARES]
    right = [fmean(one.right[at] for one in found) for at in range(len(SHARES))]
    return (
        label, str(len(found)), percent(done.right), *(percent(values) for values in stands),
        *(f"{100 * value:.0f}" for value in right), f"{100 * fmean(one.settled() for one in found):.0f} %",
        f"{100 * fmean(one.committed for one in found):.0f} %",
    )  # fmt: skip
