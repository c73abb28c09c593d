"""Finished cells, read from the folders of runs and sweeps; and the combinations that were refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dllm.common.errors import UserError
from dllm.common.grouping import grouped
from dllm.common.plain_yaml import plain_yaml
from dllm.record.folders import CONFIG, ENVIRONMENT, REFUSED_FILE, RESULTS, TOTALS, key_of, read_all_results
from dllm.record.measures import Totals
from dllm.record.results import ResultRow

MAKE_SOME = "Make some with: python run.py -m experiment=small name=NAME"
GROUPS = ("model", "task", "sampler", "blocks", "cache", "eos", "sampling")  # of a configuration
MAX_NAMED = 3  # cells that a sentence names


@dataclass(frozen=True)
class StoredCell:
    """The results of one configuration on one task."""

    folder: Path  # where its files are
    config: Mapping[str, Any]  # what was chosen
    rows: list[ResultRow]  # the finished samples, by sub-task and item
    environment: Mapping[str, Any] = field(default_factory=dict)  # versions and machine of the run
    totals: Totals = field(default_factory=dict)  # metrics over all answers

    @property
    def stamps(self) -> list[Mapping[str, Any]]:
        """Where it was decoded: of the first start, then of every later one."""
        return [self.environment, *self.environment.get("resumed", ())]

    @property
    def versions(self) -> list[str]:
        """The versions of dllm that decoded it, each once."""
        return list(dict.fromkeys(map(version_in, self.stamps)))


@dataclass(frozen=True)
class RefusedCell:
    """A combination that cannot work."""

    folder: Path  # where its files are
    config: Mapping[str, Any]  # empty where an earlier version did not note it
    sentence: str  # why it was refused


def version_in(stamp: Mapping[str, Any]) -> str:
    """The version of dllm in an environment: ``0.1.0 at commit 4d4a217f0c1e, edited``."""
    version = (stamp.get("versions") or {}).get("dllm") or "an unknown version"
    commit = f" at commit {stamp['commit'][:12]}" if stamp.get("commit") else ""
    return f"{version}{commit}{', edited' if stamp.get('dirty') else ''}"


def stored_cells(folder: Path) -> list[StoredCell]:
    """The cells of a sweep or run, or of all those below a folder, by their places. Runs of prompts have no scores and
    are left out. Raises UserError where no cell is, and where a file is broken."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise UserError(f"{folder} {what}: name the folder of a sweep, or of a run of a task, such as runs/NAME.")
    places = sorted({file.parent for file in folder.glob(f"**/{RESULTS}")})
    cells = [cell for place in places if (cell := stored_cell(place)) is not None]
    if not cells:
        raise UserError(f"{folder} holds no results of a task{_instead(folder, places)}. {MAKE_SOME}")
    return cells


def _instead(folder: Path, places: Sequence[Path]) -> str:
    """What a folder without a cell holds."""
    refusals = refused_cells(folder)
    if refusals:
        return f": each of its {len(refusals)} combinations was refused, such as: {refusals[0].sentence.rstrip('.')}"
    return ": its samples are of prompts, which have no scores, or are not finished" if places else ""


def stored_cell(folder: Path) -> StoredCell | None:
    """The cell in a run's folder. None for a run of prompts, and for a cell without a finished sample.

    Raises UserError for a broken file, and for results without their configuration.
    """
    rows = read_all_results(folder)
    if not rows or "scores" not in rows[0]:
        return None
    for number, row in enumerate(rows, 1):
        lacking = [name for name in ("task", "scores", "nfe", "useful_tokens") if row.get(name) is None]
        if lacking:
            raise UserError(f"line {number} of {folder / RESULTS} has no {lacking[0]}: it is not a result of a task.")
    rows.sort(key=lambda row: (str(row["task"]), *key_of(row)))
    config, environment = _mapping(folder / CONFIG, GROUPS), _mapping(folder / ENVIRONMENT)
    return StoredCell(folder, config, rows, environment, _totals(folder / TOTALS, len(rows)))


def _totals(file: Path, answers: int) -> Totals:
    """Nothing where it is of other answers: those of a run that was killed are made when it is resumed."""
    if not file.exists():
        return {}
    content = _mapping(file, ("totals",))
    return content["totals"] if content.get("answers") == answers else {}


def refused_cells(folder: Path) -> list[RefusedCell]:
    """The combinations below a folder that were refused. Raises UserError for a broken note."""
    notes = [(file, _mapping(file)) for file in sorted(folder.glob(f"**/{REFUSED_FILE}"))]
    return [RefusedCell(file.parent, note.get("config") or {}, str(note.get("sentence"))) for file, note in notes]


def _mapping(file: Path, groups: Sequence[str] = ()) -> Mapping[str, Any]:
    """The mapping in a YAML or JSON file. Raises UserError if it is missing, or one of its ``groups`` is missing."""
    try:
        content = json.loads(file.read_text(encoding="utf-8")) if file.suffix == ".json" else plain_yaml(file)
    except (OSError, ValueError, RecursionError):
        content = None
    if not isinstance(content, Mapping) or not all(isinstance(content.get(group), Mapping) for group in groups):
        sentence = f"{file.parent} is not a whole run folder: its {file.name} is missing or broken"
        raise UserError(f"{sentence}. Restore it, or move the folder away.")
    return content


def refuse_versions(cells: Sequence[StoredCell], way_out: str) -> None:
    """Raise UserError, naming them, when the cells were decoded by several versions of dllm."""
    by_version = grouped((version, str(cell.folder)) for cell in cells for version in cell.versions)
    if len(by_version) > 1:
        parts = [f"{version} ({_names(folders)})" for version, folders in by_version.items()]
        raise UserError(f"these cells are of {len(by_version)} versions of dllm: {'; '.join(parts)}. {way_out}")


def _names(folders: Sequence[str]) -> str:
    more = len(folders) - MAX_NAMED
    return ", ".join(folders[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
