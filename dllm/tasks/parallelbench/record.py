"""A question in the benchmark's own shape, generated or read from a copy, and the chat that asks it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dllm.common.errors import UserError
from dllm.prompts import Message

Answer = str | Mapping[str, Any]


@dataclass(frozen=True)
class Record:
    """A line of the benchmark's files."""

    fields: Mapping[str, Any]  # fill the template
    answer: Answer  # the one right text, or what the scorer needs and an ``example``
    shots: tuple[Record, ...] = ()  # solved questions that are before this one

    @property
    def solution(self) -> str:
        return self.answer if isinstance(self.answer, str) else str(self.answer.get("example", ""))


def chat_of(template: str, record: Record) -> list[Message]:
    """The chat: every solved question as a turn of user and assistant, then the question itself."""
    chat: list[Message] = []
    for shot in record.shots:
        chat.append({"role": "user", "content": filled_template(template, shot)})
        chat.append({"role": "assistant", "content": shot.solution})
    return [*chat, {"role": "user", "content": filled_template(template, record)}]


def filled_template(template: str, record: Record) -> str:
    """The template with the record's fields in place. Raises UserError when one is missing."""
    try:
        return template.format(**record.fields)
    except (KeyError, IndexError, ValueError) as error:
        has = ", ".join(record.fields)
        raise UserError(f"the template {template[:60]!r}... wants {error}, and the question has only {has}.") from None
