"""The three types of questions, as OpenAI's Decisions interface has them: predicate, choice and score."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from string import ascii_uppercase
from typing import Any, ClassVar

from dllm.common.coerce import coerce
from dllm.common.errors import Refusal, UserError, in_choices, nearest

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
SLOT_MARK = "{slot}"
QUESTION_TYPES = ("predicate", "choice", "score")
LABEL_KINDS = ("values", "letters")
MAX_CHOICES, MAX_LEVELS = 255, 256
Value = str | bool


def text_of(value: Value) -> str:
    """What is in the slot for a value: of true and false, JSON's words."""
    return str(value).lower() if isinstance(value, bool) else value


@dataclass(frozen=True)
class Question:
    """What all types have. Raises UserError for alternatives that are empty, equal, too few or too many, and for a
    template that does not hold one slot."""

    type: ClassVar[str] = ""
    unit: ClassVar[str] = "values"  # what messages call the alternatives
    most: ClassVar[int] = MAX_CHOICES

    values: Sequence[Value]  # the alternatives
    instructions: str = ""  # are after the state in the prompt
    template: str | None = None  # the answer's text with one {slot} (None: "Answer: {slot}")
    descriptions: Sequence[str] = ()  # of the alternatives, listed in the prompt; empty: none
    labels: str = "values"  # what is in the slot: the values, or letters, whose values the prompt lists

    def __post_init__(self) -> None:
        for name in ("values", "descriptions"):
            entries = getattr(self, name)
            if isinstance(entries, str) or not isinstance(entries, Sequence):
                raise UserError(f"{self.unit if name == 'values' else name}={entries!r} must be a list of texts.")
            object.__setattr__(self, name, tuple(entries))
        for value in self.values:
            if not isinstance(value, str | bool):
                raise UserError(f"{self.unit} must be texts, true or false, not {value!r}. Write it as text.")
        for name in ("instructions", "template"):
            kind = "str | None" if name == "template" else "str"
            object.__setattr__(self, name, coerce(name, getattr(self, name), kind))
        in_choices("labels", self.labels, LABEL_KINDS)
        texts = [text_of(value) for value in self.values]
        most = min(self.most, len(ascii_uppercase)) if self.labels == "letters" else self.most
        if not 2 <= len(texts) <= most:
            rule = f"2 to {most} {self.unit}" + (" with labels=letters" if self.labels == "letters" else "")
            raise UserError(f"a {self.type} takes {rule}, and has {len(texts)}. Change their number.")
        if not all(text.strip() for text in texts):
            raise UserError(f"{self.unit} must not be empty. Give each a text.")
        if len(set(texts)) < len(texts):
            twice = next(text for text in texts if texts.count(text) > 1)
            raise UserError(f"{self.unit} must be distinct, and {twice!r} is there twice. Drop one.")
        if self.descriptions and len(self.descriptions) != len(texts):
            raise UserError(f"there are {len(self.descriptions)} descriptions for {len(texts)} {self.unit}.")
        if self.template is not None and (count := self.template.count(SLOT_MARK)) != 1:
            raise UserError(f"template={self.template!r} must hold {SLOT_MARK} once, and holds it {count} times.")

    @property
    def texts(self) -> tuple[str, ...]:
        """What may be in the slot."""
        if self.labels == "letters":
            return tuple(ascii_uppercase[: len(self.values)])
        return tuple(map(text_of, self.values))

    @property
    def around(self) -> tuple[str, str]:
        """The text before and after the slot."""
        before, _, behind = (f"Answer: {SLOT_MARK}" if self.template is None else self.template).partition(SLOT_MARK)
        return before, behind

    def asked(self) -> str:
        """What the prompt says after the state. The alternatives are listed where the slot holds letters, where they
        are described, and where instructions come without a template that says what may be there."""
        lines = [self.instructions] if self.instructions else []
        if self.labels == "letters" or self.descriptions or (self.instructions and self.template is None):
            for number, (label, value) in enumerate(zip(self.texts, self.values, strict=True)):
                name = f"{label}: {text_of(value)}" if self.labels == "letters" else f"- {label}"
                description = self.descriptions[number] if self.descriptions else ""
                lines.append(f"{name}: {description}" if description else name)
        return "\n".join(lines)


@dataclass(frozen=True)
class ChoiceQuestion(Question):
    """One of some values."""

    type = "choice"


@dataclass(frozen=True)
class ScoreQuestion(Question):
    """A level of a scale, from the lowest: the answer is the expected index, counted from 0."""

    type = "score"
    unit = "levels"
    most = MAX_LEVELS

    @property
    def numbers(self) -> list[float] | None:
        """The levels as finite numbers, as people write them (not ``1_0``); None: one of them is not such a number."""
        texts = [text_of(value).strip() for value in self.values]
        numbers = [float(text) if _NUMBER.fullmatch(text) else inf for text in texts]
        return numbers if all(map(isfinite, numbers)) else None


@dataclass(frozen=True, init=False)
class PredicateQuestion(Question):
    """Yes or no: the answer is the probability of the first of two values."""

    type = "predicate"
    most = 2

    def __init__(
        self,
        instructions: str = "",
        template: str | None = None,
        values: Sequence[str] = ("yes", "no"),
        labels: str = "values",
    ) -> None:
        super().__init__(values, instructions, template, (), labels)


ALTERNATIVE_FIELDS = {"predicate": ("", ""), "choice": ("choices", "value"), "score": ("levels", "label")}
QUESTION_KEYS = ("type", "name", "instructions", "template", "labels")


def questions_of_file(file: str | Path) -> dict[str, Question]:
    """The questions by name. Raises UserError for a file that holds none, and for unsound ones."""
    try:
        entries = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = f"is not a JSON file ({error}). Name a list of questions."
        raise Refusal(f"{{task.questions:quoted}} {why}", [str(file)]) from None
    if not isinstance(entries, list) or not entries or not all(isinstance(question, Mapping) for question in entries):
        raise Refusal(
            f"{{task.questions:quoted}} must hold a list of questions, such as {QUESTIONS_EXAMPLE}.", [str(file)]
        )
    questions: dict[str, Question] = {}
    for number, entry in enumerate(entries):
        name = entry.get("name", f"q{number + 1}")
        if not isinstance(name, str) or not name:
            raise UserError(f"name={name!r} of question {number + 1} of {file} must be a text.")
        try:
            questions[name] = question_of(entry)
        except UserError as error:
            raise UserError(f"question {name!r} of {file}: {error}") from None
    if len(questions) < len(entries):
        raise Refusal("{task.questions:quoted} names two questions alike. Give each its own name.", [str(file)])
    return questions


QUESTIONS_EXAMPLE = '[{"type": "choice", "name": "town", "choices": ["Cairo", "Lima"], "template": "Town: {slot}"}]'


def question_of(entry: Mapping[str, Any]) -> Question:
    """One question. Raises UserError."""
    kind = entry.get("type")
    in_choices("type", kind, ALTERNATIVE_FIELDS)
    field, key = ALTERNATIVE_FIELDS[str(kind)]
    names = [*QUESTION_KEYS, *([field] if field else [])]
    for name in entry:
        if name not in names:
            raise UserError(f"{name!r} is not a field of a {kind}; it has {', '.join(names)}.{nearest(name, names)}")
    common = {name: entry[name] for name in ("instructions", "template", "labels") if entry.get(name) is not None}
    if not all(isinstance(text, str) for text in common.values()):
        raise UserError(f"{', '.join(common)} must be texts.")
    if kind == "predicate":
        return PredicateQuestion(**common)
    rows = entry.get(field)
    if not isinstance(rows, list):
        raise UserError(f"{field} must be a list of texts.")
    values = [row.get(key) if isinstance(row, Mapping) else row for row in rows]
    descriptions = [str(row.get("description", "")) if isinstance(row, Mapping) else "" for row in rows]
    if not all(isinstance(value, str | bool) for value in values):
        raise UserError(f"{field} must be a list of texts.")
    make = ChoiceQuestion if kind == "choice" else ScoreQuestion
    return make(values, descriptions=descriptions if any(descriptions) else (), **common)  # type: ignore[arg-type]
