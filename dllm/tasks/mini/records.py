"""Records as JSON, and towns dealt to people."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from dllm.tasks.mini.items import Draw, Make, Sample
from dllm.tasks.mini.lexicon import TOWNS
from dllm.tasks.mini.styles import write_rows

RECORDS, PEOPLE = (3, 8), (4, 8)


def _records(draw: Draw) -> Sample:
    names = draw.some(draw.size(*RECORDS))
    records = [{"name": n, "age": draw.rng.randint(2, 99), "town": draw.rng.choice(TOWNS)} for n in names]
    rows = [[str(cell) for cell in record.values()] for record in records]
    slots = {"items": write_rows(rows, draw.rng, draw.plain)}
    return draw.sample("records", slots, json.dumps(records), {"records": records}, " ".join(sorted(names)), len(names))


def judge_records(prediction: str, records: list[dict[str, Any]]) -> dict[str, float]:
    """The JSON value equals the records."""
    return {"score": float(_json(prediction) == records)}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _assign(draw: Draw) -> Sample:
    size = draw.size(*PEOPLE)
    names, towns = draw.some(size), draw.rng.sample(TOWNS, size)
    homes = draw.rng.sample(towns, size)
    answer = json.dumps([{"name": name, "town": town} for name, town in zip(names, homes, strict=True)])
    labels = ("People", "Towns") if draw.plain else draw.rng.choice((("People", "Towns"), ("Names", "Towns")))
    lines = [f"{label}: {draw.list_text(items)}" for label, items in zip(labels, (names, towns), strict=True)]
    truth = {"names": names, "towns": towns}
    return draw.sample("assign", {"items": "\n".join(lines)}, answer, truth, " ".join(sorted(names)), size)


def judge_assign(prediction: str, names: list[str], towns: list[str]) -> dict[str, float]:
    """Every name in the given order, and every town once."""
    entries = _json(prediction)
    if not isinstance(entries, list) or not all(isinstance(e, dict) and set(e) == {"name", "town"} for e in entries):
        return {"score": 0.0}
    fits = [e["name"] for e in entries] == names and Counter(str(e["town"]) for e in entries) == Counter(towns)
    return {"score": float(fits)}


TASKS: dict[str, Make] = {"records": _records, "assign": _assign}
