"""Reads the tasks that come with lm-evaluation-harness, and refuses those that cannot be used here."""

from __future__ import annotations

import ast
import logging
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dllm.common.errors import UserError, first_line, nearest
from dllm.common.installing import not_installed

# Settings that change a prompt.
TEMPLATE = (
    "task",
    "doc_to_text",
    "doc_to_target",
    "doc_to_choice",
    "description",
    "gen_prefix",
    "target_delimiter",
    "fewshot_delimiter",
    "num_fewshot",
    "generation_kwargs",
    "metadata",
)
DOC_SPLITS = ("training_split", "validation_split", "test_split")


def import_harness() -> Any:
    """lm_eval, with its notices about its own configuration silenced. Raises UserError when it is not installed."""
    try:
        import datasets  # noqa: F401
        import lm_eval.tasks
    except ImportError:
        raise not_installed("this task", "lm-evaluation-harness", "eval") from None
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    return lm_eval.tasks


def stock_folder() -> Path:
    return Path(import_harness().__file__).parent


def task_file(name: str) -> Path:
    """The YAML file of a stock task. Most tasks are in a folder of their name; finding others takes some seconds."""
    near = stock_folder() / name / f"{name}.yaml"
    if Path(name).name == name and near.is_file():  # another path leads out of lm-eval, to anybody's functions
        return near
    index = import_harness().TaskManager().task_index
    entry = index.get(name)
    if entry is None or entry.yaml_path is None or "task" not in (entry.cfg or {}) or "group" in (entry.cfg or {}):
        if entry is None:
            way_out = " python -m dllm.app.lm_eval ls tasks lists all; --tasks FILE.yaml there takes one of your own."
            raise UserError(f"task.harness={name!r} is unknown to lm-eval.{nearest(name, index) or way_out}")
        raise UserError(f"task.harness={name!r} is a group of tasks. Name one of them.")
    return Path(entry.yaml_path)


def config_of(name: str, place: Path | str, with_functions: bool) -> dict[str, Any]:
    """A task's YAML. with_functions: import its own functions, which score. Otherwise none is imported: those of the
    code tasks run programs, and those of minerva_math need libraries that exclude ours. Raises UserError for a task
    that runs programs or cannot be imported."""
    from lm_eval.tasks._yaml_loader import load_yaml

    config = dict(load_yaml(stock_folder() / place, resolve_func=False))
    if not with_functions:
        return without_functions(config)
    if "class" in config:
        raise UserError(
            f"task.harness={name!r} is a class of lm-eval's own, which no settings describe. Use lm_eval itself: "
            f"python -m dllm.app.lm_eval --model dllm --tasks {name}"
        )
    if config.get("unsafe_code"):
        raise UserError(
            f"task.harness={name!r} runs programs that the model writes, outside of the sandbox that task=humaneval "
            "and task=mbpp use. Choose one of these."
        )
    try:
        return dict(load_yaml(stock_folder() / place))
    except Exception as error:  # a task's module may raise anything
        if "antlr4" in str(error):  # its advice, lm_eval[math], would break Hydra
            raise UserError(f"task.harness={name!r} needs an antlr that excludes Hydra's. Use task=math500.") from None
        raise UserError(f"task.harness={name!r} cannot be imported ({first_line(error)}).") from None


def template_of(config: Any) -> dict[str, Any]:
    """The settings that change a prompt, with functions by their names."""
    values = {key: getattr(config, key, None) for key in TEMPLATE}
    return {key: f"{v.__module__}.{v.__qualname__}" if callable(v) else v for key, v in values.items()}


def example_split(config: Mapping[str, Any]) -> str | None:
    """The split that worked examples come from, None where they are written into the task."""
    examples = config.get("fewshot_config") or {}
    split = config.get("fewshot_split") or examples.get("split")
    return split if split or examples.get("samples") else config.get("training_split")


def local_config(name: str, config: dict[str, Any], rows: Mapping[str, Any], shots: int) -> dict[str, Any]:
    """The configuration without its path on the hub. Raises UserError when worked examples are wanted and missing."""
    split = example_split(config)
    if split is not None and split not in rows:
        if shots:
            raise UserError(
                f"task={name} puts {shots} worked examples before a question, and task.path gives none. "
                "Set task.shots=0, or name a file with examples: task.shots_path=FILE."
            )
        config = {**config, "fewshot_split": None}
    config |= {key: None for key in DOC_SPLITS if config.get(key) not in rows}
    keys = ("dataset_path", "dataset_name", "dataset_kwargs", "metadata")
    return {key: value for key, value in config.items() if key not in keys}


def without_functions(config: dict[str, Any]) -> dict[str, Any]:
    """A task without its functions: prompts and stop strings stay, worked examples are read from the source."""
    for key in ("process_results", "process_docs", "filter_list", "metric_list", "unsafe_code"):
        config.pop(key, None)
    samples = config.get("fewshot_config", {}).get("samples")
    if isinstance(samples, str):
        config["fewshot_config"]["samples"] = literal(samples)
    return config


def literal(place: str) -> Any:
    """What ``FOLDER/MODULE.FUNCTION`` returns, read from its source: importing the module would need its libraries."""
    file, _, function = place.rpartition(".")
    for node in ast.walk(ast.parse(Path(f"{file}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name == function and isinstance(node.body[-1], ast.Return):
            return ast.literal_eval(node.body[-1].value or ast.Constant(None))
    raise UserError(f"lm-eval {version('lm_eval')} keeps no worked examples in {place}. Use task.shots=0.")
