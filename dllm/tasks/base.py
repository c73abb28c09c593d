"""The contract of a task: items with prompts and truths, and scores of an answer. No task knows a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dllm.prompts import Prompt

if TYPE_CHECKING:
    from dllm.constraints.kinds import Constraint
    from dllm.scoring.decisions.likelihood import Estimator

# Metric name to value in [0, 1]. None: the component that would judge it is missing; never 0 or 1 instead.
AnswerScores = Mapping[str, float | None]
# What an answer gives to each metric that is not a mean over answers (BLEU: its text and the right one), as JSON
AnswerParts = Mapping[str, Any]


@dataclass(frozen=True)
class Item:
    """One question."""

    id: str  # unique in the suite
    task: str  # the task within the suite (``waiting_line/copy``)
    prompt: Prompt  # what the model reads
    truth: Mapping[str, Any]  # what the scorer needs (JSON values)
    budget: int  # tokens that the answer may take
    stop: tuple[str, ...] = ()  # strings that end it
    # if there are any, the answer is the likeliest of them after the prompt (``dllm.tasks.choices.likeliest_choice``)
    # instead of a decoded text, and ``Task.score`` gets its text
    choices: tuple[str, ...] = ()
    # what every well-formed answer is (None: anything). Whether an answer is that is scored as ``valid``, and
    # ``constraint=from_task`` decodes under it
    constraint: Constraint | None = None


class Task:
    """A suite of items. Building one reads files, and no weights. Raises UserError for settings that cannot work."""

    name: str
    estimator: Estimator | None = None  # for items with choices; None: its defaults
    apart = False  # ``score`` waits for processes of its own, so several threads may call it at a time

    def items(self) -> Sequence[Item]:
        """All items, always in the same order."""
        raise NotImplementedError

    def score(self, item: Item, text: str) -> AnswerScores:
        """Scores of an answer. Tables show the one called ``score`` first."""
        raise NotImplementedError

    def judged(self, item: Item, text: str) -> tuple[AnswerScores, AnswerParts]:
        """Scores of an answer, and its parts of metrics over all answers. With parts alone, the first is the score."""
        return self.score(item, text), {}

    def total(self, task: str, metric: str, parts: Sequence[Any]) -> float | Mapping[str, float] | None:
        """A metric over all answers to a sub-task, as a share: 1 is shown as 100. None: it cannot be judged."""
        raise NotImplementedError

    def stamp(self) -> dict[str, str]:
        """What identifies the questions: suite, template hash, data hash. Part of every row and of a run's identity."""
        raise NotImplementedError

    def missing(self) -> dict[str, str]:
        """Tasks that cannot be asked and scores that cannot be judged, each with a sentence that says why."""
        return {}
