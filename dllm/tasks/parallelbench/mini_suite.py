"""Suite ``mini`` as items: the same tasks in the vocabulary and the wording of the mini models, never trained on."""

from __future__ import annotations

from collections.abc import Sequence

from dllm.prompts import Message
from dllm.tasks.base import Item, Scores
from dllm.tasks.parallelbench import mini
from dllm.tasks.parallelbench.classic import Questions

BUDGET, COUNT = 32, 100
PUZZLES = ("latin_square", "sudoku")
WRITING = "words_to_sentence"


def _full(task: str) -> str:
    group = "puzzle" if task in PUZZLES else task if task == WRITING else "waiting_line"
    return task if group == task else f"{group}/{task}"


NAMES = {_full(task): task for task in mini.TASKS}


def questions(tasks: Sequence[str], count: int | None, seed: int) -> Questions:
    """``count`` held-back questions of each task."""
    found = Questions()
    for name in tasks:
        samples = mini.generate(NAMES[name], seed, COUNT if count is None else count)
        for number, sample in enumerate(samples):
            chat: list[Message] = sample.messages
            found.items.append(Item(f"{name}/{number}", name, chat, sample.truth, BUDGET))
        # The wording lives in code: a fixed question stands for it.
        found.wording[name] = mini.generate(NAMES[name], 0, 1)[0].prompt
    return found


def judged(item: Item, text: str) -> Scores:
    return {**mini.judge(NAMES[item.task], item.truth, text)}
