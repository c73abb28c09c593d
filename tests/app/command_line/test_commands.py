"""Short commands: what they stand for, their own help, and what is no model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dllm.app.command_line.commands import COMMANDS, with_command
from dllm.app.command_line.help import command_help
from dllm.errors import UserError
from tests.app.command_line.conftest import Run

CASES: list[tuple[list[str], list[str]]] = [
    (["run", "Sort: a, b"], ["prompt=Sort: a, b"]), (["run", "x = 3?", "seed=1"], ["prompt=x = 3?", "seed=1"]),
    (["run", "mini-dream", "hello", "sampler=eb"], ["model=mini-dream", "prompt=hello", "sampler=eb"]),
    (["run", "sampler=eb"], ["sampler=eb"]), (["run"], []), (["chat", "MINI-LLADA"], ["chat=true", "model=mini-llada"]),
    (["serve", "task.port=0"], ["task=serve", "task.port=0"]), (["serve"], ["task=serve"]),
    (["serve", "GSAI-ML/LLaDA-8B-Instruct"], ["task=serve", "model=llada-8b-instruct"]),
    (["serve", "--help"], ["task=serve", "--help"]), (["sampler=eb", "serve"], ["sampler=eb", "serve"]),
    (["check", "/no/such"], ["task=check", "model.path=/no/such"]),
    (["sweep", "sampler=eb,static", "task=gsm8k"], ["-m", "sampler=eb,static", "task=gsm8k"]),
    (["sweep", "--config-dir", "a", "sampler=b,c"], ["-m", "--config-dir", "a", "sampler=b,c"]),
    (["run", "-cd", "a", "a"], ["prompt=a", "-cd", "a"]), (["chat", "--config-dir=a"], ["chat=true", "--config-dir=a"]),
]  # fmt: skip


@pytest.mark.parametrize(("typed", "meant"), CASES, ids=str)
def test_a_command_stands_for_settings(typed: list[str], meant: list[str]) -> None:
    assert with_command(typed) == meant


def test_a_folder_is_a_model(tmp_path: Path) -> None:
    assert with_command(["serve", str(tmp_path)]) == ["task=serve", f"model.path={tmp_path}"]


@pytest.mark.parametrize(("typed", "words"), [
    (["serve", "mini-lada"], "Did you mean 'mini-llada'?"), (["chat", "why so?"], "dllm run 'why so?'"),
    (["run", "a", "b", "c"], 'write dllm run [MODEL] "PROMPT"'), (["sweep", "a"], "write dllm sweep NAME=VALUE,VALUE"),
], ids=str)  # fmt: skip
def test_what_is_no_model_has_a_way_out(typed: list[str], words: str) -> None:
    with pytest.raises(UserError) as refused:
        with_command(typed)
    assert words in str(refused.value)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "report"])
def test_help_of_a_command_is_short_and_its_own(name: str) -> None:
    lines = command_help(name, with_command([name]), 100).replace("-m", "").splitlines()
    assert lines[0].startswith(f"dllm {name} ") and len(lines) < 75 and max(map(len, lines)) <= 100
    assert all(any(example in line for line in lines) for example, _ in COMMANDS[name].examples)


def test_one_prompt_under_several_samplers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run("prompt=w1 w2", "sampler=static", "sampler.steps=4", "sampling.forbid_eos=true",
                  "compare=[confidence,static]")  # fmt: skip
    (own,), (other,) = outcome.rows(), outcome.rows("compare-confidence.jsonl")
    assert outcome.out == own["text"] + "\n" and own["nfe"] == 4
    assert other["prompt"] == own["prompt"] and "confidence" in outcome.err
    assert not (outcome.run / "compare-static.jsonl").exists(), "the chosen one is not decoded twice"
    assert "same as the last" in outcome.err and sys.argv
