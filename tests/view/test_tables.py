"""Tables of scores: legible in a narrow terminal, and silent about what was not measured."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dllm import Decoder, load
from dllm.parts import (
    Commits,
    JointThreshold,
    Pane,
    Picture,
    Trace,
    TurnRecord,
    scores_table,
    short_names,
    summary_lines,
    trace_page,
)
from tests.view.browser import chromium, opened


def row(task: str, number: int, **scores: float | None) -> dict[str, Any]:
    return {
        "id": f"{task}{number}",
        "task": task,
        "scores": scores,
        "useful_tokens": 1234,
        "canvas": [0] * 2000,
        "nfe": 100,
        "query_tokens": 5,
        "seconds": 12.3456,
        "batch": f"{task}{number}",
    }


def shown(rows: list[dict[str, Any]], width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(scores_table(rows))
    assert isinstance(console.file, io.StringIO)
    return [line.strip() for line in console.file.getvalue().splitlines()]


def test_no_number_is_cut_in_eighty_columns() -> None:
    rows = [
        row(f"waiting_line/{task}", n, score=float(n % 10 < 3), score_strict=0.5, grammar_score=0.25)
        for task in ("replace_random", "insert_index")
        for n in range(700)
    ]
    lines = shown(rows)
    assert max(map(len, lines)) <= 80 and not any("…" in line for line in lines)
    found = [line.split() for line in lines if line.startswith(("replace_random", "insert_index", "all"))]
    rest = ["12.34", "100.0", "100.0", "12.346", "12.346"]
    assert found == [
        ["replace_random", "700", "30.0", "27-33", *rest],
        ["insert_index", "700", "30.0", "27-33", *rest],
        ["all", "1400", "30.0", "28-32", *rest],
        ["replace_random", "25.0", "50.0"],
        ["insert_index", "25.0", "50.0"],
        ["all", "25.0", "50.0"],
    ]


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


WORDS = {0: "<|end|>", 1: "<|mask|>", 5: "a", 6: "b", 7: "c"}
NONE = Commits()
# Position 0 is committed and replaced twice, 1 is committed, and an edit of it is refused in the last turn.
TURNS = [
    TurnRecord(1, 0, [Commits([0], [5], [0.6], [False])], [[]], [[]], [[]], [2], (0, 0, 2), edited=[NONE]),
    TurnRecord(
        2,
        0,
        [Commits([1], [6], [0.7], [True])],
        [[]],
        [[]],
        [[]],
        [2],
        (0, 0, 2),
        edited=[Commits([0], [7], [0.8], [False])],
    ),
    TurnRecord(
        3, 0, [NONE], [[]], [[]], [[]], [2], (0, 0, 2), edited=[Commits([0], [6], [0.9], [False])], refused=[[1]]
    ),
]
EDITED = Trace([1] * 2, [0] * 2, 1, 0, 0, 2, TURNS, WORDS)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    file = tmp_path_factory.mktemp("page") / "trace.html"
    file.write_text(trace_page([Pane("edited", EDITED)]), encoding="utf-8")
    with chromium() as browser:
        found = opened(browser, file, reduced_motion="reduce")
        yield found
        assert found.problems == []


def test_the_page_shows_each_token_in_its_time_and_counts_it_once(page: Any) -> None:
    for step, (text, told) in enumerate([("░░", "0 of 2"), ("a░", "1 of 2"), ("cb", "2 of 2"), ("bb", "2 of 2")]):
        page.evaluate(f"go({step})")
        assert page.inner_text(".text") == text and told in page.inner_text(".status")
        marked = page.evaluate("[...document.querySelectorAll('.text .t')].map((t) => t.className)")
        assert ["edited" in name.split() for name in marked] == [step > 1, False]
    assert "1 edited" in page.inner_text(".status")
    tip = page.evaluate("(explain(panes[0], 0), tip.innerText)").split("\n")
    assert [word for word in ('"a"', '"c"', '"b"') if any(word in line for line in tip)] == ['"a"', '"c"', '"b"']
    assert sum("in the place of the token before" in line for line in tip) == 2


def test_the_legend_explains_it_where_it_is_there() -> None:
    without = [TurnRecord(**{**vars(turn), "edited": []}) for turn in TURNS]
    pages = [trace_page([Pane("t", Trace([1] * 2, [0] * 2, 1, 0, 0, 2, turns, WORDS))]) for turns in (TURNS, without)]
    assert ['"t sample edited"' in html for html in pages] == [True, False]


def test_the_picture_and_the_stream_follow_what_is_replaced(tiny: Path) -> None:
    decoder = Decoder(load(tiny), JointThreshold(0.0, 0.0), eos="none", gen_length=24)
    prompt, pictures, seen = "w1 w2", list[Picture](), 0
    result = decoder(prompt)[0]
    snapshots = decoder.stream(prompt)
    for turn in decoder.turns(prompt):
        picture = pictures[0] if pictures else Picture.of(turn.canvas)
        pictures, snapshot = [picture], next(snapshots)
        picture.propose(turn)
        picture.update(turn)
        assert turn.step.edit is not None
        start, edited = int(turn.canvas.start[0]), turn.step.edit[0].nonzero()[:, 0]
        assert snapshot.edited == (edited - start).tolist() and not set(snapshot.edited) & set(snapshot.committed)
        assert bool(picture.fresh[0][edited].all())
        seen += len(edited)
    assert seen and picture.fixed[0][picture.in_answer[0]].tolist() == result.turns
    assert picture.tokens[0][picture.in_answer[0]].tolist() == result.canvas
