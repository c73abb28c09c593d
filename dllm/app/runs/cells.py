"""A cell: one configuration of a task, with the folder that keeps its samples. A sweep is a folder of cells."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dllm.app.command_line.options import Options
from dllm.app.runs.destinations import writing
from dllm.app.runs.evaluation import Evaluation
from dllm.app.runs.folder import RunFolder, identity, refused_file, write_refused
from dllm.app.runs.plan import folder_of
from dllm.common.atomic_write import write_whole
from dllm.common.errors import UserError
from dllm.common.links import follows
from dllm.record.folders import RESULTS, SWEEP, TOTALS, key_of, read_results
from dllm.record.measures import Totals
from dllm.record.results import ResultRow

PROMPT_SETTINGS = ("prompt", "prompts")


@dataclass(frozen=True)
class Cell:
    evaluation: Evaluation  # what is decoded and scored
    folder: Path  # where its results go
    place: str = ""  # which cell of a sweep it is, for the progress bar

    def open(self) -> RunFolder:
        """Raises UserError when the folder belongs to another configuration, is in use, or cannot be written."""
        return RunFolder.open(self.folder, self.evaluation.config, self.evaluation.content)

    def rows(self) -> list[ResultRow]:
        """The finished samples, in the order of the items."""
        by_key = {key_of(row): row for row in read_results(self.folder / RESULTS)[0]}
        return [by_key[key] for key in self.evaluation.keys if key in by_key]

    def totals(self, rows: Sequence[ResultRow]) -> Totals:
        """The metrics over all answers, which are kept beside the results for reports."""
        metrics = self.evaluation.totals(rows)
        if metrics:
            with writing(self.folder):
                write_whole(
                    self.folder / TOTALS, json.dumps({"answers": len(rows), "totals": metrics}, indent=1) + "\n"
                )
        return metrics


def run_cell(config: dict[str, Any]) -> Cell:
    """The cell of a run by itself. Raises UserError for what cannot work."""
    evaluation = checked_evaluation(config)
    folder = folder_of(Options.of(config))
    if (folder / SWEEP).exists():
        raise UserError(f"{folder} is the folder of a sweep. Choose another name=NAME for a single run.")
    return Cell(evaluation, folder)


def sweep_cell(config: dict[str, Any], sweep: Path, overrides: Sequence[str]) -> Cell | UserError:
    """The cell of one combination of a sweep, or why it cannot work, which is noted in the sweep's folder."""
    note = refused_file(sweep, config)
    try:
        evaluation = checked_evaluation(config)
    except UserError as error:
        write_refused(note, config, list(overrides), str(error))
        return error
    if note.exists() and not follows():  # refused by an earlier version of the program
        note.unlink()
        note.parent.rmdir()
    return Cell(evaluation, sweep / identity(config, evaluation.content))


def checked_evaluation(config: dict[str, Any]) -> Evaluation:
    """Raises UserError for settings that a task has no use for, and for all that cannot work."""
    for name in PROMPT_SETTINGS:
        if config[name] is not None:
            raise UserError(f"task={config['task']['name']} brings its own questions: drop {name}.")
    for name in ("chat", "compare"):
        if config[name]:
            raise UserError(f"{name}={json.dumps(config[name])} is for prompts of yours: drop it, or use task=prompt.")
    return Evaluation.of(config)
