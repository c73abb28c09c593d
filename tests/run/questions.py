"""A task of a few questions for the tiny model, scored by a rule that some answers meet and others do not."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from dllm.tasks.base import Item, Scores, Task


class Questions(Task):
    """``count`` questions in two sub-tasks with answers of 16 and 8 tokens. score: whether the text is of even length;
    the second metric is there for half of the questions. deadly: an item whose scoring kills its process, while the
    file ``spare`` does not exist; ``once``: it makes that file first."""

    name = "questions"

    def __init__(self, count: int = 6, deadly: str = "", spare: str = "", once: bool = False) -> None:
        self.count, self.deadly, self.spare, self.once = count, deadly, Path(spare), once

    def items(self) -> Sequence[Item]:
        return [
            Item(f"q{n}", ("even", "odd")[n % 2], f"w{n} w{n + 1}", {}, (16, 8)[n % 2]) for n in range(self.count)
        ]

    def score(self, item: Item, text: str) -> Scores:
        if item.id == self.deadly and not self.spare.is_file():
            if self.once:
                self.spare.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"score": float(len(text) % 2 == 0), "judged": 1.0 if item.task == "even" else None}

    def stamp(self) -> dict[str, str]:
        return {"suite": "questions", "template": "1", "data": f"{self.count}"}
