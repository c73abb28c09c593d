"""docs/own_package.md: a sampler outside of the repository decodes, serves as an inner rule, and has its name."""

from __future__ import annotations

import doctest
import inspect
import os
import re
import shlex
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable
from dataclasses import fields
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import dllm
from dllm import Decoder, Trace, load, part, results_frame
from dllm.app.command_line import main as cli
from dllm.parts import Sampling, SamplingOptions
from tests.repo.test_docs import code

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "own_package.md"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's files, in a folder of their own."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "conf" / "sampler").mkdir(parents=True)
    (module,), (choice,) = code(PAGE, "python"), code(PAGE, "yaml")
    (folder / "my_samplers.py").write_text(module)
    (folder / "conf" / "sampler" / "mine.yaml").write_text(choice)
    return folder


def called(package: Path, line: str) -> subprocess.CompletedProcess[str]:
    program, script, *rest = shlex.split(line)
    words = [sys.executable, str(ROOT / script), *rest] if script == "run.py" else [sys.executable, script, *rest]
    place = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{package}", "OMP_NUM_THREADS": "1"}
    assert program == "python"
    return subprocess.run(words, cwd=package, env=place, capture_output=True, text=True, timeout=120)


@pytest.mark.program
def test_the_commands_of_the_page_run(package: Path) -> None:
    for line in code(PAGE, "text")[0].splitlines()[:3]:
        done = called(package, line)
        assert done.returncode == 0, (line, done.stderr)


@pytest.mark.skipif(
    "DLLM_LAWS" not in os.environ, reason="a sweep and its pictures take 15 s: DLLM_LAWS=all tries them"
)
def test_the_report_has_the_name(package: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install -e '.[report]'")
    for line in code(PAGE, "text")[0].splitlines()[3:]:
        done = called(package, line)
        assert done.returncode == 0, (line, done.stderr)
    assert "mine" in (package / "runs" / "mine" / "report" / "report.md").read_text()


PUBLIC: dict[str, Callable[..., Any]] = {
    "load": load,
    "part": part,
    "results_frame": results_frame,
    "Decoder": Decoder,
    "Decoder()": Decoder.__call__,
    "Decoder.stream": Decoder.stream,
    "Decoder.infill": Decoder.infill,
    "Decoder.decide": Decoder.decide,
    "Decoder.rescored": Decoder.rescored,
    "Trace.load": Trace.load,
}


def listed(text: str) -> set[str]:
    """The names of an ``Args:`` list."""
    lines = re.search(r"^Args:\n((?:    .*\n|\n)+)", text + "\n", re.MULTILINE)
    assert lines is not None, "no list of arguments"
    return {
        name for names in re.findall(r"^    (\w+(?:, \w+)*): \S", lines[1], re.MULTILINE) for name in names.split(", ")
    }


@pytest.mark.parametrize("name", PUBLIC)
def test_every_argument_is_explained(name: str) -> None:
    text = inspect.getdoc(PUBLIC[name]) or ""
    parameters = inspect.signature(PUBLIC[name]).parameters
    assert listed(text) == set(parameters) - {"self", "unknown"} - ({"options"} if name == "Decoder" else set())
    assert "\nRaises:\n    UserError: " in text and ("\nReturns:\n" in text or name == "Decoder")


def example(name: str, text: str) -> doctest.DocTest:
    found = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    assert found.examples and "+SKIP" not in text
    return found


@pytest.mark.parametrize("name", ["dllm", *sorted(PUBLIC.keys() - {"results_frame"})])
def test_its_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    text = inspect.getdoc(PUBLIC.get(name, dllm)) or ""
    doctest.DocTestRunner().run(example(name, text), out=said.append)
    assert said == []


@pytest.mark.program  # a sweep
def test_the_example_of_a_table_of_results_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed: pip install -e '.[frame]'")
    monkeypatch.chdir(tmp_path)
    settings = ["sampler=confidence", "cache=none,dual", "task=parallelbench", "task.tasks=[copy]", "task.count=1"]
    monkeypatch.setattr(sys, "argv", ["run.py", "-m", *settings, "name=grid"])
    cli.main()
    capsys.readouterr()
    text = inspect.getdoc(results_frame) or ""
    said: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example("results_frame", text), out=said.append)
    assert said == []


USE = """from dllm import Decoder, Result, Trace, load, part
from dllm.constraints import Choice

model = load("mini-llada")
decoder = Decoder(model, sampler=part("sampler", "confidence", threshold=0.8), gen_length=32, temperature=0.5)
results: list[Result] = decoder(["a"], constraints=[Choice(["yes"])])
request = decoder.infill(["a ", 3], prompt="b")
trace: Trace = results[0].traced()
"""
WRONG = """from dllm import Decoder, load

decoder = Decoder(load("mini-llada"), samplr="confidence")
decoder.infill("a ___ b", promt="c")
"""


def test_keywords_of_a_decoder_are_the_fields_of_sampling() -> None:
    assert get_type_hints(SamplingOptions) == get_type_hints(Sampling)
    assert [*SamplingOptions.__annotations__] == [entry.name for entry in fields(Sampling)]


def test_an_editable_install_is_a_path_and_no_hook() -> None:
    """Type checkers follow a path, and run no import hook. setuptools writes one where the layout is declared."""
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"] == {"": "."}


@pytest.mark.program
def test_a_users_file_is_checked_after_an_editable_install(tmp_path: Path) -> None:
    venv.create(tmp_path / "own", with_pip=True)
    python = str(tmp_path / "own" / "bin" / "python")
    build = f"setuptools=={distribution('setuptools').version}"
    for what in ([build], ["-e", str(ROOT), "--no-deps", "--no-build-isolation"]):
        subprocess.run([python, "-m", "pip", "install", "-q", *what], check=True, timeout=300)

    def checked(text: str) -> str:
        (tmp_path / "use.py").write_text(text)
        command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "use.py"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300).stdout

    assert "Success: no issues found" in checked(USE)
    found = checked(WRONG)
    assert "Unexpected keyword argument" in found and '"samplr"' in found and '"promt"' in found
