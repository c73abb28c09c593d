"""Questions from a file: a JSON list, as POST /v1/decisions takes them, each with its ``template`` and ``labels``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dllm.decisions.questions import ChoiceQuestion, PredicateQuestion, Question, ScoreQuestion
from dllm.errors import UserError, in_choices, nearest

KNOWN = {"predicate": ("", ""), "choice": ("choices", "value"), "score": ("levels", "label")}
QUESTION_KEYS = ("type", "name", "instructions", "template", "labels")


def questions_of_file(file: str | Path) -> dict[str, Question]:
    """The questions by name. Raises UserError for a file that holds none, and for unsound ones."""
    try:
        entries = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = f"is not a JSON file ({error}). Name a list of questions."
        raise UserError(f"task.questions={str(file)!r} {why}") from None
    if not isinstance(entries, list) or not entries or not all(isinstance(one, Mapping) for one in entries):
        raise UserError(f"task.questions={str(file)!r} must hold a list of questions, such as {QUESTIONS_EXAMPLE}.")
    found: dict[str, Question] = {}
    for number, entry in enumerate(entries):
        name = entry.get("name", f"q{number + 1}")
        if not isinstance(name, str) or not name:
            raise UserError(f"name={name!r} of question {number + 1} of {file} must be a text.")
        try:
            found[name] = question_of(entry)
        except UserError as error:
            raise UserError(f"question {name!r} of {file}: {error}") from None
    if len(found) < len(entries):
        raise UserError(f"task.questions={str(file)!r} names two questions alike. Give each its own name.")
    return found


QUESTIONS_EXAMPLE = '[{"type": "choice", "name": "town", "choices": ["Cairo", "Lima"], "template": "Town: {slot}"}]'


def question_of(entry: Mapping[str, Any]) -> Question:
    """One question. Raises UserError."""
    kind = entry.get("type")
    in_choices("type", kind, KNOWN)
    listed, key = KNOWN[str(kind)]
    known = [*QUESTION_KEYS, *([listed] if listed else [])]
    for name in entry:
        if name not in known:
            raise UserError(f"{name!r} is not a field of a {kind}; it has {', '.join(known)}.{nearest(name, known)}")
    common = {name: entry[name] for name in ("instructions", "template", "labels") if entry.get(name) is not None}
    if not all(isinstance(text, str) for text in common.values()):
        raise UserError(f"{', '.join(common)} must be texts.")
    if kind == "predicate":
        return PredicateQuestion(**common)
    rows = entry.get(listed)
    if not isinstance(rows, list):
        raise UserError(f"{listed} must be a list of texts.")
    values = [row.get(key) if isinstance(row, Mapping) else row for row in rows]
    described = [str(row.get("description", "")) if isinstance(row, Mapping) else "" for row in rows]
    if not all(isinstance(value, str | bool) for value in values):
        raise UserError(f"{listed} must be a list of texts.")
    made = ChoiceQuestion if kind == "choice" else ScoreQuestion
    return made(values, descriptions=described if any(described) else (), **common)  # type: ignore[arg-type]
