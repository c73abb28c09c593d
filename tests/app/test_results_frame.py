"""``dllm.results_frame``: settings as users type them, the numbers that a sweep printed, no mixture of versions."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from dllm import UserError, results_frame
from dllm.compose.parts import choice_of, composed
from tests.app.conftest import Run, rows_of

SWEEP = ["-m", "name=s", "+task.count=4", "stop=[a,b]"]
GRIDS = (
    "grids=[{sampler: confidence, sampler.threshold: [0.7, 0.9]}, {sampler: static, cache: dual}, "
    "{sampler: prophet, sampler/inner: localleap}]"
)


def stamp(folder: Path, **changes: Any) -> None:
    """Change where a cell says that it was decoded."""
    file = folder / "environment.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_an_item_is_a_row_with_what_was_typed_and_what_came_out(run: Run) -> None:
    run(*SWEEP, GRIDS)
    frame = results_frame("runs/s")
    assert len(frame) == 4 * 4 and frame.columns.is_unique
    assert sorted(frame.value_counts(["sampler", "cache"]).to_dict().items()) == [
        (("confidence", "none"), 8), (("prophet", "none"), 4), (("static", "dual"), 4),
    ]  # fmt: skip
    assert set(frame.loc[frame["sampler"] == "confidence", "sampler.threshold"]) == {0.7, 0.9}
    assert frame.loc[frame["sampler"] == "static", "sampler.threshold"].isna().all()
    assert set(frame.loc[frame["sampler"] == "prophet", "sampler/inner"]) == {"localleap"}
    assert set(frame["stop"]) == {"[a,b]"} and set(frame["task"]) == {"tests.app.questions.Questions"}
    for folder, mine in frame.groupby("cell"):
        there = {row["id"]: row for row in rows_of(Path(folder))}
        assert set(mine["id"]) == set(there) and len(mine) == len(there)
        for row in mine.to_dict("records"):
            stored = there[row["id"]]
            assert (row["score"], row["nfe"], row["text"]) == (stored["scores"]["score"], stored["nfe"], stored["text"])
            assert (row["subtask"], row["sample_seed"]) == (stored["task"], stored["seed"])
            assert row["tpf"] == pytest.approx(stored["useful_tokens"] / stored["nfe"])


def test_a_cell_is_a_row_with_the_numbers_that_the_sweep_printed(run: Run) -> None:
    outcome = run(*SWEEP, "sampler=confidence,static", "samples=2")
    printed = re.findall(r"mini-llada\(.*?\) (\w+) .*: score ([\d.]+), TPF ([\d.]+), .* (\d+) samples", outcome.out)
    frame = results_frame(Path("runs/s"), by="cell")
    mine = [(row.sampler, f"{100 * row.score:.1f}", f"{row.tpf:.2f}", f"{row.n}") for row in frame.itertuples()]
    assert sorted(mine) == sorted(printed) and len(mine) == 2
    items = results_frame("runs/s").groupby("cell")
    cells = frame.set_index("cell")
    for name in ("score", "nfe", "query_tokens", "flops", "scores.judged"):  # sub-tasks are equally large
        assert items[name].mean().to_dict() == pytest.approx(cells[name].to_dict())
    assert (frame["score_low"] <= frame["score"]).all() and (frame["score"] <= frame["score_high"]).all()
    assert frame.loc[0, "judged"] == 8 and list(frame["samples"]) == [2, 2]


@pytest.mark.parametrize(
    ("group", "name"), [("cache", "dkv_pd"), ("cache", "dkv_prefill"), ("cache", "elastic"), ("task", "humaneval")]
)
def test_a_choice_that_shares_its_class_or_its_file_is_called_by_its_name(group: str, name: str) -> None:
    assert choice_of(group, composed([f"{group}={name}"])[group]) == name


def test_cells_of_two_versions_are_named(run: Run) -> None:
    run(*SWEEP, "sampler=confidence,static")
    one, other = sorted(file.parent for file in Path("runs/s").glob("*/results.jsonl"))
    stamp(one, versions={"dllm": "0.1.0"}, commit="1" * 40, dirty=False)
    stamp(other, versions={"dllm": "0.1.0"}, commit="1" * 40, dirty=False)
    assert set(results_frame("runs/s")["version"]) == {"0.1.0 at commit 111111111111"}
    overlapping = results_frame("runs", "runs/s", one, by="cell")
    assert len(overlapping) == 2 and overlapping["cell"].is_unique
    stamp(other, commit="2" * 40, dirty=True)
    with pytest.raises(UserError) as refused:
        results_frame("runs/s")
    sentence = str(refused.value)
    assert f"0.1.0 at commit 111111111111 ({one})" in sentence
    assert f"0.1.0 at commit 222222222222, edited ({other})" in sentence and "mixed=True" in sentence
    assert results_frame("runs/s", mixed=True)["version"].nunique() == 2
    assert len(results_frame(other)) == 4


def test_a_cell_that_another_version_finished_is_of_two(run: Run) -> None:
    run("name=one", "+task.count=4")
    stamp(Path("runs/one"), versions={"dllm": "0.1.0"}, commit=None, dirty=None,
          resumed=[{"versions": {"dllm": "0.2.0"}, "commit": None}])  # fmt: skip
    with pytest.raises(UserError, match=r"2 versions of dllm: 0\.1\.0 \(runs/one\); 0\.2\.0 \(runs/one\)"):
        results_frame("runs/one")
    assert set(results_frame("runs/one", mixed=True)["version"]) == {"0.1.0 and 0.2.0"}


def test_what_is_no_folder_of_results_is_a_sentence(run: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("name=one", "+task.count=4")
    run("name=asked", f"model.path={tiny}", "prompt=w1 w2", "gen_length=8", bare=True)
    run(*SWEEP, "sampler=static", "sampler.steps=3,5")
    Path("empty").mkdir()
    Path("file").touch()
    one = Path("runs/one")

    def refused(*folders: str, **options: Any) -> str:
        with pytest.raises(UserError) as found:
            results_frame(*folders, **options)
        return str(found.value)

    assert "nowhere does not exist" in refused("nowhere") and "file is a file" in refused("file")
    assert refused("empty").startswith("empty holds no results of a task. Make some with: python run.py -m")
    assert "runs/asked holds no results of a task: its samples are of prompts" in refused("runs/asked")
    assert "runs/s holds no results of a task: each of its 2 combinations was refused, such as" in refused("runs/s")
    assert "by='row' must be one of item, cell" in refused("runs/one", by="row") and "needs a folder" in refused()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pandas", None)
        assert "pip install 'dllm[frame]'" in refused("runs/one")
    kept = (one / "config.yaml").read_text()
    for text in ("a: [", "- 1\n", "prompt: x\n"):
        (one / "config.yaml").write_text(text)
        assert "runs/one is not a whole run folder: its config.yaml is missing or broken" in refused("runs/one")
    (one / "config.yaml").write_text(kept)
    (one / "environment.json").unlink()
    assert "its environment.json is missing or broken" in refused("runs/one")
    lines = (one / "results.jsonl").read_text().splitlines(keepends=True)
    (one / "results.jsonl").write_text(lines[0] + '{"id": "x", "sample": 0}\n')
    assert "line 2 of runs/one/results.jsonl has no task: it is not a result of a task." in refused("runs/one")
