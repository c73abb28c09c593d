"""Reads for several requests at once, on a model without other users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from dllm.common.errors import UserError, nearest
from dllm.models.bundle import Model
from dllm.scoring.decisions.calibration import read_calibration
from dllm.scoring.decisions.protocol import Deciding, DecisionOptions
from dllm.scoring.decisions.questions import Question
from dllm.scoring.decisions.reading import Reading, ReadQuery, read_canvases
from dllm.scoring.decisions.results import Decisions

MAX_ROWS, MAX_COLUMNS = 256, 16384  # of a forward


def drive(model: Model, work: Sequence[Deciding]) -> list[Decisions]:
    """Drive all requests to their end. Those that read at the same time share forwards."""
    results = dict[int, Decisions]()
    queries: dict[int, list[list[ReadQuery]]] = {number: next(generator) for number, generator in enumerate(work)}
    while queries:
        flat = [query for groups in queries.values() for group in groups for query in group]
        reading = iter(read_canvases(model, flat, MAX_ROWS, MAX_COLUMNS))
        todo, queries = queries, {}
        for number, groups in todo.items():
            readings: list[list[Reading]] = [[next(reading) for _ in group] for group in groups]
            try:
                queries[number] = work[number].send(readings)
            except StopIteration as end:
                results[number] = end.value
    return [results[number] for number in range(len(work))]


def options_of(options: Mapping[str, Any], model: str) -> DecisionOptions:
    """Options from keywords. calibration: temperatures by type of question, or a file that holds them for the model.
    Raises UserError for an option that does not exist."""
    names = [entry.name for entry in fields(DecisionOptions)]
    for name in options:
        if name not in names:
            hint = nearest(name, names)
            raise UserError(f"{name} is not an option of a decision; choose among {', '.join(names)}.{hint}")
    calibration = options.get("calibration") or {}
    calibration = read_calibration(calibration, model) if isinstance(calibration, str | Path) else calibration
    return DecisionOptions(**{**options, "calibration": calibration})


def refuse_unread_questions(questions: Mapping[str, object]) -> None:
    """Raise UserError for what is not a question, such as a misspelt option of ``Decoder.decide``."""
    names = [entry.name for entry in fields(DecisionOptions)]
    for name, question in questions.items():
        if not isinstance(question, Question):
            raise UserError(f"{name}={question!r} must be a Predicate, a Choice or a Score.{nearest(name, names)}")
