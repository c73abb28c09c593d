"""A user's own copy of the benchmark: its files in a folder, or its rows on the hub. Its questions and its wording."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from dllm.errors import UserError
from dllm.tasks.parallelbench.catalog import Spec
from dllm.tasks.parallelbench.metrics import HOLDS
from dllm.tasks.parallelbench.record import Record
from dllm.tasks.parallelbench.text_metrics import first_line

Row = Mapping[str, Any]
FETCH = "Fetch it again"


@dataclass(frozen=True)
class Taken:
    """What a copy says about one task. ``template``: its wording; None: the copy brings none."""

    records: list[Record]
    template: str | None
    place: str


def take(path: str, suite: str, spec: Spec, wanted: int) -> Taken | None:
    """The task from a folder, or from the hub for owner/name; None when the copy lacks the task.

    Raises UserError when the copy cannot be read, is damaged, holds fewer than ``wanted`` questions, or is the other
    suite's.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        taken = _from_folder(folder, spec)
    elif path.count("/") == 1 and not path.startswith((".", "/", "~")):
        taken = _from_hub(path, spec)
    else:
        raise UserError(f"task.path={path!r} is no folder here and no hub id of the form owner/name.")
    if taken is None:
        return None
    _check(taken, suite, spec, wanted)
    return taken


def _from_folder(folder: Path, spec: Spec) -> Taken | None:
    file = _find(folder, f"{spec.name}.jsonl")
    if file is None:
        return None
    beside = file.parent / "task_config.yaml"
    template = _template(beside, spec.name) if beside.is_file() else None
    return Taken([_record(row, spec, f"{file}:{number}") for number, row in _rows(file)], template, str(file))


def _find(folder: Path, ending: str) -> Path | None:
    """The file of the test split; several of them are refused."""
    parts = Path(ending).parts
    found = [file for file in sorted(folder.rglob(parts[-1])) if file.parts[-len(parts) :] == parts]
    found = [file for file in found if not {"train", "_old"} & set(file.relative_to(folder).parts)]
    if len(found) > 1:
        listed = ", ".join(str(file.relative_to(folder)) for file in found[:4])
        raise UserError(f"task.path={str(folder)!r} holds {ending} several times: {listed}. Give the folder of one.")
    return found[0] if found else None


def _rows(file: Path) -> Iterable[tuple[int, Row]]:
    """Numbered rows of a JSON-lines file."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {first_line(error)} {FETCH}.") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            where = "its last line is cut off" if number == len(lines) else f"line {number} is no JSON"
            raise UserError(f"{file} is damaged: {where}. {FETCH}.") from None
        yield number, row


def _template(file: Path, task: str) -> str | None:
    """The prompt that a task_config.yaml gives a task. Some are stored with the two characters backslash and n."""
    try:
        config = yaml.safe_load(file.read_text(encoding="utf-8"))
        prompt = config.get(task, {}).get("prompt")
    except (OSError, UnicodeDecodeError, yaml.YAMLError, AttributeError) as error:
        raise UserError(f"{file} cannot be read: {first_line(error)} {FETCH}, or remove it.") from None
    return None if prompt is None else str(prompt).replace("\\n", "\n")


def _from_hub(repository: str, spec: Spec) -> Taken | None:
    """Rows of the hub's configuration ``group-task``; each carries the prompt, other columns are JSON texts."""
    if find_spec("datasets") is None:
        raise UserError(f'task.path={repository!r} is read with the library datasets: pip install "dllm[hub]".')
    name = spec.name.replace("/", "-")
    rows = _downloaded(repository, name)
    if not rows:
        return None
    records = [_record(_opened(row), spec, f"{repository} {name}, row {number}") for number, row in enumerate(rows)]
    prompt = rows[0].get("prompt")
    return Taken(records, None if prompt is None else str(prompt).replace("\\n", "\n"), f"{repository} {name}")


def _downloaded(repository: str, name: str) -> Sequence[Row]:
    import datasets

    try:
        if name not in datasets.get_dataset_config_names(repository):
            return []
        return list(datasets.load_dataset(repository, name, split="test"))
    except Exception as error:  # the hub, fsspec, arrow and parquet raise dozens of kinds; all mean: no data
        raise UserError(
            f"task.path={repository!r} cannot be read from the hub: {first_line(error)} Where there is no network, "
            "give the folder of a copy, or task.path=null for questions that are generated here."
        ) from None


def _opened(row: Row) -> Row:
    """A hub row with its JSON texts parsed; an answer that is a plain list or grid stays text."""
    out = dict(row)
    for key in ("input", "answer"):
        text = out.get(key)
        if isinstance(text, str) and text.lstrip().startswith("{"):
            try:
                out[key] = json.loads(text)
            except ValueError:
                raise UserError(f"the hub's column {key!r} holds damaged JSON: {text[:60]!r}.") from None
    return out


def _record(row: Any, spec: Spec, place: str) -> Record:
    """One row. Raises UserError when it lacks what the template or the metric needs."""
    given = row.get("input") if isinstance(row, Mapping) else None
    if not isinstance(given, Mapping):
        raise UserError(f"{place} has no mapping 'input': {spec.name} needs one. {FETCH}.")
    fields = {str(key): value for key, value in given.items() if key != "icl_examples"}
    answer = row.get("answer", row.get("ground_truth"))
    holds = HOLDS.get(spec.metric, ())
    fits = isinstance(answer, Mapping) and all(answer.get(key) for key in holds) if holds else isinstance(answer, str)
    if not fits:
        needs = " and ".join(map(repr, holds)) or "text"
        raise UserError(f"{place} has no 'answer' with {needs}, which {spec.metric} compares with. {FETCH}.")
    shots = given.get("icl_examples") or []
    return Record(fields, answer, tuple(_record(shot, spec, place) for shot in shots))


def _check(taken: Taken, suite: str, spec: Spec, wanted: int) -> None:
    if len(taken.records) < wanted:
        raise UserError(
            f"{taken.place} holds {len(taken.records)} questions of {wanted}: the file is cut off. {FETCH}, or ask for "
            f"fewer with task.count={len(taken.records)}."
        )
    shots = [shot for record in taken.records for shot in record.shots]
    if spec.lengths is not None and len(taken.records) > 1:  # only the list tasks have one name in both suites
        alike = all(shot == shots[0] for shot in shots)
        looks = "r2" if shots and alike else "r1"  # the rewrite shows one example before every question
        if looks != suite:
            raise UserError(f"{taken.place} is a file of suite {looks}: set task.suite={looks}, as suites never mix.")
