"""An evaluation: the items of a task under one configuration, answered and scored."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from dllm.app.command_line.endpoint_settings import is_endpoint
from dllm.app.runs.answers import AnswerSource, Batch, SampleAnswer
from dllm.app.runs.endpoint_answers import EndpointAnswers
from dllm.app.runs.network_answers import NetworkAnswers
from dllm.common.errors import UserError
from dllm.common.installing import not_installed
from dllm.common.links import follows
from dllm.record.folders import SampleKey
from dllm.record.measures import Totals, by_task, mean
from dllm.record.results import ResultRow
from dllm.tasks.answer_formats import is_word, lacking_library
from dllm.tasks.base import Item, Task
from dllm.tasks.build import task_of

FinishedSample = tuple[ResultRow, dict[str, Any] | None]  # a row of results, and its trace
Judgement = dict[str, Any]  # keys of a row: its scores, and its parts of metrics over all answers
MAX_PROGRAMS = 8  # programs at a time; each may take 2 GiB
MAX_WAITING = 4  # samples that may wait for a scorer: what a killed run decodes again


@dataclass
class Evaluation:
    """The samples of a task, decoded and scored batch by batch."""

    config: dict[str, Any]  # the resolved configuration
    task: Task  # what is asked, and how an answer is scored
    items: dict[str, Item]  # by id
    answers: AnswerSource  # who answers
    content: dict[str, str]  # identifies the checkpoint and the questions

    @staticmethod
    def of(config: Mapping[str, Any]) -> Evaluation:
        """Reads the task's data, no weights. Raises UserError for what cannot work."""
        task = task_of(config["task"])
        items = {item.id: item for item in task.items()}
        if not items:
            raise UserError(f"task={config['task']['name']} has no items. Choose others of its settings.")
        answers = EndpointAnswers(config, items) if is_endpoint(config) else NetworkAnswers(config, task, items)
        stamp = {f"task {name}": value for name, value in task.stamp().items()}
        return Evaluation(dict(config), task, items, answers, {**answers.content, **stamp})

    @property
    def keys(self) -> list[SampleKey]:
        """Every sample, in the order of the items."""
        return [(name, sample) for name in self.items for sample in range(self.config["samples"])]

    def missing(self, done_keys: set[SampleKey]) -> list[Batch[Any]]:
        """The batches that hold a sample not yet in ``done_keys``."""
        return [batch for batch in self.answers.batches if not done_keys.issuperset(batch.keys)]

    def rows(self, batches: Iterable[Batch[Any]]) -> Iterator[FinishedSample]:
        """Decode and score. Yields a sample's row, and its trace if asked for, as soon as the sample is finished.

        Scores that need processes of their own are awaited while the next batches decode.
        """
        samples = ((self._row(answer), answer.trace) for answer in self.answers.answers(batches))
        if follows():  # rank 0 scores
            return samples
        return scored(samples, self._scores, scorers(self.task, self.answers.device))

    def _scores(self, row: ResultRow) -> Judgement:
        item, text = self.items[row["id"]], row["text"]
        scores, parts = self.task.judged(item, text)
        if item.constraint is not None:
            judged = lacking_library(item.constraint) is None
            scores = {**scores, "valid": float(is_word(item.constraint, text)) if judged else None}
        return {"scores": scores, "parts": parts} if parts else {"scores": scores}

    def totals(self, rows: Sequence[ResultRow]) -> Totals:
        """The metrics over all answers, by sub-task. Several answers to an item count by their mean."""
        return {name: metrics for name, mine in by_task(rows).items() if (metrics := self._totals(name, mine))}

    def _totals(self, task: str, rows: Sequence[ResultRow]) -> dict[str, float | None]:
        parts: dict[str, dict[int, list[Any]]] = {}  # by metric, then by the answer's number
        for row in rows:
            for metric, part in row.get("parts", {}).items():
                parts.setdefault(metric, {}).setdefault(row["sample"], []).append(part)
        totals: dict[str, float | None] = {}
        for metric, by_number in parts.items():
            each = [self.task.total(task, metric, values) for values in by_number.values()]
            by_key = [total if isinstance(total, Mapping) else {"": total} for total in each]
            for key in dict.fromkeys(key for total in by_key for key in total):
                values = [value for total in by_key if (value := total.get(key)) is not None]
                totals[f"{metric}/{key}" if key else metric] = mean(values) if len(values) == len(by_key) else None
        if totals and not any("score" in row["scores"] for row in rows):
            totals = {"score": next(iter(totals.values())), **totals}
        return totals

    def unjudged(self) -> list[str]:
        """Why tasks cannot be asked, and scores not be judged, in sentences."""
        constraints = [item.constraint for item in self.items.values() if item.constraint is not None]
        lacking = sorted({library for rule in constraints if (library := lacking_library(rule)) is not None})
        validity = [str(not_installed("the score valid", library, "constraints")) for library in lacking]
        return [*self.task.missing().values(), *validity]

    def _row(self, answer: SampleAnswer) -> ResultRow:
        """Still without scores."""
        sample, first = answer.batch.samples[answer.number], answer.batch.samples[0]
        return {
            "id": sample.id,
            "sample": sample.sample,
            "task": self.items[sample.id].task,
            **self.task.stamp(),
            "scores": None,
            **answer.columns,
            "prompt": sample.prompt_text,
            "batch": f"{first.id}/{first.sample}",
        }


def scorers(task: Task, device: torch.device) -> int:
    """How many answers are scored at a time beside the decode; 0: each one before the decode goes on.

    A GPU would wait for every program, so its host's other cores run them. A CPU would not decode sooner, and its times
    would be those of a busy machine.
    """
    return 0 if device.type == "cpu" or not task.apart else max(1, min(MAX_PROGRAMS, (os.cpu_count() or 1) - 1))


def scored(
    samples: Iterable[FinishedSample], score: Callable[[ResultRow], Judgement], workers: int
) -> Iterator[FinishedSample]:
    """The samples with what scoring adds to their rows, in the same order: threads await scores that need processes of
    their own while the next samples are decoded. workers: as of ``scorers``."""
    if not workers:
        yield from (({**row, **score(row)}, trace) for row, trace in samples)
        return
    waiting: deque[tuple[Future[Judgement], ResultRow, dict[str, Any] | None]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        for row, trace in samples:
            waiting.append((pool.submit(score, row), row, trace))
            while waiting and (waiting[0][0].done() or len(waiting) > MAX_WAITING * workers):
                yield with_scores(*waiting.popleft())
        while waiting:
            yield with_scores(*waiting.popleft())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def with_scores(score: Future[Judgement], row: ResultRow, trace: dict[str, Any] | None) -> FinishedSample:
    return {**row, **score.result()}, trace
