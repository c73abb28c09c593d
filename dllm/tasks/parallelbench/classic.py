"""Suites r1 and r2 as items: questions generated or taken from a copy, in a wording, with what scores them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from dllm.errors import UserError
from dllm.tasks.base import Item, Scores
from dllm.tasks.parallelbench.catalog import STOPS, SUITES, Spec, templates
from dllm.tasks.parallelbench.generate import generate, spaced
from dllm.tasks.parallelbench.metrics import Judges, score
from dllm.tasks.parallelbench.record import Answer, Record, messages
from dllm.tasks.parallelbench.sources import take

SOURCE = "summaries and paraphrases cannot be generated: give a copy of the benchmark's files as task.path=FOLDER"


@dataclass
class Questions:
    """Items of the chosen tasks. ``missing``: tasks without any, and why. ``wording``: the template of each task."""

    items: list[Item] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    wording: dict[str, str] = field(default_factory=dict)


def questions(suite: str, tasks: Sequence[str], count: int | None, seed: int, path: str | None) -> Questions:
    """Raises UserError when more is asked for than there is, or a copy cannot be read."""
    found = Questions()
    for name in tasks:
        spec = SUITES[suite][name]
        if count is not None and count > spec.count:
            raise UserError(f"task.count={count} is more than the {spec.count} questions of {name}. Ask for fewer.")
        records = _records(suite, spec, count, seed, path, found)
        numbers = range(len(records)) if count is None or not records else spaced(range(len(records)), count)
        found.items += [_item(suite, spec, number, records[number], found.wording[name]) for number in numbers]
    if not found.items:
        raise UserError(f"task.tasks holds nothing that can be asked: {' '.join(found.missing.values())}")
    return found


def _records(
    suite: str, spec: Spec, count: int | None, seed: int, path: str | None, found: Questions
) -> list[Record]:
    """All questions of a task; what is missing, and the wording, go to ``found``."""
    wording, records = templates(suite)[spec.template], None
    if path is not None:
        taken = take(path, suite, spec, spec.count if count is None else count)
        if taken is None:
            found.missing[spec.name] = f"{spec.name} is left out: task.path={path!r} does not hold it."
            return []
        wording, records = taken.template or wording, taken.records
    elif spec.make is None:
        found.missing[spec.name] = f"{spec.name} is left out, since {SOURCE}."
        return []
    found.wording[spec.name] = wording
    return generate(suite, spec, seed) if records is None else records


def _item(suite: str, spec: Spec, number: int, record: Record, template: str) -> Item:
    truth = {"metric": spec.metric, "answer": plain(record.answer)}
    chat = messages(template, record)
    return Item(f"{spec.name}/{number}", spec.name, chat, truth, spec.budget, STOPS[suite])


def plain(answer: Answer) -> Answer:
    """An answer as JSON values, since it goes into result files."""
    found: Answer = json.loads(json.dumps(answer))
    return found


def judged(item: Item, text: str, judges: Judges) -> Scores:
    return score(item.truth["metric"], text, item.truth["answer"], judges)
