"""A task of lm-evaluation-harness as a task of ours: its prompts, worked examples, stop strings, filters and metrics.

Its questions come from the hub, or from a JSON-lines file with the hub's columns (``path``), which needs no network.
"""

from __future__ import annotations

import ast
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dllm.errors import UserError, nearest
from dllm.likelihood import Estimator
from dllm.prompts import Begun
from dllm.store import digest
from dllm.tasks.base import Item, Scores, Task
from dllm.tasks.standard.rows import Row, read_rows

INSTALL = "which is not installed. Install it with: pip install 'dllm[eval]'"
BUDGET = 256  # tokens of an answer where the harness names none: its own default
# What decides how a prompt reads.
TEMPLATE = (
    "task", "doc_to_text", "doc_to_target", "doc_to_choice", "description", "gen_prefix", "target_delimiter",
    "fewshot_delimiter", "num_fewshot", "generation_kwargs", "metadata",
)  # fmt: skip


class Harness(Task):
    """harness: the name of the task. fields: columns that a local file must have. score: the metric or filter that
    tables show first. path: a local file; shots_path: one with worked examples. shots: how many of them stand before
    a question (None: as the harness has it), limit: the first N questions, budget: tokens of an answer (None: as the
    harness has it). seed: draws the worked examples; 1234 is lm-eval's own.

    Raises UserError when lm-eval is not installed, or the data cannot be had.
    """

    stock: str | None = None  # the task's file below lm_eval/tasks where a subclass scores by itself

    def __init__(
        self, harness: str, fields: Sequence[str] = (), score: str | None = None, path: str | None = None,
        shots_path: str | None = None, shots: int | None = None, limit: int | None = None, budget: int | None = None,
        seed: int = 1234,
    ) -> None:  # fmt: skip
        self.name, self.fields, self.primary = harness, tuple(fields), score
        self.path, self.shots_path, self.shots, self.limit = path, shots_path, shots, limit
        self.budget, self.seed = budget, seed
        if limit is not None and limit < 1:
            raise UserError(f"task.limit={limit} must be at least 1, or null for all questions.")
        self.library = imported()
        self.parts = dict(self.build())

    def build(self) -> Iterator[tuple[str, Any]]:
        """The harness's tasks by name; a suite has several."""
        config = self.config(self.stock or place_of(self.name))
        yield self.name, self.loaded(self.name, config, self.rows(config))

    def config(self, place: Path | str) -> dict[str, Any]:
        """The task's own YAML. Of tasks that a subclass scores, no function is imported: theirs run code or need
        libraries that exclude ours."""
        from lm_eval.tasks._yaml_loader import load_yaml

        config = dict(load_yaml(stock_folder() / place, resolve_func=False))
        if self.stock is not None:
            return unscored(config)
        if config.get("unsafe_code"):
            raise UserError(
                f"task.harness={self.name!r} runs programs that the model writes, outside of the sandbox that "
                "task=humaneval and task=mbpp use. Choose one of these."
            )
        try:
            return dict(load_yaml(stock_folder() / place))
        except Exception as error:  # whatever the task's own module does when it is imported
            raise UserError(f"task.harness={self.name!r} cannot be imported ({first_line(error)}).") from error

    def rows(self, config: Mapping[str, Any]) -> dict[str, list[Row]] | None:
        """The local questions by split, None for the hub's."""
        if self.path is None:
            return None
        split = config.get("test_split") or config.get("validation_split") or "test"
        rows = {split: read_rows(self.path, self.fields)}
        if self.shots_path is not None:
            rows[example_split(config) or "train"] = read_rows(self.shots_path, self.fields, "task.shots_path")
        return rows

    def loaded(self, name: str, config: dict[str, Any], rows: dict[str, list[Row]] | None) -> Any:
        """The harness's task object, its data read."""
        from datasets import Dataset
        from lm_eval.api.task import ConfigurableTask

        shots = config.get("num_fewshot") or 0 if self.shots is None else self.shots
        for key in ("tag", "group", "task_list", "class"):
            config.pop(key, None)
        config["num_fewshot"] = shots
        try:
            if rows is not None:
                config = localised(self.name, config, rows, shots)
                data = {split: Dataset.from_list(entries) for split, entries in rows.items()}
                config["custom_dataset"] = lambda **_: data
            task = ConfigurableTask(config=config)
        except UserError:
            raise
        except Exception as error:  # datasets and the hub raise a dozen kinds, and their own subclasses of OSError
            where = f"task.path={self.path!r}" if rows is not None else f"{config.get('dataset_path')} from the hub"
            columns = f" with {', '.join(self.fields)}" if self.fields else ""
            raise UserError(
                f"task={self.name} cannot read {where} ({first_line(error)}). Without a network, copy the questions as "
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

    def item(self, name: str, task: Any, number: int, doc: Row) -> Item:
        """One question, asked as the harness asks it. A prefilled answer stands behind the chat template's header."""
        context = task.fewshot_context(doc, task.config.num_fewshot)
        begin = task.doc_to_prefix(doc)
        options = task.config.generation_kwargs or {}
        if not isinstance(context, str) or task.OUTPUT_TYPE not in ("generate_until", "multiple_choice"):
            raise UserError(f"task.harness={self.name!r} asks for more than an answer or a choice. Use lm_eval itself.")
        if task.OUTPUT_TYPE == "multiple_choice":
            choices = tuple(f"{task.config.target_delimiter}{choice}" for choice in task.doc_to_choice(doc))
            gold = task.doc_to_target(doc)
            truth = {"gold": gold if isinstance(gold, int) else task.doc_to_choice(doc).index(gold)}
            return Item(f"{name}/{number}", name, context, truth, 1, (), choices)
        until = options.get("until") or []
        return Item(
            id=f"{name}/{number}", task=name, prompt=Begun(context, begin) if begin else context, truth={"doc": doc},
            budget=self.budget or int(options.get("max_gen_toks", BUDGET)),
            stop=(until,) if isinstance(until, str) else tuple(until),
        )  # fmt: skip

    def score(self, item: Item, text: str) -> Scores:
        """Every metric of every filter; a filter's only metric goes by the filter's name."""
        if item.choices:
            hit = float(item.choices.index(text) == item.truth["gold"])
            return {"score": hit, "acc": hit}
        scores = self.judge(item, text)
        return {"score": scores[self.primary] if self.primary in scores else next(iter(scores.values())), **scores}

    def judge(self, item: Item, text: str) -> Scores:
        from lm_eval.api.instance import Instance

        task, doc = self.parts[item.task], dict(item.truth["doc"])
        instance = Instance("generate_until", doc, ("", {}), 0, metadata=(item.task, 0, 1), resps=[text])
        for pipeline in task._filters:
            pipeline.apply([instance])
        scores: Scores = {}
        for name, answer in instance.filtered_resps.items():
            found = task.process_results(doc, [answer])
            alone = len(found) == 1 and name != "none"
            scores |= {name if alone else metric: number(value) for metric, value in found.items()}
        return scores

    def stamp(self) -> dict[str, str]:
        configs = [task.config for task in self.parts.values()]
        texts = [{key: described(getattr(config, key, None)) for key in TEMPLATE} for config in configs]
        docs = [[str(item.prompt), item.truth] for item in self._items]
        return {
            "suite": f"lm-eval {version('lm_eval')} {self.name}", "template": hashed(texts), "data": hashed(docs),
        }  # fmt: skip


class Choices(Harness):
    """A task of the harness whose answers are choices, told apart by their likelihood (see dllm.likelihood)."""

    def __init__(
        self, harness: str, likelihood: str = "mc_count", mc_num: int = 128, mc_batch: int = 8, guidance: float = 0.0,
        mc_seed: int = 1234, **options: Any,
    ) -> None:  # fmt: skip
        self.estimator = Estimator(likelihood, mc_num, min(mc_batch, mc_num), guidance, mc_seed)
        super().__init__(harness, **options)


def imported() -> Any:
    """lm_eval, with its notices about its own configuration silenced. Raises UserError when it is not installed."""
    try:
        import datasets  # noqa: F401
        import lm_eval.tasks
    except ImportError as error:
        raise UserError(f"this task needs lm-evaluation-harness, {INSTALL} ({error})") from None
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    return lm_eval.tasks


def stock_folder() -> Path:
    return Path(imported().__file__).parent


def place_of(name: str) -> Path:
    """The YAML file of a stock task. Most tasks lie in a folder of their name; finding others takes some seconds."""
    near = stock_folder() / name / f"{name}.yaml"
    if near.is_file():
        return near
    index = imported().TaskManager().task_index
    found = index.get(name)
    if found is None or found.yaml_path is None or "task" not in (found.cfg or {}) or "group" in (found.cfg or {}):
        hint = nearest(name, index)
        why = "is unknown to lm-eval" if found is None else "is a group of tasks; name one of them"
        raise UserError(f"task.harness={name!r} {why}.{hint}")
    return Path(found.yaml_path)


def example_split(config: Mapping[str, Any]) -> str | None:
    """The split that worked examples come from, None where they are written into the task."""
    examples = config.get("fewshot_config") or {}
    split = config.get("fewshot_split") or examples.get("split")
    return split if split or examples.get("samples") else config.get("training_split")


def localised(name: str, config: dict[str, Any], rows: Mapping[str, Any], shots: int) -> dict[str, Any]:
    """The configuration without its way to the hub. Raises UserError when worked examples are wanted and none there."""
    split = example_split(config)
    if split is not None and split not in rows:
        if shots:
            raise UserError(
                f"task={name} puts {shots} worked examples before a question, and task.path gives none. "
                "Set task.shots=0, or name a file with examples: task.shots_path=FILE."
            )
        config = {**config, "fewshot_split": None, "training_split": None}
    gone = ("dataset_path", "dataset_name", "dataset_kwargs", "metadata")
    return {key: value for key, value in config.items() if key not in gone}


def unscored(config: dict[str, Any]) -> dict[str, Any]:
    """A task without its functions: prompts and stop strings stay, worked examples are read from the source."""
    for key in ("process_results", "process_docs", "filter_list", "metric_list", "unsafe_code"):
        config.pop(key, None)
    samples = config.get("fewshot_config", {}).get("samples")
    if isinstance(samples, str):
        config["fewshot_config"]["samples"] = literal(samples)
    return config


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def literal(place: str) -> Any:
    """What ``FOLDER/MODULE.FUNCTION`` returns, read from its source: importing the module would need its libraries."""
    file, _, function = place.rpartition(".")
    for node in ast.walk(ast.parse(Path(f"{file}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name == function and isinstance(node.body[-1], ast.Return):
            return ast.literal_eval(node.body[-1].value or ast.Constant(None))
    raise UserError(f"lm-eval {version('lm_eval')} keeps no worked examples in {place}. Use task.shots=0.")


def number(value: Any) -> float | None:
    """A metric of one answer; a list (of instructions followed) counts by its mean."""
    if isinstance(value, list | tuple):
        return sum(map(float, value)) / len(value) if value else None
    return None if value is None else float(value)


def described(value: Any) -> Any:
    return f"{value.__module__}.{value.__qualname__}" if callable(value) else value


def hashed(value: Any) -> str:
    return digest(json.dumps(value, sort_keys=True, default=str).encode())
