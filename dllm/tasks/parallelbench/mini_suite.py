"""Items of suite ``mini``: the same tasks in the vocabulary of the mini models, which were never trained on them."""

from __future__ import annotations

from collections.abc import Sequence

from dllm.prompts import Message
from dllm.tasks.base import AnswerScores, Item
from dllm.tasks.parallelbench import mini
from dllm.tasks.parallelbench.classic import Questions
from dllm.tasks.shapes import shape_of

MINI_BUDGET, MINI_COUNT = 32, 100
PUZZLES = ("latin_square", "sudoku")
WRITING_TASK = "words_to_sentence"


def _full(task: str) -> str:
    group = "puzzle" if task in PUZZLES else task if task == WRITING_TASK else "waiting_line"
    return task if group == task else f"{group}/{task}"


SHORT_NAMES = {_full(task): task for task in mini.TASKS}


def mini_questions(tasks: Sequence[str], count: int | None, seed: int) -> Questions:
    """``count`` held-back questions of each task."""
    found = Questions()
    for name in tasks:
        samples = mini.generate(SHORT_NAMES[name], seed, MINI_COUNT if count is None else count)
        for number, sample in enumerate(samples):
            chat: list[Message] = sample.messages
            shape = shape_of(SHORT_NAMES[name], sample.truth)
            found.items.append(Item(f"{name}/{number}", name, chat, sample.truth, MINI_BUDGET, constraint=shape))
        # The wording is code: a fixed question represents it.
        found.wording[name] = mini.generate(SHORT_NAMES[name], 0, 1)[0].prompt
    return found


def mini_scores(item: Item, text: str) -> AnswerScores:
    return mini.judge(SHORT_NAMES[item.task], item.truth, text)
