"""Questions of your own: a JSON-lines file with a prompt and an answer in each line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from dllm.common.digest import json_digest
from dllm.common.errors import UserError, nearest
from dllm.compose.parts import part_of
from dllm.constraints.kinds import Constraint
from dllm.tasks.base import AnswerScores, Item, Task
from dllm.tasks.standard.json_lines import Doc, read_docs

_PLAIN = r"(?:[1-9]\d{0,2}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<!\d)\.\d+"  # commas only before groups of three digits
_MINUS = "-\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"  # hyphens, dashes and minus signs; not an em dash
_POWER = (
    rf"[eE](?P<e>[+{_MINUS}]?\d{{1,3}})(?!\d)|"
    rf"\ ?(?:\\times|\\cdot|[x*×·])\ ?10(?:\^|\*\*)\{{?(?P<ten>[+{_MINUS}]?\d{{1,3}})(?!\d)"
)
NUMBER = re.compile(
    rf"""
    (?:(?<![\w)\]}}%])(?P<sign>[{_MINUS}]))?   # between two numbers, and after a name, it is not a sign
    (?:\\?[$€£¥]\ ?)?                        # of currency: -$5
    (?:
        (?<![/\d])(?:(?P<whole>\d{{1,3}})\ )?(?P<top>{_PLAIN})/(?P<under>{_PLAIN})(?![\d/]|\.\d)  # 3/4, 1 1/2, no date
        |
        (?P<plain>{_PLAIN})(?:{_POWER})?
    )""",
    re.VERBOSE,
)
_LATEX = (
    (re.compile(r"\{,\}|,\\!"), ","),
    (re.compile(r"(?<=\d)\\[dt]?frac\{(\d+)\}\{(\d+)\}"), r" \1/\2"),
    (re.compile(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}"), r"\1/\2"),
)


def exact(text: str, answer: str) -> bool:
    """Equal but for white space at the ends."""
    return text.strip() == answer.strip()


def contains(text: str, answer: str) -> bool:
    """The answer is somewhere in the text."""
    return answer.strip() in text


def same_number(text: str, answer: str) -> bool:
    """The last number of the text is the answer's last number."""
    number, truth = last_number(text), last_number(answer)
    return number is not None and number == truth


def last_number(text: str) -> Fraction | None:
    """The last number of a text; None without one.

    Commas group thousands, by three digits; elsewhere they part numbers. A minus counts where it is not an operator
    (10-5 ends in 5). Powers of ten (1.5e3, 1.5 x 10^3), fractions (3/4, 1 1/2, \\frac{3}{4}) and their LaTeX are
    numbers. Currencies and per cent signs say nothing.
    """
    for pattern, plain in _LATEX:
        text = pattern.sub(plain, text)
    *_, match = (None, *NUMBER.finditer(text))
    return None if match is None else _value(match)


def _value(match: re.Match[str]) -> Fraction:
    if match["plain"] is None:
        top, under = _plain(match["top"]), _plain(match["under"])
        whole = int(match["whole"] or 0)
        value = whole * (top < under) + top / under if under else under
    else:
        power = match["e"] or match["ten"] or "0"
        value = _plain(match["plain"]) * Fraction(10) ** int(re.sub(f"[{_MINUS}]", "-", power))
    return -value if match["sign"] else value


def _plain(digits: str) -> Fraction:
    return Fraction(Decimal(digits.replace(",", "")))  # Python makes no int of a text of over 4,300 digits


MATCHES: dict[str, Callable[[str, str], bool]] = {"exact": exact, "contains": contains, "number": same_number}


class JsonLines(Task):
    """path: a file of {"prompt": text or messages, "answer": text, or a list of right ones}; an "id", a "task" and
    a "constraint", such as {"name": "regex", "pattern": "a+"}, may be beside them. match: how answers are
    compared. budget: tokens of an answer; stop: what ends it."""

    name = "jsonl"

    def __init__(
        self,
        path: str | None = None,
        match: str = "exact",
        budget: int = 128,
        stop: Sequence[str] = (),
        limit: int | None = None,
    ) -> None:
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
            str(row.get("id", place)),
            str(row.get("task", self.name)),
            prompt,
            {"answers": [str(answer) for answer in answers]},
            self.budget,
            self.stop,
            constraint=self._constraint(place, row.get("constraint")),
        )

    def _constraint(self, place: int, settings: Any) -> Constraint | None:
        try:
            constraint: Constraint | None = None if settings is None else part_of("constraint", settings)
        except UserError as error:
            raise UserError(f"task.path={self.path!r}, question {place}: {error}") from None
        return constraint

    def items(self) -> Sequence[Item]:
        return self._items

    def score(self, item: Item, text: str) -> AnswerScores:
        same = MATCHES[self.match]
        return {"score": float(any(same(text, answer) for answer in item.truth["answers"]))}

    def stamp(self) -> dict[str, str]:
        return {"suite": "jsonl", "template": self.match, "data": json_digest(self.rows)}
