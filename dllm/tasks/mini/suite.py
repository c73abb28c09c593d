"""Suite ``mini`` as items: held-out questions of the mini models' tasks, in trained wordings and known names."""

from __future__ import annotations

from collections.abc import Sequence

from dllm.prompts import Message
from dllm.tasks.answer_formats import shape_of
from dllm.tasks.base import AnswerScores, Item
from dllm.tasks.mini import lists, puzzles, records, tasks
from dllm.tasks.parallelbench.classic import Questions

COUNT = 100
_GROUPS = {
    **dict.fromkeys(lists.TASKS, "waiting_line"),
    **dict.fromkeys(puzzles.TASKS, "puzzle"),
    **dict.fromkeys(records.TASKS, "writing"),
}
# words_to_sentence is a group of its own, as in ParallelBench.
SUITE_NAMES = {f"{_GROUPS[task]}/{task}" if task in _GROUPS else task: task for task in tasks.TASKS}


def questions(names: Sequence[str], count: int | None, seed: int) -> Questions:
    """``count`` held-out questions of each task, by full name."""
    out = Questions()
    for name in names:
        task = SUITE_NAMES[name]
        for number, sample in enumerate(tasks.generate(task, seed, COUNT if count is None else count)):
            chat: list[Message] = sample.messages
            shape = shape_of(task, sample.truth)
            item = Item(f"{name}/{number}", name, chat, sample.truth, tasks.longest(task), constraint=shape)
            out.items.append(item)
        # The wordings live in code: a fixed question in the plain one stands for them.
        out.wording[name] = tasks.generate(task, 0, 1, wording="plain")[0].prompt
    return out


def mini_scores(item: Item, text: str) -> AnswerScores:
    return {**tasks.judge(SUITE_NAMES[item.task], item.truth, text)}
