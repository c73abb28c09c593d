"""A task of lm-evaluation-harness as a task of ours, with its prompts, worked examples, stop strings and metrics.

Its questions come from the hub, or from a JSON-lines file with the hub's columns (``path``), which needs no network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from math import isnan
from pathlib import Path
from typing import Any

from dllm.common.digest import json_digest
from dllm.common.errors import UserError, first_line
from dllm.common.hub import hub_reachable, stay_offline_without_hub
from dllm.common.terminal import complain
from dllm.prompts import PrefilledPrompt
from dllm.tasks.base import AnswerParts, AnswerScores, Item, Task
from dllm.tasks.standard.json_lines import Doc, read_docs
from dllm.tasks.standard.stock import config_of, example_split, import_harness, local_config, task_file, template_of

DEFAULT_BUDGET = 256  # tokens of an answer where the harness names none; its own default


class Harness(Task):
    """harness: the name of the task, which must be given. fields: columns that a local file must have. score: the
    metric or filter that tables show first. path: a local file; shots_path: one with worked examples. shots: how many
    of them are before a question (None: as the harness has it), limit: the first N questions, budget: tokens of an
    answer (None: as the harness has it). seed: draws the worked examples; 1234 is lm-eval's own.

    Raises UserError when lm-eval is not installed, or the data cannot be had.
    """

    stock: str | None = None  # a subclass that scores by itself names the task's file below lm_eval/tasks

    def __init__(
        self,
        harness: str | None = None,
        fields: Sequence[str] = (),
        score: str | None = None,
        path: str | None = None,
        shots_path: str | None = None,
        shots: int | None = None,
        limit: int | None = None,
        budget: int | None = None,
        seed: int = 1234,
    ) -> None:
        if harness is None:
            raise UserError(
                "task=lm_eval needs task.harness=NAME, a task of lm-eval that generates; python -m dllm.app.lm_eval ls "
                "tasks lists them."
            )
        self.name, self.fields, self.primary = harness, tuple(fields), score
        self.path, self.shots_path, self.shots, self.limit = path, shots_path, shots, limit
        self.budget, self.seed, self.complaints = budget, seed, set[str]()
        if limit is not None and limit < 1:
            raise UserError(f"task.limit={limit} must be at least 1, or null for all questions.")
        if shots is not None and shots < 0:
            raise UserError(f"task.shots={shots} must be 0 or more, or null for as many as the harness has.")
        if path is None:
            stay_offline_without_hub()
        import_harness()
        self.parts = dict(self.build())

    def build(self) -> Iterator[tuple[str, Any]]:
        """The harness's tasks by name; a suite has several."""
        config = self.config(self.stock or task_file(self.name))
        yield self.name, self.load_task(self.name, config, self.rows(config))

    def config(self, place: Path | str) -> dict[str, Any]:
        """The task's own settings, without its functions where a subclass scores."""
        return config_of(self.name, place, with_functions=self.stock is None)

    def rows(self, config: Mapping[str, Any]) -> dict[str, list[Doc]] | None:
        """The local questions by split, None for the hub's."""
        if self.path is None:
            return None
        split = config.get("test_split") or config.get("validation_split") or "test"
        rows = {split: read_docs(self.path, self.fields)}
        if self.shots_path is not None:
            rows[example_split(config) or "train"] = read_docs(self.shots_path, self.fields, "task.shots_path")
        return rows

    def load_task(self, name: str, config: dict[str, Any], rows: dict[str, list[Doc]] | None) -> Any:
        """The harness's task object, with its data."""
        from datasets import Dataset
        from lm_eval.api.task import ConfigurableTask

        shots = config.get("num_fewshot") or 0 if self.shots is None else self.shots
        for key in ("tag", "group", "task_list"):
            config.pop(key, None)
        config["num_fewshot"] = shots
        try:
            if rows is not None:
                config = local_config(self.name, config, rows, shots)
                data = {split: Dataset.from_list(entries) for split, entries in rows.items()}
                config["custom_dataset"] = lambda **_: data
            task = ConfigurableTask(config=config)
        except UserError:
            raise
        except Exception as error:  # datasets and the hub raise a dozen kinds, and their own subclasses of OSError
            where = f"task.path={self.path!r}" if rows is not None else f"{config.get('dataset_path')} from the hub"
            columns = f" with {', '.join(self.fields)}" if self.fields else ""
            why = first_line(error) if rows is not None or hub_reachable() else "the hub cannot be reached from here"
            raise UserError(
                f"task={self.name} cannot read {where} ({why}). Without a network, copy the questions as "
                f"JSON lines{columns} and name the file: task.path=FILE."
            ) from None
        task.set_fewshot_seed(self.seed)
        return task

    def items(self) -> Sequence[Item]:
        return self._items

    @cached_property
    def _items(self) -> list[Item]:
        return [
            self.item(name, task, number, doc)
            for name, task in self.parts.items()
            for number, doc in enumerate(task.eval_docs)
            if self.limit is None or number < self.limit
        ]

    def item(self, name: str, task: Any, number: int, doc: Doc) -> Item:
        """One question, asked as the harness asks it. A prefilled answer is after the chat template's header."""
        context = task.fewshot_context(doc, task.config.num_fewshot)
        begin = task.doc_to_prefix(doc)
        options = task.config.generation_kwargs or {}
        if task.config.repeats > 1:
            raise UserError(
                f"task.harness={self.name!r} judges {task.config.repeats} answers to a question together. Use lm_eval "
                "itself."
            )
        if not isinstance(context, str) or task.OUTPUT_TYPE not in ("generate_until", "multiple_choice"):
            raise UserError(f"task.harness={self.name!r} asks for more than an answer or a choice. Use lm_eval itself.")
        if task.OUTPUT_TYPE == "multiple_choice":
            choices = tuple(f"{task.config.target_delimiter}{choice}" for choice in task.doc_to_choice(doc))
            gold = task.doc_to_target(doc)
            truth = {"gold": gold if isinstance(gold, int) else task.doc_to_choice(doc).index(gold)}
            return Item(f"{name}/{number}", name, context, truth, 1, (), choices)
        until = options.get("until") or []
        return Item(
            id=f"{name}/{number}",
            task=name,
            prompt=PrefilledPrompt(context, begin) if begin else context,
            truth={"doc": doc},
            budget=self.budget or int(options.get("max_gen_toks", DEFAULT_BUDGET)),
            stop=(until,) if isinstance(until, str) else tuple(until),
        )

    def score(self, item: Item, text: str) -> AnswerScores:
        """The metrics that are means over answers, of every filter. A filter with one metric gives it its name."""
        return self.judged(item, text)[0]

    def judged(self, item: Item, text: str) -> tuple[AnswerScores, AnswerParts]:
        if item.choices:
            hit = float(item.choices.index(text) == item.truth["gold"])
            return {"score": hit, "acc": hit}, {}
        scores, parts = self.judge(item, text)
        names = [*scores, *parts] if self.primary is None else [self.primary]
        first = next((name for name in (*names, *scores) if name in scores or name in parts), None)
        if first in scores:
            return {"score": scores[first], **scores}, parts
        return scores, parts if first is None else {first: parts[first], **parts}

    def filter_outputs(self, item: Item, text: str) -> dict[str, Any]:
        """What each of the harness's filters leaves of a text, by the filter's name."""
        from lm_eval.api.instance import Instance

        doc = dict(item.truth["doc"])
        instance = Instance("generate_until", doc, ("", {}), 0, metadata=(item.task, 0, 1), resps=[text])
        for pipeline in self.parts[item.task]._filters:
            pipeline.apply([instance])
        return dict(instance.filtered_resps)

    def judge(self, item: Item, text: str) -> tuple[dict[str, float | None], dict[str, Any]]:
        """Metrics of one answer, and its parts of those over all answers, whose names are lm-eval's: METRIC,FILTER."""
        task, doc = self.parts[item.task], dict(item.truth["doc"])
        scores: dict[str, float | None] = {}
        parts: dict[str, Any] = {}
        try:
            for name, answer in self.filter_outputs(item, text).items():
                metrics = task.process_results(doc, [answer])
                for metric, value in metrics.items():
                    if is_mean(task, metric) and (value is None or isinstance(json_value(value), int | float)):
                        alone = len(metrics) == 1 and name != "none"
                        number = None if value is None or isnan(value) else float(value)
                        scores[name if alone else full_name(metric, name, scores)] = number
                    else:
                        parts[full_name(metric, name, parts)] = json_value(value)
        except UserError:
            raise
        except Exception as error:  # a scorer of lm-eval may raise anything, and the answer is decoded
            self.say_once(f"lm-eval cannot score answers of {item.task} ({first_line(error)}): they have no score.")
            return dict.fromkeys(["score", *(metric for metric in task.aggregation() if is_mean(task, metric))]), {}
        return scores, parts

    def total(self, task: str, metric: str, parts: Sequence[Any]) -> float | Mapping[str, float] | None:
        """By lm-eval's own function. A number beyond 1, and BLEU, chrF and TER, are divided by 100."""
        name = metric.partition(",")[0]
        aggregate = self.parts[task].aggregation().get(name, mean_of)
        try:
            number = json_value(aggregate(parts))
            if isinstance(number, Mapping):  # a number for each length of a text
                return {key: as_share(name, float(value)) for key, value in number.items()}
            return None if isnan(number) else as_share(name, float(number))
        except Exception as error:
            self.say_once(f"lm-eval cannot compute {name} of {task} ({first_line(error)}): it has no score.")
            return None

    def say_once(self, sentence: str) -> None:
        if sentence not in self.complaints:
            self.complaints.add(sentence)
            complain(sentence)

    def stamp(self) -> dict[str, str]:
        docs = [[str(item.prompt), item.truth] for item in self._items]
        return {
            "suite": f"lm-eval {version('lm_eval')} {self.name}",
            "template": json_digest([template_of(task.config) for task in self.parts.values()]),
            "data": json_digest(docs),
        }


HUNDREDS = {"bleu", "chrf", "chrf++", "ter"}  # which sacrebleu gives in per cent


def as_share(metric: str, value: float) -> float:
    return value / 100 if metric in HUNDREDS or abs(value) > 1 else value


def is_mean(task: Any, metric: str) -> bool:
    """Whether lm-eval takes the mean over answers, as it does of metrics without a function of their own."""
    return getattr(task.aggregation().get(metric, mean_of), "__name__", "") in ("mean", "nanmean", mean_of.__name__)


def mean_of(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def full_name(metric: str, filter_name: str, names: Mapping[str, Any]) -> str:
    """As lm-eval writes it where there are several filters."""
    return metric if filter_name == "none" and metric not in names else f"{metric},{filter_name}"


def json_value(value: Any) -> Any:
    """A value as JSON keeps it."""
    if isinstance(value, Mapping):
        return {str(key): json_value(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_value(entry) for entry in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return json_value(value.tolist()) if hasattr(value, "tolist") else str(value)
