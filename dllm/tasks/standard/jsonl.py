"""Questions of your own: a JSON-lines file with a prompt and an answer in each line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from dllm.common.digest import json_digest
from dllm.compose.parts import part_of
from dllm.constraints.kinds import Constraint
from dllm.errors import UserError, nearest
from dllm.tasks.base import AnswerScores, Item, Task
from dllm.tasks.standard.json_lines import Doc, read_docs

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")


def exact(text: str, answer: str) -> bool:
    """Equal but for white space at the ends."""
    return text.strip() == answer.strip()


def contains(text: str, answer: str) -> bool:
    """The answer is somewhere in the text."""
    return answer.strip() in text


def same_number(text: str, answer: str) -> bool:
    """The last number of the text is the answer's last number; commas group thousands."""
    found, truth = (NUMBER.findall(part) for part in (text, answer))
    return bool(found and truth) and number_value(found[-1]) == number_value(truth[-1])


def number_value(digits: str) -> float:
    """A number whose commas group thousands."""
    return float(digits.replace(",", ""))


MATCHES: dict[str, Callable[[str, str], bool]] = {"exact": exact, "contains": contains, "number": same_number}


class JsonLines(Task):
    """path: a file of {"prompt": text or messages, "answer": text, or a list of right ones}; an "id", a "task" and
    a "constraint", such as {"name": "regex", "pattern": "a+"}, may be beside them. match: how answers are
    compared. budget: tokens of an answer; stop: what ends it."""

    name = "jsonl"

    def __init__(
        self, path: str | None = None, match: str = "exact", budget: int = 128, stop: Sequence[str] = (),
        limit: int | None = None,
    ) -> None:  # fmt: skip
        if path is None:
            raise UserError('task=jsonl needs task.path=FILE, with {"prompt": "...", "answer": "..."} in each line.')
        if match not in MATCHES:
            hint = nearest(str(match), MATCHES)
            raise UserError(f"task.match={match!r} is unknown; choose one of {', '.join(MATCHES)}.{hint}")
        if budget < 1 or (limit is not None and limit < 1):
            raise UserError(f"task.budget={budget} and task.limit={limit} must be at least 1.")
        self.path, self.match, self.budget = path, match, budget
        self.stop = (stop,) if isinstance(stop, str) else tuple(stop)
        self.rows = read_docs(path, ("prompt", "answer"))[:limit]
        self._items = [self._item(place, row) for place, row in enumerate(self.rows, 1)]
        ((often, times),) = Counter(item.id for item in self._items).most_common(1)
        if times > 1:
            raise UserError(f"task.path={path!r} uses the id {often!r} twice. Give every line its own, or none.")

    def _item(self, place: int, row: Doc) -> Item:
        answers = row["answer"] if isinstance(row["answer"], list) else [row["answer"]]
        prompt: Any = row["prompt"]
        plain = all(isinstance(answer, str | int | float) for answer in answers)
        if not isinstance(prompt, str | list) or not answers or not plain:
            raise UserError(f"task.path={self.path!r}, question {place}: prompt and answer must be text.")
        return Item(
            str(row.get("id", place)), str(row.get("task", self.name)), prompt,
            {"answers": [str(answer) for answer in answers]}, self.budget, self.stop,
            constraint=self._constraint(place, row.get("constraint")),
        )  # fmt: skip

    def _constraint(self, place: int, given: Any) -> Constraint | None:
        try:
            found: Constraint | None = None if given is None else part_of("constraint", given)
        except UserError as error:
            raise UserError(f"task.path={self.path!r}, question {place}: {error}") from None
        return found

    def items(self) -> Sequence[Item]:
        return self._items

    def score(self, item: Item, text: str) -> AnswerScores:
        same = MATCHES[self.match]
        return {"score": float(any(same(text, answer) for answer in item.truth["answers"]))}

    def stamp(self) -> dict[str, str]:
        return {
            "suite": "jsonl", "template": self.match, "data": json_digest(self.rows),
        }  # fmt: skip
