"""Records as JSON, towns dealt to people, and a table sorted by a column."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from dllm.tasks.mini.items import Draw, Make, Sample
from dllm.tasks.mini.styles import write_rows
from dllm.tasks.mini.words import PETS, TOWNS

RECORDS, PEOPLE, ROWS = (3, 7), (5, 8), (5, 8)
COLUMNS = ("name", "age", "town", "pet")


def _records(draw: Draw) -> Sample:
    names = draw.some(draw.size(*RECORDS))
    found = [{"name": n, "age": draw.rng.randint(2, 99), "town": draw.rng.choice(TOWNS)} for n in names]
    rows = [[str(cell) for cell in record.values()] for record in found]
    slots = {"items": write_rows(rows, draw.rng, draw.plain)}
    return draw.sample("records", slots, json.dumps(found), {"records": found}, " ".join(sorted(names)), len(names))


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
    dealt = draw.rng.sample(towns, size)
    answer = json.dumps([{"name": name, "town": town} for name, town in zip(names, dealt, strict=True)])
    labels = ("People", "Towns") if draw.plain else draw.rng.choice((("People", "Towns"), ("Names", "Towns")))
    listed = [f"{label}: {draw.listed(items)}" for label, items in zip(labels, (names, towns), strict=True)]
    truth = {"names": names, "towns": towns}
    return draw.sample("assign", {"items": "\n".join(listed)}, answer, truth, " ".join(sorted(names)), size)


def judge_assign(prediction: str, names: list[str], towns: list[str]) -> dict[str, float]:
    """Every name in the given order, and every town once."""
    found = _json(prediction)
    if not isinstance(found, list) or not all(isinstance(one, dict) and set(one) == {"name", "town"} for one in found):
        return {"score": 0.0}
    fits = [one["name"] for one in found] == names and Counter(str(one["town"]) for one in found) == Counter(towns)
    return {"score": float(fits)}


def _table(draw: Draw) -> Sample:
    size = draw.size(*ROWS)
    columns = (
        draw.some(size), draw.rng.sample(range(10, 100), size), draw.rng.sample(TOWNS, size),
        draw.rng.choices(PETS, k=size),
    )  # fmt: skip
    rows = list(zip(*columns, strict=True))
    by = draw.rng.randrange(3)  # names, ages and towns differ from row to row; pets need not
    ordered = sorted(rows, key=lambda row: row[by])
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in (COLUMNS, *ordered)]
    given = [[str(cell) for cell in row] for row in rows]
    slots = {"items": write_rows(given, draw.rng, draw.plain), "column": COLUMNS[by]}
    key = " ".join(sorted(columns[0]))
    return draw.sample("table", slots, "\n".join(lines), {"table": "\n".join(lines)}, key, size)


def judge_table(prediction: str, table: str) -> dict[str, float]:
    """The same cells in the same order; spaces and empty lines do not matter."""
    said, wanted = (
        [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.split("\n") if line.strip()]
        for text in (prediction, table)
    )
    return {"score": float(said == wanted)}


TASKS: dict[str, Make] = {"records": _records, "assign": _assign, "table": _table}
