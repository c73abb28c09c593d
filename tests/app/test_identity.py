"""What a run is: edit its settings or the code of its parts, and it is another one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dllm.record.code_hash import code_hash
from dllm.record.environment import checkout_state
from tests.app.conftest import Run, cells_of, rows_of

A = Path("runs/a")
OWN = ["sampler=static", "sampler._target_=own.Own", "+task.count=1"]
SAMPLER = '''"""A sampler of one's own."""

from dllm.samplers.static import Static
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


def test_an_edited_part_is_another_cell_of_a_sweep(run: Run, own: Folder) -> None:
    run("-m", "name=s", *OWN)
    own.write(own_helper=HELPER.replace("2", "4"))
    run("-m", "name=s", *OWN)
    first, second = cells_of(Path("runs/s")).values()
    assert first[0]["nfe"] != second[0]["nfe"]


def test_comments_docstrings_and_layout_are_no_code(run: Run, own: Folder) -> None:
    run("name=a", *OWN)
    own.write(own=SAMPLER.replace("several", "some").replace("\n\n\n", "\n\n# The class\n"), own_helper=f"\n\n{HELPER}")
    assert run("resume=runs/a", bare=True).code == 0
    own.write(own=EDITS["own"])
    assert "was run with another content of sampler's code" in run("resume=runs/a", bare=True).err


def test_the_code_is_that_of_the_classes_and_their_bases(own: Folder) -> None:
    names = ["dllm.samplers.static.Static", "dllm.samplers.order.Order", "own.Own"]
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
