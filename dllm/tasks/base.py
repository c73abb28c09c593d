"""The contract of a task: items with prompts and truths, and a score for each answer. Nothing here knows a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dllm.prompts import Prompt

if TYPE_CHECKING:
    from dllm.analysis.likelihood import Estimator

# Metric name to value in [0, 1]; None: the component that would judge it is not there (never 0 or 1 instead).
Scores = dict[str, float | None]


@dataclass(frozen=True)
class Item:
    """One question. ``task`` is the task it belongs to within the suite (``waiting_line/copy``), ``id`` unique in the
    suite, ``budget`` the tokens its answer may take, ``truth`` whatever its scorer needs (JSON values).

    ``choices``: where there are any, the answer is not decoded but the likeliest of them behind the prompt
    (``dllm.tasks.choices.answer``), and ``Task.score`` gets its text."""

    id: str
    task: str
    prompt: Prompt
    truth: Mapping[str, Any]
    budget: int
    stop: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()


class Task:
    """A suite of items. Building one may read files and refuse (UserError); it never loads weights."""

    name: str
    estimator: Estimator | None = None  # of the likelihoods of items with choices
    apart = False  # ``score`` waits for processes of its own, and may be called from several threads at a time

    def items(self) -> Sequence[Item]:
        """All items, always in the same order."""
        raise NotImplementedError

    def score(self, item: Item, text: str) -> Scores:
        """Scores of an answer; ``score`` is the one that tables show first."""
        raise NotImplementedError

    def stamp(self) -> dict[str, str]:
        """What identifies the questions: suite, template hash, data hash. It goes into every row and the identity."""
        raise NotImplementedError

    def missing(self) -> dict[str, str]:
        """Tasks that cannot be asked and scores that cannot be judged here, each with a sentence that says why."""
        return {}
