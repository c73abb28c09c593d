"""Tables of scores: legible in a narrow terminal, and silent about what was not measured."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from dllm.view.scores import scores_table, short_names
from dllm.view.summary import summary_lines


def row(task: str, number: int, **scores: float | None) -> dict[str, Any]:
    return {
        "id": f"{task}{number}", "task": task, "scores": scores, "useful_tokens": 1234, "canvas": [0] * 2000,
        "nfe": 100, "query_tokens": 5, "seconds": 12.3456, "batch": f"{task}{number}",
    }  # fmt: skip


def shown(rows: list[dict[str, Any]], width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(scores_table(rows))
    assert isinstance(console.file, io.StringIO)
    return [line.strip() for line in console.file.getvalue().splitlines()]


def test_no_number_is_cut_in_eighty_columns() -> None:
    rows = [
        row(f"waiting_line/{task}", n, score=float(n % 10 < 3), score_strict=0.5, grammar_score=0.25)
        for task in ("replace_random", "insert_index") for n in range(700)
    ]  # fmt: skip
    lines = shown(rows)
    assert max(map(len, lines)) <= 80 and not any("…" in line for line in lines)
    found = [line.split() for line in lines if line.startswith(("replace_random", "insert_index", "all"))]
    rest = ["12.34", "100.0", "100.0", "12.346", "12.346"]
    assert found == [
        ["replace_random", "700", "30.0", "27-33", *rest], ["insert_index", "700", "30.0", "27-33", *rest],
        ["all", "1400", "30.0", "28-32", *rest],
        ["replace_random", "25.0", "50.0"], ["insert_index", "25.0", "50.0"], ["all", "25.0", "50.0"],
    ]  # fmt: skip


def test_a_metric_that_a_task_does_not_have_is_blank_and_one_without_a_judge_is_missing() -> None:
    lines = shown([row("a", 0, score=1.0, judged=None), row("b", 0, score=1.0, strict=0.5)])
    begin = next(at for at, line in enumerate(lines) if "judged" in line)
    assert lines[begin].split() == ["task", "judged", "strict"]
    found = [line.split() for line in lines[begin:] if line.startswith(("a ", "b "))]
    assert found == [["a", "missing"], ["b", "50.0"]]


def test_names_are_shortened_only_while_they_differ() -> None:
    assert short_names(["x/copy", "x/sort"]) == ["copy", "sort"]
    assert short_names(["x/copy", "y/copy"]) == ["x/copy", "y/copy"]


def test_a_speed_of_a_busy_machine_has_a_mark_and_a_reason() -> None:
    quiet = {**row("a", 0, score=1.0), "device": "cpu", "cpu_seconds": 12.2, "load": 3.0}
    busy = {**row("b", 0, score=1.0), "device": "cpu", "cpu_seconds": 6.1728, "load": 0.5}
    gpu = {**quiet, "device": "cuda", "cpu_seconds": 0.1, "load": 0.9}  # a GPU's host may sleep while it waits
    for rows in ([quiet], [gpu], [row("a", 0, score=1.0)]):
        assert not any("?" in line for line in shown(rows)) and "?" not in summed(rows)
    lines = shown([quiet, busy])
    assert any(line.startswith("b") and "100.0?" in line for line in lines)
    assert any(line.startswith("a ") and "100.0?" not in line for line in lines)
    assert lines[-1].startswith("?: the machine was busy (wall time 1.3 x CPU time).")  # of both
    assert "100.0 ? (wall time 2.0 x CPU time)" in summed([busy])
    assert "1.5 processes a core of the host" in shown([{**gpu, "load": 1.5}])[-1]


def summed(rows: list[dict[str, Any]]) -> str:
    return summary_lines([{**one, "stop_reason": "eos"} for one in rows])["tokens per second"]
