"""What a run is: edit its settings or the code of its parts, and it is another one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dllm import UserError, results_frame
from dllm.parts import checkout_state, choice_of, code_hash, composed
from tests.app.conftest import Run, cells_of, rows_of

A = Path("runs/a")
OWN = ["sampler=static", "sampler._target_=own.Own", "+task.count=1"]
SAMPLER = '''"""A sampler of one's own."""

from dllm.parts.samplers.static import Static
from own_helper import number


class Own(Static):
    """Commits several positions a turn."""

    def __init__(self, **options):
        super().__init__(**{**options, "per_step": number()})
'''
HELPER = "def number():\n    return 2\n"


class Folder:
    """A place on the path of Python with modules that are written and imported anew."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def write(self, **modules: str) -> None:
        for name, text in modules.items():
            (self.place / f"{name}.py").write_text(text)
        for name in ("own", "own_helper"):
            sys.modules.pop(name, None)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two edits within a second would look alike to a .pyc
    folder = Folder(tmp_path)
    folder.write(own=SAMPLER, own_helper=HELPER)
    return folder


EDITS = {"own": SAMPLER.replace("number()", "4"), "own_helper": HELPER.replace("2", "4")}


@pytest.mark.parametrize("edited", EDITS)
def test_an_edited_part_is_another_run(run: Run, own: Folder, edited: str) -> None:
    """In a module of its own or one that it imports; the old scores are never given for it."""
    assert run("name=a", *OWN).code == 0
    before = rows_of(A)
    own.write(**{edited: EDITS[edited]})
    refused = run("name=a", *OWN)
    assert refused.code == 2 and "was run with another content of sampler's code" in refused.err
    assert rows_of(A) == before


@pytest.mark.program
def test_an_edited_part_is_another_cell_of_a_sweep(run: Run, own: Folder) -> None:
    run("-m", "name=s", *OWN)
    own.write(own_helper=HELPER.replace("2", "4"))
    run("-m", "name=s", *OWN)
    first, second = cells_of(Path("runs/s")).values()
    assert first[0]["nfe"] != second[0]["nfe"]


def test_comments_docstrings_and_layout_are_no_code(run: Run, own: Folder) -> None:
    run("name=a", *OWN)
    own.write(own=SAMPLER.replace("several", "some").replace("\n\n\n", "\n\n# The class\n"), own_helper=f"\n\n{HELPER}")
    again = ("resume=runs/a", "task.packages=[own]")
    assert run(*again, bare=True).code == 0
    own.write(own=EDITS["own"])
    assert "was run with another content of sampler's code" in run(*again, bare=True).err


def test_the_code_is_that_of_the_classes_and_their_bases(own: Folder) -> None:
    names = ["dllm.parts.samplers.static.Static", "dllm.parts.samplers.order.Order", "own.Own"]
    assert len({code_hash([name]) for name in names}) == 3
    assert code_hash(names) == code_hash(reversed(names)) and code_hash(["own.Own"]) == code_hash(["own.Own"])


def test_what_has_no_source_counts_by_its_bytes(own: Folder) -> None:
    import py_compile

    values = []
    for number in (2, 4):
        py_compile.compile(str(own.place / "own_helper.py"), cfile=str(own.place / "bare.pyc"), doraise=True)
        sys.modules.pop("bare", None)
        (own.place / "own.py").write_text("from bare import number\nclass Own: pass\n")
        sys.modules.pop("own", None)
        values.append(code_hash(["own.Own"]))
        own.write(own_helper=HELPER.replace("2", str(number + 2)))
    assert values[0] != values[1]


def test_resume_refuses_an_edited_configuration_and_names_the_key(run: Run) -> None:
    """threshold 0.9 edited to 0.0 gave rows of both under one identity."""
    run("name=a", "+task.count=3")
    results = (A / "results.jsonl").read_bytes()
    (A / "results.jsonl").write_bytes(b"".join(results.splitlines(keepends=True)[:1]))
    config = (A / "config.yaml").read_text()
    (A / "config.yaml").write_text(config.replace("threshold: 0.9", "threshold: 0.0"))
    refused = run("resume=runs/a", bare=True)
    assert refused.code == 2 and len(rows_of(A)) == 1
    assert "was edited: its samples were decoded with sampler.threshold=0.9, not 0.0. Put that back" in refused.err
    (A / "config.yaml").write_text(config)
    assert run("resume=runs/a", bare=True).code == 0 and len(rows_of(A)) == 3


def test_the_environment_says_whether_the_package_is_that_of_its_commit(tmp_path: Path, run: Run) -> None:
    def git(*arguments: str) -> None:
        who = ["-c", "user.name=t", "-c", "user.email=t@t"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True)

    package = tmp_path / "package"
    package.mkdir()
    (package / "a.py").write_text("a = 1\n")
    assert checkout_state(package) == (None, None)
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    found: list[Any] = []
    for edit in ("notes.txt", "package/a.py", "package/own.py"):
        checkout_state.cache_clear()
        found.append(checkout_state(package)[1])
        (tmp_path / edit).write_text("a = 2\n")
        git("checkout", "-q", "--", "package/a.py") if edit == "package/own.py" else None
    checkout_state.cache_clear()
    assert [*found, checkout_state(package)[1]] == [False, False, True, True]
    run("name=a", "+task.count=1")
    known = json.loads((A / "environment.json").read_text())
    assert (known["commit"] is None) == (known["dirty"] is None) and known["load"] >= 0
    if (Path(__file__).parents[2] / ".git").exists():
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True)
        assert known["commit"] == head.stdout.strip()
    assert known["settings"]["sampler.threshold"] == 0.9 and known["content"]["sampler's code"]


SWEEP = ["-m", "name=s", "+task.count=4", "stop=[a,b]"]
GRIDS = (
    "grids=[{sampler: confidence, sampler.threshold: [0.7, 0.9]}, {sampler: static, cache: dual}, "
    "{sampler: prophet, sampler/inner: localleap}]"
)


def stamp(folder: Path, **changes: Any) -> None:
    """Change where a cell says that it was decoded."""
    file = folder / "environment.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.program
def test_an_item_is_a_row_with_what_was_typed_and_what_came_out(run: Run) -> None:
    run(*SWEEP, GRIDS)
    frame = results_frame("runs/s")
    assert len(frame) == 4 * 4 and frame.columns.is_unique
    assert sorted(frame.value_counts(["sampler", "cache"]).to_dict().items()) == [
        (("confidence", "none"), 8),
        (("prophet", "none"), 4),
        (("static", "dual"), 4),
    ]
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


@pytest.mark.program
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
    stamp(
        Path("runs/one"),
        versions={"dllm": "0.1.0"},
        commit=None,
        dirty=None,
        resumed=[{"versions": {"dllm": "0.2.0"}, "commit": None}],
    )
    with pytest.raises(UserError, match=r"2 versions of dllm: 0\.1\.0 \(runs/one\); 0\.2\.0 \(runs/one\)"):
        results_frame("runs/one")
    assert set(results_frame("runs/one", mixed=True)["version"]) == {"0.1.0 and 0.2.0"}


@pytest.mark.program
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
        assert "[frame]'" in refused("runs/one")
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
