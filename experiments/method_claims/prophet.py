"""Early answer convergence, and the forwards that Prophet saves by it (arXiv 2508.19982).

The paper's answers are a few tokens behind a long reasoning, and its anchor is a phrase. The suite's answers are the
whole text, from the canvas's first position on: the region lies there. The models were never trained on a phrase before
an answer. So the anchor that they know is the bracket with which every list begins. The paper's phrase and its place,
at 0.78 of the canvas, have rows of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from dllm import Model, part
from dllm.samplers.base import Sampler
from dllm.tasks.mini import lists
from dllm.tasks.mini import tasks as mini
from dllm.tasks.mini.items import Sample
from experiments.method_claims.runs import Run, items_of, less, run
from experiments.method_claims.standing import HEADS, Course, Standing, courses, line
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
