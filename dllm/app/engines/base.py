"""The contract of an engine: it takes cells, decodes what their folders lack, and hands them back finished."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tqdm import tqdm

from dllm.app.runs.cells import Cell
from dllm.common.errors import UserError
from dllm.common.terminal import visible
from dllm.compose.config_choices import choice_of
from dllm.record.folders import SampleKey

Failure = tuple[Cell, list[SampleKey], str]


class Engine:
    """together: the engine takes all cells of a sweep at once. leads: this process is the one that prints. failures:
    samples that could not be decoded, and why."""

    together = False
    leads = True

    def __init__(self) -> None:
        self.failures: list[Failure] = []

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise UserError for a configuration that this engine cannot run. Called before ``run``."""

    def run(self, cells: Iterator[Cell]) -> Iterator[Cell]:
        """Decode and score. Yields each cell when its folder holds all samples that could be decoded."""
        raise NotImplementedError


def refuse_engine(config: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise UserError where the user chose an engine for a task of one process. names: settings by name."""
    engine = choice_of("engine", config["engine"])
    if engine != "local" and any(name.partition(".")[0] == "engine" for name in names):
        task = config["task"]["name"]
        rule = f"engine={engine} shares out the questions of a task, and task={task} runs in one process"
        raise UserError(f"{rule}. Drop it, or choose a task with questions, such as task=jsonl for a file of your own.")


def progress_bar(total: int, initial: int, is_shown: bool = True, title: str = "") -> Any:
    """A progress bar on stderr, with an estimate of what is left."""
    pause = 0.1 if sys.stderr.isatty() else 10
    return tqdm(
        total=total,
        initial=initial,
        unit="sample",
        disable=not is_shown,
        mininterval=pause,
        delay=pause,
        leave=False,
        desc=visible(title) or None,
    )
