"""A task of a few questions for the tiny model, scored by a rule that some answers meet and others do not."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from dllm.parts import AnswerParts, AnswerScores, Item, Task, TooLarge, UserError

FAULTS = {kind.__name__: kind for kind in (ValueError, UserError, TooLarge)}


class Questions(Task):
    """``count`` questions in two sub-tasks with answers of 16 and 8 tokens. score: whether the text is of even length;
    the second metric is there for half of the questions. Scoring the item ``deadly`` kills its process, ``deaths``
    times in all, counted by files that begin with ``tally``; with ``fault`` it raises that error instead. whole: the
    score is the median length of all answers, a hundredth of it, and no mean."""

    name = "questions"

    def __init__(
        self, count: int = 6, deadly: str = "", deaths: int = 0, tally: str = "", fault: str = "", whole: bool = False
    ) -> None:
        self.whole = whole
        self.count, self.deadly, self.deaths, self.tally = count, deadly, deaths, Path(f"{tally}-{deaths}")
        self.fault = fault

    def items(self) -> Sequence[Item]:
        return [Item(f"q{n}", ("even", "odd")[n % 2], f"w{n} w{n + 1}", {}, (16, 8)[n % 2]) for n in range(self.count)]

    def score(self, item: Item, text: str) -> AnswerScores:
        if self.fault and item.id == self.deadly:
            raise FAULTS[self.fault](f"{item.id} is at fault")
        died = len(list(self.tally.parent.glob(f"{self.tally.name}.*"))) if item.id == self.deadly else self.deaths
        if died < self.deaths:
            self.tally.with_suffix(f".{died}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"score": float(len(text) % 2 == 0), "judged": 1.0 if item.task == "even" else None}

    def judged(self, item: Item, text: str) -> tuple[AnswerScores, AnswerParts]:
        return ({}, {"length": [len(text)]}) if self.whole else super().judged(item, text)

    def total(self, task: str, metric: str, parts: Sequence[Any]) -> float:
        return median(one for (one,) in parts) / 100

    def stamp(self) -> dict[str, str]:
        return {"suite": "questions", "template": "1", "data": f"{self.count}"}
