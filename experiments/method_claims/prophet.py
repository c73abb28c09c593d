"""Early answer convergence, and the forwards that Prophet saves by it (arXiv 2508.19982).

The paper's answers are a few tokens behind a long reasoning, and its anchor is a phrase. The suite's answers are the
whole text, from the canvas's first position on: the region lies there. The models were never trained on a phrase before
an answer. So the anchor that they know is the bracket with which every list begins. The paper's phrase and its place,
at 0.78 of the canvas, have rows of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from dllm import Model, part
from dllm.samplers.base import Sampler
from dllm.tasks.mini import lists
from dllm.tasks.mini import tasks as mini
from dllm.tasks.mini.items import Sample
from experiments import markdown
from experiments.markdown import percent
from experiments.method_claims.runs import Run, items_of, less, run
from experiments.method_claims.standing import HEADS, Standing, courses, line

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
    short, listed, long = (items_of(tasks, count) for tasks in (mini.SHORT_ANSWERS, list_tasks(), mini.LONG_ANSWERS))
    early = [
        row for order in ORDERS for row in (
            watched(model, short, order, never(one_each(order), **PLAIN), SHORT),
            watched(model, listed, f"{order}, lists", never(one_each(order), **PLAIN), SHORT),
            watched(model, listed, f"{order}, lists, anchor", never(one_each(order), **BRACKET), SHORT),
            watched(model, long, f"{order}, 128 tokens", never(one_each(order, 4), **PLAIN), LONG),
        )
    ]  # fmt: skip
    exits = [row for group in groups(short, listed) for row in group.lines(model)]
    return (
        f"### Answers that stand early, {model.name}\n\n{markdown.table(HEADS, early)}\n\n"
        f"### Prophet on {model.name}\n\n{markdown.table(PROPHET_HEADS, exits)}\n"
    )


def list_tasks() -> list[str]:
    return [task for task in mini.SHORT_ANSWERS if task in lists.TASKS]


def watched(model: Model, items: Sequence[Sample], label: str, sampler: Sampler, length: int) -> tuple[str, ...]:
    """A row of the first table."""
    seen = Standing()
    done = run(model, items, sampler, length, eos="keep", observe=seen)
    return line(label, done, courses(model, items, done, seen))


@dataclass(frozen=True)
class Group:
    """Decodes that may end early, by label, and the one that they are measured by. lead: given text before the
    answer."""

    items: Sequence[Sample]
    label: str
    whole: Sampler | str
    exits: dict[str, Sampler]
    lead: str = ""

    def lines(self, model: Model) -> Iterator[tuple[str, ...]]:
        """Rows of the second table."""
        base = self.decoded(model, self.whole)
        count = str(len(self.items))
        yield self.label, count, percent(base.right), f"{base.nfe:.1f}", "", ""
        for label, sampler in self.exits.items():
            done = self.decoded(model, sampler)
            saved, same = less(done.nfe, base.nfe), percent(done.same(base))
            yield f"{self.label}: {label}", count, percent(done.right), f"{done.nfe:.1f}", saved, same

    def decoded(self, model: Model, sampler: Sampler | str) -> Run:
        return run(model, self.items, sampler, SHORT, eos="keep", lead=self.lead)


def groups(short: Sequence[Sample], listed: Sequence[Sample]) -> list[Group]:
    def sized(inner: Inner, **options: Any) -> dict[str, Sampler]:
        return {f"region of {length}": prophet(inner, **options, length=length) for length in (5, 16)}

    phrase, late = ({"region of 5": prophet("static", **options)} for options in (PHRASE, LATE_PHRASE))
    return [
        Group(short, "one a forward", "static", {"all masks": prophet("static"), **sized("static", **PLAIN)}),
        Group(short, "threshold", "confidence", sized("confidence", **PLAIN)),
        Group(listed, "lists", "static", sized("static", **PLAIN)),
        Group(listed, "lists, anchor", never("static", **BRACKET), sized("static", **BRACKET)),
        Group(short, "phrase first", never("static", **PHRASE), phrase, "Answer:"),
        Group(short, "phrase late", never("static", **LATE_PHRASE), late),
    ]
