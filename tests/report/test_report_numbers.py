"""Every number of a report over seeds, temperatures, checkpoints, caches and an edited sampler, worked out again from
results.jsonl by formulas that are written down here."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Sequence
from io import StringIO
from math import exp, sqrt
from pathlib import Path
from statistics import fmean, stdev, variance
from typing import Any

import pytest

from dllm.parts import (
    ReportTable,
    SettingResults,
    baselines,
    code_hash,
    differences_of,
    named_settings,
    read_cells,
    targets,
)
from dllm.view.report import setting_tables as tables
from tests.report.report_cells import config_of, row, stored

Key = tuple[str, str, str]  # model, method, setting
Rows = list[tuple[int, dict[str, Any]]]  # with their seeds
Bed = tuple[list[SettingResults], dict[Key, Rows]]
TASKS = ("lists/copy", "lists/shuffle")
LLADA, DREAM = "my-llada", "my-dream"
# Overrides, checkpoints, temperatures, forwards of an answer, method, setting.
DESIGN = [
    (["sampler=static"], (LLADA, DREAM), (0.0, 0.7), 8, "static", "defaults"),
    (["sampler=confidence", "sampler.threshold=0.6"], (LLADA,), (0.7,), 2, "confidence", "threshold=0.6"),
    (["sampler=confidence"], (LLADA,), (0.7,), 4, "confidence", "threshold=0.9"),
    (["sampler=confidence", "cache=dpad"], (LLADA,), (0.7,), 5, "confidence + dpad", "defaults"),
    (["sampler=confidence", "cache=vicinity"], (LLADA,), (0.7,), 6, "confidence + vicinity", "defaults"),
    (["sampler=eb"], (LLADA,), (0.0,), 3, "eb", "defaults"),
]


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Bed:
    """The settings of a sweep as a report reads them, and beside them the rows of results.jsonl, by what they are to be
    called."""
    place, chance, truth = tmp_path_factory.mktemp("bed"), random.Random(1), dict[Key, Rows]()
    for overrides, checkpoints, temperatures, nfe, method, name in DESIGN:
        codes = ("today", "old") if method == "eb" else ("today",)
        cells = [
            (checkpoint, heat, seed, code)
            for checkpoint in checkpoints
            for heat in temperatures
            for seed in range(3)
            for code in codes
        ]
        for checkpoint, heat, seed, code in cells:
            folder = place / f"{len(list(place.iterdir())):02}"
            make_cell(folder, overrides, checkpoint, heat, seed, code, nfe, chance)
            called = f"{method} + T=0.7" if heat else method
            called += " + older code" if code == "old" else ""
            rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
            truth.setdefault((checkpoint, called, name), []).extend((seed, entry) for entry in rows)
    return named_settings(read_cells(place)[0]), truth


def make_cell(
    folder: Path,
    overrides: Sequence[str],
    checkpoint: str,
    heat: float,
    seed: int,
    code: str,
    nfe: int,
    chance: random.Random,
) -> None:
    plain = config_of(*overrides)
    model = {**plain["model"], "path": f"ck/{checkpoint}"}
    config = {**plain, "model": model, "seed": seed, "sampling": {**plain["sampling"], "temperature": heat}}
    rows = []
    for task in ("copy", "shuffle"):
        for number in range(4 if task == "copy" else 3):
            forwards = nfe + chance.randrange(2) if nfe < 8 else 8
            right = float(chance.random() < (0.9 if nfe > 5 else 0.6))
            rows.append(row(task, number, right, forwards, bits=[chance.random() for _ in range(forwards)]))
    classes = {group: list(targets(config[group])) for group in ("sampler", "cache")}
    content = {f"{group}'s code": code_hash(names) for group, names in classes.items()}
    content |= {"checkpoint": checkpoint, **({"sampler's code": "0" * 16} if code == "old" else {})}
    stored(folder, config, rows, content=content, started=f"2026-01-0{1 if code == 'old' else 2}")


def lines(table: ReportTable, *, heads: int = 2) -> dict[tuple[str, ...], dict[str, str]]:
    found = csv.DictReader(StringIO(table.csv()))
    return {tuple(list(line.values())[:heads]): line for line in found}


def of_model(bed: Bed, model: str) -> tuple[list[SettingResults], dict[tuple[str, str], Rows]]:
    mine = {key[1:]: rows for key, rows in bed[1].items() if key[0] == model}
    return [one for one in bed[0] if one.model == model], mine


def near(text: str, value: float, digits: int) -> bool:
    return abs(float(text) - value) <= 0.5001 * 10**-digits


def of_task(rows: Rows, task: str, seed: int | None = None) -> list[dict[str, Any]]:
    return [entry for at, entry in rows if entry["task"] == task and seed in (None, at)]


def score(entries: Sequence[dict[str, Any]]) -> float:
    return 100 * fmean(entry["scores"]["score"] for entry in entries)


def quality(rows: Rows, seed: int | None = None) -> float:
    return fmean(score(of_task(rows, task, seed)) for task in TASKS)


# Two-sided 95 % points of Student's t, from a printed table, by degrees of freedom.
T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 8: 2.306, 11: 2.201, 14: 2.145}


def ends_of_task(entries: Sequence[dict[str, Any]]) -> tuple[float, float, float]:
    """Share and interval of one sub-task: Wilson's, with the answers to an item as one cluster."""
    items: dict[str, list[float]] = {}
    for entry in entries:
        items.setdefault(entry["id"], []).append(entry["scores"]["score"])
    n, m, z = len(entries), len(items), 1.96
    p = sum(map(sum, items.values())) / n
    between = m / (m - 1) * sum((sum(v) - len(v) * p) ** 2 for v in items.values()) / n**2
    known = (T[n - 1] / T[m - 1]) ** 2
    k = max(m, min(n, p * (1 - p) / between * known)) if between else (n if 0 < p < 1 else m)
    half = z * sqrt(p * (1 - p) / k + z * z / (4 * k * k))
    low, high = (p + z * z / (2 * k) - half) / (1 + z * z / k), (p + z * z / (2 * k) + half) / (1 + z * z / k)
    return p, min(low, m / (m + z * z)), max(high, z * z / (m + z * z))  # Wilson's of all right, of all wrong


def interval(rows: Rows) -> tuple[float, float]:
    parts = [ends_of_task(of_task(rows, task)) for task in TASKS]
    mean = fmean(p for p, _, _ in parts)
    below, above = (sqrt(sum((part[0] - part[at]) ** 2 for part in parts)) / len(parts) for at in (1, 2))
    return 100 * max(0, mean - below), 100 * min(1, mean + above)


def test_settings_and_their_scores(bed: Bed) -> None:
    for model in (LLADA, DREAM):
        mine, truth = of_model(bed, model)
        table, by_task = lines(tables.setting_table(mine, tables.OUTCOMES)), lines(tables.tasks(mine))
        assert table.keys() == by_task.keys() == truth.keys()
        for key, rows in truth.items():
            line, (low, high) = table[key], interval(rows)
            every = [entry for _, entry in rows]
            forwards = sum(entry["nfe"] for entry in every)
            positions = fmean(fmean(8 / entry["nfe"] for entry in of_task(rows, task)) for task in TASKS)
            expected = {
                "seeds": (3, 0),
                "samples": (21, 0),
                "score": (quality(rows), 1),
                "low": (low, 1),
                "high": (high, 1),
                "SD over seeds": (stdev(quality(rows, seed) for seed in range(3)), 1),
                "tokens / forward": (4 * 21 / forwards, 2),
                "positions / forward": (positions, 2),
                "forwards": (forwards / 21, 1),
                "query tokens": (8 * forwards / 21, 0),
                "GFLOP": (2.0, 2),
                "MB moved": (1, 0),
            }
            assert {head for head, text in line.items() if text} == {"method", "setting", *expected}
            assert all(near(line[head], *value) for head, value in expected.items())
            assert all(near(by_task[key][task.partition("/")[2]], score(of_task(rows, task)), 0) for task in TASKS)


def test_areas_stand_from_the_highest_with_their_intervals(bed: Bed) -> None:
    mine, _ = of_model(bed, LLADA)
    table, summed = tables.areas(mine), lines(tables.curves(mine), heads=1)
    values = [float(row[1]) for row in table.rows]
    assert values == sorted(values, reverse=True) and len(set(values)) > 2
    assert {name: text for name, text, *_ in table.rows} == {name: line["AUP"] for (name,), line in summed.items()}
    assert all(float(low) <= value <= float(high) for value, (_, _, low, high) in zip(values, table.rows, strict=True))


def curve(truth: dict[tuple[str, str], Rows], method: str, task: str) -> list[tuple[float, float]]:
    mine = [of_task(rows, task) for (name, _), rows in truth.items() if name == method]
    return sorted((4 * len(some) / sum(entry["nfe"] for entry in some), score(some)) for some in mine)


def test_methods_are_summed_up_by_their_pooled_points(bed: Bed) -> None:
    mine, truth = of_model(bed, LLADA)
    table = lines(tables.curves(mine), heads=1)
    assert {name for (name,) in table} == {name for name, _ in truth}
    for (name,), line in table.items():
        rows_of = [rows for (method, _), rows in truth.items() if method == name]
        areas = []
        for task in TASKS:
            best = max(score(of_task(rows, task)) for rows in truth.values())
            points = curve(truth, name, task)
            kept = [(x, y) for x, y in points if y >= points[0][1] - 5]
            weighted = [(x, y * min(1, exp(-3 * (1 - y / best)))) for x, y in kept]
            area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in zip(weighted, weighted[1:], strict=False))
            areas.append(kept[0][0] * kept[0][1] + area)
        assert near(line["AUP"], fmean(areas), 1) and line["settings"] == f"{len(rows_of)}"
        assert near(line["best score"], max(map(quality, rows_of)), 1)
        steps = [
            (fmean(fmean(8 / entry["nfe"] for entry in of_task(rows, task)) for task in TASKS), quality(rows))
            for rows in rows_of
        ]
        for level in (90, 80, 70, 60):
            reached = [x for x, y in steps if y >= level]
            assert near(line[f"PB{level}"], max(reached), 1) if reached else line.get(f"PB{level}", "-") == "-"


def test_differences_pair_items_and_seeds(bed: Bed) -> None:
    mine, truth = of_model(bed, LLADA)
    (base,) = (one for one in baselines(mine, "confidence + T=0.7, threshold=0.9"))
    found = differences_of(mine, base)
    assert found is not None and found.notes[0].startswith("Baseline: confidence + T=0.7, threshold=0.9 (")
    there = truth["confidence + T=0.7", "threshold=0.9"]
    table = lines(found.whole)
    assert table.keys() == truth.keys() - {("confidence + T=0.7", "threshold=0.9")}
    right = {(seed, entry["id"]): entry["scores"]["score"] for seed, entry in there}
    for key, line in table.items():
        groups = []
        for task in TASKS:
            items: dict[str, list[float]] = {}
            for seed, entry in truth[key]:
                if entry["task"] == task:
                    items.setdefault(entry["id"], []).append(entry["scores"]["score"] - right[seed, entry["id"]])
            groups.append([fmean(values) for values in items.values()])
        # Bonett and Price (2012) with two added items, over sub-tasks that count alike.
        mean, n = fmean(map(fmean, groups)), len(groups) ** 2 / sum(1 / len(group) for group in groups)
        within = (n - 1) * sum(variance(group) / len(group) for group in groups) / len(groups) ** 2
        half = 1.96 * sqrt((n * within / (n + 2) + (2 + 2 * mean**2 * n / (n + 2)) / (n + 2)) / (n + 2))
        centre = mean * n / (n + 2)
        assert line["items"] == "7" and near(line["difference"], 100 * mean, 1)
        assert near(line["low"], 100 * (centre - half), 1) and near(line["high"], 100 * (centre + half), 1)


def test_speeds_and_limits(bed: Bed) -> None:
    mine, truth = of_model(bed, LLADA)
    speeds, limits = lines(tables.speeds(mine, None)), lines(tables.limit_distances(mine))
    for key, rows in truth.items():
        every = [entry for _, entry in rows]
        seconds, forwards = [entry["seconds"] for entry in every], sum(entry["nfe"] for entry in every)
        assert near(speeds[key]["tokens / s"], 4 * 21 / sum(seconds), 1)  # each sample is a batch of its own
        assert near(speeds[key]["p50 s"], sorted(seconds)[10], 3) and near(speeds[key]["p95 s"], sorted(seconds)[19], 3)
        assert near(speeds[key]["forwards / s"], forwards / sum(seconds), 1)
        assert near(limits[key]["bits / forward"], sum(sum(entry["bits"]) for entry in every) / forwards, 2)
        assert limits[key]["forced %"] == "0"
