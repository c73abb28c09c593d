"""Whole decodes as processes: forwards are those of the rule, and a program that fails is a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from dllm import UserError
from experiments.bench import llama_cpp, whole_decodes
from experiments.bench.whole_decodes import main, spent


def test_a_checkpoint_and_a_program_are_measured_side_by_side(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "diffusion"
    program.write_text("#!/bin/sh\ntest -e $2 && echo $@ >> " + str(tmp_path / "asked") + "\n")
    program.chmod(0o755)
    monkeypatch.setattr(llama_cpp, "write", lambda file, kind, layers, spelt: file.write_text(kind))
    monkeypatch.setattr(whole_decodes, "PROMPT", 8)
    monkeypatch.setattr(whole_decodes, "FIRST", 3)  # the small checkpoint has 64 ids
    words = [str(tiny), "--weights", "bfloat16", "--tokens", "32", "--per-step", "3"]
    assert main([*words, "--llama-diffusion", str(program)]) == 0
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [line[:4] for line in lines[2:]] == [["| bfloat16", "32", "3", "11"], ["| llama.cpp Q4_0", "32", "3", "11"]]
    assert float(lines[2][5]) > 0
    said = (tmp_path / "asked").read_text()
    assert "-ub 40 --diffusion-steps 11" in said and "-p aaaaaaaa " in said


def test_a_program_that_fails_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not run .*Name a program that was built"):
        spent([str(tmp_path / "none")])
    program = tmp_path / "fails"
    program.write_text("#!/bin/sh\necho no such file >&2\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(UserError, match="ended with 3: .*no such file"):
        spent([str(program)])
