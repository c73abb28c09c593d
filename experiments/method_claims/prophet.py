"""Early answer convergence, and the forwards that Prophet saves by it (arXiv 2508.19982).

The paper's answers are a few tokens after a long reasoning, and its anchor is a phrase. The suite's answers are the
whole text, from the canvas's first position on: the region is there. The models were never trained on a phrase before
an answer. So the anchor that they know is the bracket with which every list begins. The paper's phrase and its place,
at 0.78 of the canvas, have rows of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from statistics import fmean
from typing import Any

import torch

from dllm import Model, Result, part
from dllm.contract import Turn
from dllm.samplers.base import Sampler
from dllm.tasks.mini import lists
from dllm.tasks.mini import tasks as mini
from dllm.tasks.mini.items import Sample
from experiments.method_claims.runs import Run, items_of, less, run, text_of, until_end
from experiments.support import markdown
from experiments.support.markdown import percent

COUNT, SHORT, LONG = 8, 32, 128
ORDERS = {"low confidence": "low_confidence", "random": "random"}
LATE = 25  # of 32, as 200 of 256 in the released script
PLAIN: dict[str, Any] = {"region": "offset", "start": 0}
BRACKET: dict[str, Any] = {"region": "anchor", "anchor_text": '["', "anchor_position": 0, "skip": 0}
PHRASE: dict[str, Any] = {**BRACKET, "anchor_text": "Answer:"}
LATE_PHRASE: dict[str, Any] = {**BRACKET, "anchor_text": "The answer is", "anchor_position": LATE, "skip": 1}
PROPHET_HEADS = ("decoding", "items", "score", "NFE", "saved", "as without an exit")
Inner = str | dict[str, Any]


def prophet(inner: Inner, **options: Any) -> Sampler:
    return part("sampler", "prophet", inner=inner, **options)


def never(inner: Inner, **options: Any) -> Sampler:
    """The inner rule alone, the whole answer scored in every forward, with the anchor if there is one."""
    return prophet(inner, thresholds=[inf] * 3, **options)


def one_each(order: str, per_step: int = 1) -> Inner:
    return {"name": "static", "score": ORDERS[order], "per_step": per_step}


def tables(model: Model, count: int) -> str:
    """Both tables of a model."""
    short, listed, long = (
        items_of(tasks, count) for tasks in (mini.SHORT_ANSWERS, tuple(lists.TASKS), mini.LONG_ANSWERS)
    )
    low, random = (watched(model, short, never(one_each(order), **PLAIN)) for order in ORDERS)
    low_long, random_long = (watched(model, long, never(one_each(order, 4), **PLAIN), LONG) for order in ORDERS)
    early = {
        "low confidence": low, "low confidence, lists": low.of(listed),
        "low confidence, lists, anchor": watched(model, listed, never("static", **BRACKET)),
        "low confidence, 128 tokens": low_long, "random": random, "random, 128 tokens": random_long,
    }  # fmt: skip
    exits = [row for group in groups(model, early) for row in group.lines(model)]
    lines = [line(label, one.run, one.courses) for label, one in early.items()]
    return (
        f"### Answers that stand early, {model.name}\n\n{markdown.table(HEADS, lines)}\n\n"
        f"### Prophet on {model.name}\n\n{markdown.table(PROPHET_HEADS, exits)}\n"
    )


@dataclass(frozen=True)
class Watched:
    """A decode that never ends early, and the course of each item."""

    items: Sequence[Sample]
    run: Run
    courses: list[Course]

    def of(self, items: Sequence[Sample]) -> Watched:
        """Of some of the items alone."""
        at = [self.items.index(item) for item in items]
        run = Run([self.run.rows[number] for number in at], [self.run.right[number] for number in at])
        return Watched(items, run, [self.courses[number] for number in at])


def watched(model: Model, items: Sequence[Sample], sampler: Sampler, length: int = SHORT, lead: str = "") -> Watched:
    seen = Standing()
    done = run(model, items, sampler, length, eos="none", lead=lead, observe=seen)
    return Watched(items, done, courses(model, items, done, seen, lead))


@dataclass(frozen=True)
class Group:
    """Decodes that may end early, by label, and the one that they are measured by. lead: given text before the
    answer."""

    label: str
    items: Sequence[Sample]
    whole: Run
    exits: dict[str, Sampler]
    lead: str = ""

    def lines(self, model: Model) -> Iterator[tuple[str, ...]]:
        """Rows of the second table."""
        count = str(len(self.items))
        yield self.label, count, percent(self.whole.right), f"{self.whole.nfe:.1f}", "", ""
        for label, sampler in self.exits.items():
            done = run(model, self.items, sampler, SHORT, eos="none", lead=self.lead)
            saved, same = less(done.nfe, self.whole.nfe), percent(done.same(self.whole))
            yield f"{self.label}: {label}", count, percent(done.right), f"{done.nfe:.1f}", saved, same


def groups(model: Model, early: Mapping[str, Watched]) -> Iterator[Group]:
    """early: what was decoded already."""
    short, listed = (early[f"low confidence{more}"] for more in ("", ", lists"))
    anchored = early["low confidence, lists, anchor"].run

    def sized(inner: Inner, **options: Any) -> dict[str, Sampler]:
        return {f"region of {length}": prophet(inner, **options, length=length) for length in (5, 16)}

    yield Group("one a forward", short.items, short.run, {"all masks": prophet("static"), **sized("static", **PLAIN)})
    threshold = run(model, short.items, "confidence", SHORT, eos="none")
    yield Group("threshold", short.items, threshold, sized("confidence", **PLAIN))
    yield Group("lists", listed.items, listed.run, sized("static", **PLAIN))
    yield Group("lists, anchor", listed.items, anchored, sized("static", **BRACKET))
    for label, options, lead in (("phrase first", PHRASE, "Answer:"), ("phrase late", LATE_PHRASE, "")):
        whole = run(model, short.items, never("static", **options), SHORT, eos="none", lead=lead)
        yield Group(label, short.items, whole, {"region of 5": prophet("static", **options)}, lead)


SHARES = (0.25, 0.5, 0.75)  # of the forwards
HEADS = (
    "order", "items", "score", *(f"shown at {100 * share:.0f} %" for share in SHARES),
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
