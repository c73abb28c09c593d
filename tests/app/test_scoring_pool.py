"""Scores that take processes of their own: the decode goes on, and every row gets the score of its own answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dllm.app.runs import evaluation
from dllm.app.runs.scoring_pool import MAX_WAITING, FinishedSample, scored, scorers
from dllm.record.results import ResultRow
from dllm.tasks.base import AnswerScores
from dllm.tasks.standard import sandbox
from dllm.tasks.standard.code import HumanEval
from tests.app.conftest import Run, rows_of, timeless
from tests.app.questions import Questions


def samples(count: int, decoded: list[int]) -> Iterator[FinishedSample]:
    for number in range(count):
        decoded.append(number)
        yield {"id": number, "scores": None}, None


def test_the_next_sample_is_decoded_while_a_score_is_awaited() -> None:
    """Every score needs another sample to be decoded first: whoever waits for it before that waits in vain."""
    decoded: list[int] = []

    def score(row: ResultRow) -> AnswerScores:
        deadline = time.monotonic() + 5
        while len(decoded) < min(row["id"] + 2, 10) and time.monotonic() < deadline:
            time.sleep(0.001)
        return {"score": float(len(decoded) >= min(row["id"] + 2, 10))}

    rows = [row for row, _ in scored(samples(10, decoded), score, 2)]
    assert [row["id"] for row in rows] == list(range(10)) and all(row["scores"] == {"score": 1.0} for row in rows)


def test_a_slow_scorer_holds_the_decode_before_much_can_be_lost() -> None:
    decoded: list[int] = []
    held = threading.Event()

    def score(row: ResultRow) -> AnswerScores:
        held.wait(5)
        return {}

    rows = scored(samples(100, decoded), score, 2)
    threading.Timer(0.05, held.set).start()
    next(rows)
    assert len(decoded) == 2 * MAX_WAITING + 1
    rows.close()  # type: ignore[attr-defined]


def test_a_scorers_error_is_the_runs() -> None:
    def score(row: ResultRow) -> AnswerScores:
        raise ValueError("no judge")

    for workers in (0, 2):
        with pytest.raises(ValueError, match="no judge"):
            list(scored(samples(3, []), score, workers))


class Apart(Questions):
    apart = True


def test_rows_are_those_of_scoring_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("name=a", "+task.count=6")
    monkeypatch.setattr(evaluation, "scorers", lambda task, device: 3)
    run("name=b", "+task.count=6")
    assert [*map(timeless, rows_of(Path("runs/b")))] == [*map(timeless, rows_of(Path("runs/a")))]


def test_only_another_device_than_the_cpu_is_decoded_on_beside_the_scorers() -> None:
    slow, quick = Apart(), Questions()
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert scorers(slow, cpu) == scorers(quick, gpu) == 0 and 1 <= scorers(slow, gpu) <= 8
    assert HumanEval.apart


def test_programs_are_judged_alike_side_by_side(tmp_path: Path) -> None:
    """Six programs on three threads, of which every third is right."""
    programs = [f"assert {number} % 3 == 0" for number in range(6)]
    rows: list[FinishedSample] = [({"id": n, "text": text, "scores": None}, None) for n, text in enumerate(programs)]
    found = scored(iter(rows), lambda row: {"score": float(sandbox.run_program(row["text"]).passed)}, 3)
    assert [row["scores"]["score"] for row, _ in found] == [float(number % 3 == 0) for number in range(6)]
