"""The demo suite as questions: its training half to learn from, its held-out half for the measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from dllm.prompts import Message
from dllm.tasks.mini import tasks
from dllm.tasks.mini.items import Sample


@dataclass(frozen=True)
class MiniQuestion:
    """A question of a task. gen_length: of its canvas. judge: 1.0 for a right answer, else 0.0."""

    task: str
    prompt: list[Message]
    gen_length: int
    judge: Callable[[str], float]


def items(split: str, count: int, seed: int) -> Iterator[MiniQuestion]:
    """``count`` items of every task, from ``split`` (``train`` or ``test``)."""
    for task in tasks.TASKS:
        for sample in tasks.generate(task, seed + 2000, count, split):
            yield MiniQuestion(task, sample.messages, tasks.longest(task), partial(score, sample))


def score(sample: Sample, text: str) -> float:
    return tasks.score(sample, text)["score"]
