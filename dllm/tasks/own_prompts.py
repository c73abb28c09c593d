"""Prompts of a file, without right answers: items of ``dllm tune prompts=FILE``, which compares texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dllm.common.digest import json_digest
from dllm.common.errors import UserError
from dllm.common.terminal import complain
from dllm.tasks.base import AnswerScores, Item, Task
from dllm.tasks.standard.json_lines import read_docs

PROMPT_KINDS = ("prompt", "messages", "tokens")


class OwnPrompts(Task):
    """path: a file of {"prompt": ...}, {"messages": [...]} or {"tokens": [...]}, one a line. budget: tokens of an
    answer. A prompt that stands there twice is one item: the same answer twice proves no more."""

    name = "prompts"

    def __init__(self, path: str, budget: int) -> None:
        self.rows = [_prompt(path, number, row) for number, row in enumerate(read_docs(path, (), "prompts"), 1)]
        different = {json.dumps(prompt): prompt for prompt in self.rows}
        self._items = [
            Item(str(number), self.name, prompt, {}, budget) for number, prompt in enumerate(different.values(), 1)
        ]
        if more := len(self.rows) - len(different):
            complain(f"{path} holds {more} prompts a second time. Each counts once.")

    def items(self) -> Sequence[Item]:
        return self._items

    def score(self, item: Item, text: str) -> AnswerScores:
        return {}

    def stamp(self) -> dict[str, str]:
        return {"suite": self.name, "template": "none", "data": json_digest(self.rows)}


def _prompt(path: str, number: int, row: dict[str, Any]) -> Any:
    """Raises UserError for a line without a prompt."""
    keys = [key for key in PROMPT_KINDS if key in row]
    value = row[keys[0]] if len(keys) == 1 else None
    parts = value if isinstance(value, list) else []
    is_prompt = all(type(part) is int for part in parts) or all(isinstance(part, dict) for part in parts)
    if not isinstance(value, str | list) or not value or not is_prompt or "infill" in row:
        rule = f"must have one of {', '.join(PROMPT_KINDS)}, which is text, a list of token ids or a list of messages"
        raise UserError(f'prompts={path!r}, prompt {number} {rule}. Write {{"prompt": "..."}}.')
    return value
