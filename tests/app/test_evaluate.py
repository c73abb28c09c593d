"""A task's items decoded and scored: what a row says, what a resumed run does, what is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest
import torch

from dllm import Decoder, load, results_frame
from dllm.app.runs import evaluation
from dllm.parts import (
    ENDING,
    MAX_WAITING,
    Comparison,
    DecisionCount,
    FinishedSample,
    Fixed,
    HumanEval,
    Judgement,
    Measures,
    ResultRow,
    RunFolder,
    Runtime,
    aup_intervals,
    methods,
    part,
    pooled_settings,
    quantile,
    read_cells,
    scored,
    scorers,
    wilson,
)
from dllm.tasks.standard import sandbox
from tests.app.conftest import Run, rows_of, timeless
from tests.app.questions import Questions
from tests.support.bits import bits

A = Path("runs/a")


def test_every_item_is_decoded_scored_and_stamped(run: Run) -> None:
    outcome = run("name=a", "+task.count=5", "samples=2")
    rows = rows_of(A)
    assert outcome.code == 0
    assert [(row["id"], row["sample"]) for row in sorted(rows, key=lambda r: (r["id"], r["sample"]))] == [
        (f"q{n}", sample) for n in range(5) for sample in range(2)
    ]
    for row in rows:
        assert (row["suite"], row["template"], row["data"]) == ("questions", "1", "5")
        assert row["scores"]["score"] == (len(row["text"]) % 2 == 0)
        assert len(row["canvas"]) == {"even": 16, "odd": 8}[row["task"]]  # each item's own budget
        assert len(row["bits"]) == len(row["commits"]) == len(row["forced"]) == row["nfe"]
        assert 0 < sum(row["commits"]) <= len(row["canvas"]) and row["seconds"] > 0
    for word in ("even", "odd", "all", "missing", "TPF", "p95"):
        assert word in outcome.out
    identity = json.loads((A / "environment.json").read_text())
    assert identity["content"]["task data"] == "5" and identity["device"] == "cpu"


def test_a_metric_over_all_answers_is_made_again_from_the_results(run: Run) -> None:
    """No mean of answers: kept by answer, computed at the end, also of a run that was killed, and told without an
    interval in the table, the report and the frame. Of two answers to each item the mean of both."""
    whole = ("+task.whole=true", "+task.count=6", "samples=2")
    outcome = run("name=a", *whole)
    rows = rows_of(A)
    assert all(row["scores"] == {} and row["parts"] == {"length": [len(row["text"])]} for row in rows)
    truth = {
        task: fmean(
            median(len(row["text"]) for row in rows if (row["task"], row["sample"]) == (task, n)) for n in (0, 1)
        )
        for task in ("even", "odd")
    }
    shown = [line.split()[:3] for line in outcome.out.splitlines() if line.split()[:1] in (["even"], ["odd"])]
    assert [cells[:2] for cells in shown[:2]] == [["even", "6"], ["odd", "6"]]
    assert [float(cells[2]) for cells in shown[:2]] == pytest.approx([truth["even"], truth["odd"]], abs=0.051)
    assert "missing" not in outcome.out
    kept = (A / "totals.json").read_text()
    assert json.loads(kept)["totals"]["odd"] == pytest.approx(dict.fromkeys(("score", "length"), truth["odd"] / 100))

    (cell,) = pooled_settings(read_cells(A)[0])
    assert cell.scores == pytest.approx(truth) and cell.interval is None and cell.quality == fmean(cell.scores.values())
    assert not Comparison.of(cell, cell).groups and aup_intervals(methods([cell])) == [None]
    (line,) = results_frame("runs/a", by="cell").itertuples()
    assert line.score == pytest.approx(cell.quality / 100) and line.score_low is None and line.judged == 0

    lines = (A / "results.jsonl").read_bytes().splitlines(keepends=True)
    (A / "results.jsonl").write_bytes(b"".join(lines[:3]))  # killed: what was noted is of other answers
    assert read_cells(A)[0][0].totals == {}
    assert run("name=a", *whole).code == 0
    assert json.loads((A / "totals.json").read_text()) == json.loads(kept)


def test_a_resumed_run_is_the_undisturbed_one(run: Run) -> None:
    """Whole batches are decoded again, so that a row has the same mates as ever. The file has the rows that were there
    first."""
    settings = ["+task.count=7", "batch_size=3", "sampling.temperature=1.0"]
    run("name=a", *settings)
    whole = (A / "results.jsonl").read_bytes().splitlines(keepends=True)
    (A / "results.jsonl").write_bytes(b"".join(whole[:2]) + whole[2][:-9])
    assert run("resume=runs/a", bare=True).code == 0
    expected = [timeless(json.loads(line)) for line in whole]
    assert rows_of(A)[:2] == [json.loads(line) for line in whole[:2]]
    assert sorted((timeless(row) for row in rows_of(A)), key=lambda row: row["id"]) == sorted(
        expected, key=lambda row: row["id"]
    )
    run("name=a", *settings)
    assert [timeless(row) for row in rows_of(A)] == expected


def test_a_folder_of_another_configuration_is_never_mixed(run: Run) -> None:
    run("name=a", "+task.count=2")
    before = (A / "results.jsonl").read_bytes()
    for other, words in (
        (["+task.count=3"], "task.count=2, not 3"),
        (["+task.count=2", "sampler.threshold=0.5"], "sampler.threshold=0.9, not 0.5"),
    ):
        refused = run("name=a", *other)
        assert refused.code == 2 and words in refused.err and "Start a new run" in refused.err
    assert (A / "results.jsonl").read_bytes() == before


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write = RunFolder.write

    def interrupted(self: RunFolder, *arguments: Any) -> None:
        write(self, *arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "write", interrupted)
    outcome = run("name=a", "+task.count=3")
    assert outcome.code == 130 and "Finished samples are kept. Go on with resume=runs/a" in outcome.err
    outcome = run("-m", "name=s", "+task.count=3", "sampler=static,confidence")
    assert outcome.code == 130 and "Go on with the same command and name=s" in outcome.err
    monkeypatch.setattr(RunFolder, "write", write)
    assert run("resume=runs/a", bare=True).code == 0 and len(rows_of(A)) == 3


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_what_slurm_and_a_closed_terminal_send_ends_as_ctrl_c_does(
    run: Run, monkeypatch: pytest.MonkeyPatch, sign: signal.Signals, code: int
) -> None:
    write = RunFolder.write

    def killed(self: RunFolder, *arguments: Any) -> None:
        write(self, *arguments)
        os.kill(os.getpid(), sign)

    before = {one: signal.getsignal(one) for one in ENDING}
    monkeypatch.setattr(RunFolder, "write", killed)
    outcome = run("name=a", "+task.count=3")
    for one, handler in before.items():
        signal.signal(one, handler)
    assert outcome.code == code and "Finished samples are kept. Go on with resume=runs/a" in outcome.err
    assert len(rows_of(A)) == 1
    monkeypatch.setattr(RunFolder, "write", write)
    assert run("resume=runs/a", bare=True).code == 0 and len(rows_of(A)) == 3


def test_a_folder_deleted_in_mid_run_is_no_success(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write = RunFolder.write

    def deleting(self: RunFolder, *arguments: Any) -> None:
        write(self, *arguments)
        if len(self.rows) == 3:  # the last one: nothing is written after it
            shutil.rmtree(self.path)

    monkeypatch.setattr(RunFolder, "write", deleting)
    outcome = run("name=a", "+task.count=3")
    assert outcome.code == 2 and "runs/a/results.jsonl was deleted" in outcome.err and "Run folder" not in outcome.out


def test_gen_length_rules_over_the_items(run: Run) -> None:
    run("name=a", "+task.count=2", "gen_length=24", "trace=true")
    assert [len(row["canvas"]) for row in rows_of(A)] == [24, 24]
    replayed = run("task=replay", "trace=runs/a/traces/q0-0.json", bare=True)
    assert replayed.code == 0 and "turns equal" in replayed.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["prompt=w1"], "brings its own questions: drop prompt"),
        (["prompts=x.jsonl"], "drop prompts"),
        (["compare=true"], "compare=true is for prompts of yours"),
        (["+task.count=0"], "has no items"),
        (["gen_length=0"], "gen_length=0 must be at least 1"),
        (["sampler=static", "sampler.steps=3"], "sampler.steps=3"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_what_cannot_work_is_a_sentence(run: Run, arguments: list[str], words: str) -> None:
    outcome = run("name=a", *arguments)
    assert outcome.code == 2 and words in outcome.err and outcome.err.count("\n") == 1 and not A.exists()


def test_a_scored_run_compiles_the_weights_it_loads(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed weights, which a CPU decodes with otherwise, cannot be compiled. The compiler itself, which takes seconds,
    has its tests in test_runtimes.py."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    for name, runtime in (("a", "eager"), ("b", "compile")):
        outcome = run(f"name={name}", "+task.count=2", f"runtime={runtime}", "cache=dual", "blocks.block_length=4")
        assert outcome.code == 0, outcome.err
    expected, found = (rows_of(Path("runs") / name) for name in ("a", "b"))
    assert [row["canvas"] for row in found] == [row["canvas"] for row in expected]


def test_an_oracle_without_reference_makes_its_own(run: Run) -> None:
    run("name=a", "+task.count=4", "sampler=oracle", "eos=none")
    run("name=b", "+task.count=4", "sampler=static", "eos=none")
    for best, slow in zip(rows_of(A), rows_of(Path("runs/b")), strict=True):
        assert best["canvas"] == slow["canvas"] and best["nfe"] <= slow["nfe"]
        assert best["lossless"] <= slow["nfe"] == len(slow["canvas"])


@pytest.mark.parametrize("sampler", ["confidence", "ete", "freedave", "saber"])
def test_the_tally_counts_what_a_trace_holds(tiny: Path, sampler: str) -> None:
    """ETE and FreeDave offer several candidates, of which one is kept a forward later."""
    tally = DecisionCount()
    decoder = Decoder(load(tiny), part("sampler", sampler), eos="none", gen_length=16, batch_size=2)
    rows = decoder(["w1 w2", "w3"], trace=True, observe=tally)
    for number, row in enumerate(rows):
        assert row.trace is not None
        assert tally.columns(number)["bits"] == pytest.approx(bits(row.trace), abs=1e-3)


def test_the_tally_does_not_depend_on_when_the_host_looks(tiny: Path) -> None:
    """A row that waits for the host decides nothing in that forward."""
    found = []
    for runtime in (Runtime(), Runtime("static", 1), Runtime("static", 5)):
        tally = DecisionCount()
        decoder = Decoder(load(tiny), blocks=Fixed(8), eos="none", gen_length=24, batch_size=2, runtime=runtime)
        rows = decoder(["w1 w2", "w3"], observe=tally)
        found.append([tally.columns(number)["commits"] for number in range(2)])
        assert [len(counts) for counts in found[-1]] == [row.nfe for row in rows]
    assert found[0] == found[1] == found[2] and max(row.idle_forwards for row in rows)


def test_measures_count_batches_once_and_leave_missing_scores_out() -> None:
    def row(batch: str, seconds: float, score: float | None) -> dict[str, object]:
        return {
            "batch": batch,
            "seconds": seconds,
            "useful_tokens": 10,
            "canvas": [0] * 16,
            "nfe": 4,
            "query_tokens": 64,
            "scores": {"score": score},
        }

    found = Measures.of([row("a", 1.0, 1.0), row("a", 3.0, None), row("b", 1.0, 0.0)])
    assert (found.seconds, found.tokens, found.speed, found.tpf) == (4.0, 30, 7.5, 2.5)
    assert (found.samples, found.judged, found.score) == (3, 2, 0.5)
    assert Measures.of([row("a", 1.0, None)]).score is None
    assert quantile([1, 2, 3, 4], 0.5) == 2.5 and quantile([5], 0.95) == 5 and quantile([1, 2, 3], 1.0) == 3
    low, high = wilson(8, 10)
    assert low == pytest.approx(0.4902, abs=1e-4) and high == pytest.approx(0.9433, abs=1e-4)  # Wilson's formula


def samples(count: int, decoded: list[int]) -> Iterator[FinishedSample]:
    for number in range(count):
        decoded.append(number)
        yield {"id": number, "scores": None}, None


def test_the_next_sample_is_decoded_while_a_score_is_awaited() -> None:
    """Every score needs another sample to be decoded first: whoever waits for it before that waits in vain."""
    decoded: list[int] = []

    def score(row: ResultRow) -> Judgement:
        deadline = time.monotonic() + 5
        while len(decoded) < min(row["id"] + 2, 10) and time.monotonic() < deadline:
            time.sleep(0.001)
        return {"scores": {"score": float(len(decoded) >= min(row["id"] + 2, 10))}}

    rows = [row for row, _ in scored(samples(10, decoded), score, 2)]
    assert [row["id"] for row in rows] == list(range(10)) and all(row["scores"] == {"score": 1.0} for row in rows)


def test_a_slow_scorer_holds_the_decode_before_much_can_be_lost() -> None:
    decoded: list[int] = []
    held = threading.Event()

    def score(row: ResultRow) -> Judgement:
        held.wait(5)
        return {}

    rows = scored(samples(100, decoded), score, 2)
    threading.Timer(0.05, held.set).start()
    next(rows)
    assert len(decoded) == 2 * MAX_WAITING + 1
    rows.close()  # type: ignore[attr-defined]


def test_a_scorers_error_is_the_runs() -> None:
    def score(row: ResultRow) -> Judgement:
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
    found = scored(iter(rows), lambda row: {"scores": {"score": float(sandbox.run_program(row["text"]).passed)}}, 3)
    assert [row["scores"]["score"] for row, _ in found] == [float(number % 3 == 0) for number in range(6)]
