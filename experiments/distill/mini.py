"""The demo suite as questions: its training half to learn from, its held-back half for the measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from dllm.prompts import Message
from dllm.tasks.parallelbench import mini

CANVAS = 32  # tokens that an answer may take


@dataclass(frozen=True)
class MiniQuestion:
    """A question of a task. gen_length: of its canvas. judge: 1.0 for a right answer, else 0.0."""

    task: str
    prompt: list[Message]
    gen_length: int
    judge: Callable[[str], float]


def items(split: str, count: int, seed: int) -> Iterator[MiniQuestion]:
    """``count`` items of every task, from ``split`` (``train`` or ``test``)."""
    for task in mini.TASKS:
        for sample in mini.generate(task, seed + 2000, count, split):
            yield MiniQuestion(task, sample.messages, CANVAS, partial(score, sample))


def score(sample: mini.MiniItem, text: str) -> float:
    return sample.score(text)["score"]
