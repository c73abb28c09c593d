"""Reads questions and wording from a user's copy of the benchmark: files in a folder, or rows on the hub."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from dllm.common.errors import UserError, first_line
from dllm.common.hub import stay_offline_without_hub
from dllm.common.installing import not_installed
from dllm.tasks.parallelbench.catalog import TaskSpec
from dllm.tasks.parallelbench.metrics import HOLDS
from dllm.tasks.parallelbench.record import Record

CopyRow = Mapping[str, Any]
FETCH = "Fetch it again"


@dataclass(frozen=True)
class TaskCopy:
    records: list[Record]  # its items as the file has them
    template: str | None  # its wording; None: the copy has none
    place: str  # where it was read, for messages


def read_copy(path: str, suite: str, spec: TaskSpec, count: int) -> TaskCopy | None:
    """The task from a folder, or for owner/name from the hub. None when the copy lacks the task.

    Raises UserError when the copy cannot be read, is damaged, holds fewer than ``count`` questions, or is the other
    suite's.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        copy = _from_folder(folder, spec)
    elif path.count("/") == 1 and not path.startswith((".", "/", "~")):
        copy = _from_hub(path, spec)
    else:
        raise UserError(f"task.path={path!r} is not a folder here and no hub id of the form owner/name.")
    if copy is None:
        return None
    _check(copy, suite, spec, count)
    return copy


def _from_folder(folder: Path, spec: TaskSpec) -> TaskCopy | None:
    file = _find(folder, f"{spec.name}.jsonl")
    if file is None:
        return None
    beside = file.parent / "task_config.yaml"
    template = _template(beside, spec.name) if beside.is_file() else None
    return TaskCopy([_record(row, spec, f"{file}:{number}") for number, row in _rows(file)], template, str(file))


def _find(folder: Path, ending: str) -> Path | None:
    """The file of the test split; several of them are refused."""
    parts = Path(ending).parts
    files = [file for file in sorted(folder.rglob(parts[-1])) if file.parts[-len(parts) :] == parts]
    files = [file for file in files if not {"train", "_old"} & set(file.relative_to(folder).parts)]
    if len(files) > 1:
        places = ", ".join(str(file.relative_to(folder)) for file in files[:4])
        raise UserError(f"task.path={str(folder)!r} holds {ending} several times: {places}. Give the folder of one.")
    return files[0] if files else None


def _rows(file: Path) -> Iterable[tuple[int, CopyRow]]:
    """Numbered rows of a JSON-lines file."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {first_line(error)}. {FETCH}.") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            where = "its last line is cut off" if number == len(lines) else f"line {number} is not JSON"
            raise UserError(f"{file} is damaged: {where}. {FETCH}.") from None
        yield number, row


def _template(file: Path, task: str) -> str | None:
    """The prompt of a task in a task_config.yaml. Some prompts have a backslash and an n for a new line."""
    try:
        prompt = yaml.safe_load(file.read_text(encoding="utf-8")).get(task, {}).get("prompt")
    except (OSError, UnicodeDecodeError, yaml.YAMLError, AttributeError) as error:
        raise UserError(f"{file} cannot be read: {first_line(error)}. {FETCH}, or remove it.") from None
    return None if prompt is None else str(prompt).replace("\\n", "\n")


def _from_hub(repository: str, spec: TaskSpec) -> TaskCopy | None:
    """Rows of the hub's configuration ``group-task``; each carries the prompt, other columns are JSON texts."""
    if find_spec("datasets") is None:
        raise not_installed(f"task.path={repository!r}", "datasets", "hub")
    name = spec.name.replace("/", "-")
    rows = _hub_rows(repository, name)
    if not rows:
        return None
    records = [_record(_json_row(row), spec, f"{repository} {name}, row {number}") for number, row in enumerate(rows)]
    prompt = rows[0].get("prompt")
    return TaskCopy(records, None if prompt is None else str(prompt).replace("\\n", "\n"), f"{repository} {name}")


def _hub_rows(repository: str, name: str) -> Sequence[CopyRow]:
    stay_offline_without_hub()
    import datasets

    try:
        if name not in datasets.get_dataset_config_names(repository):
            return []
        return list(datasets.load_dataset(repository, name, split="test"))
    except Exception as error:  # the hub, fsspec, arrow and parquet raise dozens of kinds
        raise UserError(
            f"task.path={repository!r} cannot be read from the hub: {first_line(error)}. Where there is no network, "
            "give the folder of a copy, or task.path=null for questions that are generated here."
        ) from None


def _json_row(row: CopyRow) -> CopyRow:
    """A hub row with its JSON texts parsed. An answer that is a plain list or grid stays text."""
    out = dict(row)
    for key in ("input", "answer"):
        text = out.get(key)
        if isinstance(text, str) and text.lstrip().startswith("{"):
            try:
                out[key] = json.loads(text)
            except ValueError:
                raise UserError(f"the hub's column {key!r} holds damaged JSON: {text[:60]!r}.") from None
    return out


def _record(row: Any, spec: TaskSpec, place: str) -> Record:
    """One row. Raises UserError when it lacks what the template or the metric needs."""
    inputs = row.get("input") if isinstance(row, Mapping) else None
    if not isinstance(inputs, Mapping):
        raise UserError(f"{place} has no mapping 'input': {spec.name} needs one. {FETCH}.")
    fields = {str(key): value for key, value in inputs.items() if key != "icl_examples"}
    answer = row.get("answer", row.get("ground_truth"))
    holds = HOLDS.get(spec.metric, ())
    fits = isinstance(answer, Mapping) and all(answer.get(key) for key in holds) if holds else isinstance(answer, str)
    if not fits:
        needs = " and ".join(map(repr, holds)) or "text"
        raise UserError(f"{place} has no 'answer' with {needs}, which {spec.metric} compares with. {FETCH}.")
    shots = inputs.get("icl_examples") or []
    return Record(fields, answer, tuple(_record(shot, spec, place) for shot in shots))


def _check(copy: TaskCopy, suite: str, spec: TaskSpec, count: int) -> None:
    if len(copy.records) < count:
        raise UserError(
            f"{copy.place} holds {len(copy.records)} questions of {count}: the file is cut off. {FETCH}, or ask for "
            f"fewer with task.count={len(copy.records)}."
        )
    shots = [shot for record in copy.records for shot in record.shots]
    if spec.lengths is not None and len(copy.records) > 1:  # the list tasks have the same names in both suites
        alike = all(shot == shots[0] for shot in shots)
        looks = "r2" if shots and alike else "r1"  # the rewrite shows one example before every question
        if looks != suite:
            raise UserError(f"{copy.place} is a file of suite {looks}: set task.suite={looks}, as suites never mix.")
