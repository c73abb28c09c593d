"""What a user's type checker sees after ``pip install -e .``, README's way."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
from dataclasses import fields
from importlib.metadata import distribution
from pathlib import Path
from typing import get_type_hints

import pytest

from dllm.contract.setting import Sampling, SamplingOptions

ROOT = Path(__file__).parents[2]
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
