"""docs/own_package.md: a sampler outside of the repository decodes, serves as an inner rule, and has its name."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo.test_docs import code

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "own_package.md"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's files, in a folder of their own."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "conf" / "sampler" / "inner").mkdir(parents=True)
    (module,), (choice, inner) = code(PAGE, "python"), code(PAGE, "yaml")
    (folder / "my_samplers.py").write_text(module)
    (folder / "conf" / "sampler" / "mine.yaml").write_text(choice)
    (folder / "conf" / "sampler" / "inner" / "mine.yaml").write_text(inner)
    return folder


def called(package: Path, line: str) -> subprocess.CompletedProcess[str]:
    program, script, *rest = shlex.split(line)
    words = [sys.executable, str(ROOT / script), *rest] if script == "run.py" else [sys.executable, script, *rest]
    place = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{package}", "OMP_NUM_THREADS": "1"}
    assert program == "python"
    return subprocess.run(words, cwd=package, env=place, capture_output=True, text=True, timeout=120)


@pytest.mark.program
def test_the_commands_of_the_page_run(package: Path) -> None:
    for line in code(PAGE, "text")[0].splitlines()[:2]:
        done = called(package, line)
        assert done.returncode == 0, (line, done.stderr)


@pytest.mark.skipif(
    "DLLM_LAWS" not in os.environ, reason="a sweep and its pictures take 15 s: DLLM_LAWS=all tries them"
)
def test_the_report_has_the_name(package: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'dllm[report]'")
    for line in code(PAGE, "text")[0].splitlines()[2:]:
        done = called(package, line)
        assert done.returncode == 0, (line, done.stderr)
    assert "mine" in (package / "runs" / "mine" / "report" / "report.md").read_text()


@pytest.mark.parametrize(("words", "said"), [
    ("sampler=mine sampler.lwo=1", "sampler.lwo=1 is unknown."), ("sampler=mien", "Did you mean 'mine'?"),
    ("sampler=credit sampler/inner=yours", "lacks the file conf/sampler/inner/yours.yaml. Write it,"),
], ids=str)  # fmt: skip
def test_a_refusal_knows_the_users_own_choices(package: Path, words: str, said: str) -> None:
    (package / "conf" / "sampler" / "yours.yaml").write_text("_target_: my_samplers.Mine\n")
    done = called(package, f"python run.py --config-dir conf {words}")
    assert done.returncode == 2 and said in done.stderr, done.stderr
