"""Some items of another task, in a drawn order: what ``dllm tune`` decodes at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dllm.tasks.base import AnswerParts, AnswerScores, Item, Task
from dllm.tasks.build import task_of


class Portion(Task):
    """of: the ``task`` section of a configuration. seed: of the order. start, end: places in it."""

    def __init__(self, of: Mapping[str, Any], seed: int, start: int, end: int) -> None:
        self.task = task_of(of)
        items = self.task.items()
        order = np.random.default_rng(seed).permutation(len(items)).tolist()
        self.name, self.estimator, self.apart = self.task.name, self.task.estimator, self.task.apart
        self._items = [items[place] for place in order[start:end]]

    def items(self) -> Sequence[Item]:
        return self._items

    def score(self, item: Item, text: str) -> AnswerScores:
        return self.task.score(item, text)

    def judged(self, item: Item, text: str) -> tuple[AnswerScores, AnswerParts]:
        return self.task.judged(item, text)

    def total(self, task: str, metric: str, parts: Sequence[Any]) -> float | Mapping[str, float] | None:
        return self.task.total(task, metric, parts)

    def stamp(self) -> dict[str, str]:
        return self.task.stamp()

    def missing(self) -> dict[str, str]:
        return self.task.missing()
