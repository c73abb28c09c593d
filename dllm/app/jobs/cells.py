"""A cell: one configuration of a task with the folder that keeps its samples. A sweep is a folder of cells."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dllm.app.jobs.evaluation import Evaluation
from dllm.app.jobs.store import SWEEP, Key, Row, Store, identity, key_of, read_rows, refused_file, write_refused
from dllm.errors import UserError

BESIDE = ("prompt", "prompts")


@dataclass(frozen=True)
class Cell:
    """An evaluation and its folder. ``rows`` reads what is finished, in the order of the items. place: which cell of
    a sweep it is, for the progress bar."""

    evaluation: Evaluation
    folder: Path
    place: str = ""

    def open(self) -> Store:
        """Raises UserError when the folder belongs to another configuration, is in use, or cannot be written."""
        return Store.open(self.folder, self.evaluation.config, self.evaluation.content)

    def rows(self) -> list[Row]:
        found = {key_of(row): row for row in read_rows(self.folder / "results.jsonl")[0]}
        return [found[key] for key in self.evaluation.keys if key in found]

    def lacking(self) -> list[Key]:
        """Samples that are not there (yet)."""
        done = {key_of(row) for row in self.rows()}
        return [key for key in self.evaluation.keys if key not in done]


def single(config: dict[str, Any]) -> Cell:
    """The cell of a run by itself. Raises UserError for what cannot work."""
    evaluation = checked(config)
    folder = evaluation.plan.folder()
    if (folder / SWEEP).exists():
        raise UserError(f"{folder} is the folder of a sweep. Choose another name=NAME for a single run.")
    return Cell(evaluation, folder)


def of_sweep(config: dict[str, Any], sweep: Path, overrides: Sequence[str]) -> Cell | UserError:
    """The cell of one job of a sweep, or why its combination cannot work, which is noted in the sweep's folder."""
    note = refused_file(sweep, config)
    try:
        evaluation = checked(config)
    except UserError as error:
        write_refused(note, config, list(overrides), str(error))
        return error
    if note.exists():  # refused by an earlier version of the program
        note.unlink()
        note.parent.rmdir()
    return Cell(evaluation, sweep / identity(config, evaluation.content))


def checked(config: dict[str, Any]) -> Evaluation:
    """Raises UserError for settings that a task has no use for, and for all that cannot work."""
    for name in BESIDE:
        if config[name] is not None:
            raise UserError(f"task={config['task']['name']} brings its own questions: drop {name}.")
    for name in ("chat", "compare"):
        if config[name]:
            raise UserError(f"{name}={json.dumps(config[name])} is for prompts of yours: drop it, or use task=prompt.")
    return Evaluation.of(config)
