"""Flags, help, quoting, and the commands of the README."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from dllm.app.command_line.overrides import hydra_quote, hydra_quoted, setting_names
from dllm.compose.parts import composed, config_groups
from tests.app.command_line.conftest import Run
from tests.app.conftest import ROOT


def test_the_version_is_this_programs(run: Run) -> None:
    outcome = run("--version")
    assert outcome.code == 0 and outcome.out.startswith("dllm ") and "Hydra" not in outcome.out


def test_a_reader_that_leaves_ends_it_silently(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # as head does
    with os.fdopen(writer, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        outcome = run("--help")
    assert (outcome.code, outcome.err) == (141, "")


def test_a_checkpoint_is_checked_without_weights(run: Run, tiny: Path, tmp_path: Path, no_weights: None) -> None:
    outcome = run("task=check", f"model.path={tiny}")
    assert outcome.code == 0 and "ready" in outcome.out
    (tmp_path / "empty").mkdir()
    assert run("task=check", "model.path=empty").code != 0


def test_help_shows_examples_choices_and_settings(run: Run) -> None:
    outcome = run("--help", "-m", "sampler=static,eb")
    assert outcome.code == 0 and "Hydra" not in outcome.out
    for word in ("python run.py chat=true", "  sampler=\n", "gen_length=null", "* confidence", "task=replay"):
        assert word in outcome.out


TEXTS = ["a", "", "[b, a]", "it's", 'say "x"', "a\\", "\\'", "${x}", "\\${x", "a=b,c", "#(\n{"]


@pytest.mark.daily(6)
@pytest.mark.parametrize("text", TEXTS)
def test_a_prompt_reaches_the_program_as_it_was_typed(text: str) -> None:
    (argument,) = hydra_quoted([f"prompt={text}"])
    assert composed([argument]).prompt == text
    assert composed([f"prompt={hydra_quote(text)}"]).prompt == text


def test_only_texts_and_places_are_quoted() -> None:
    plain = ["prompt='a'", "prompt=null", "stop=[a,b]", "resume=runs/x", "sampler=static", "-m", "trace=true", "seed=1"]
    assert hydra_quoted(plain) == plain
    assert hydra_quoted(["resume=my runs/(1)", "stop=###"]) == ["resume='my runs/(1)'", "stop='###'"]


def readme_commands() -> list[str]:
    """Every command of the README that starts with python run.py."""
    text = (ROOT / "README.md").read_text()
    return re.findall(r"^ *python run\.py(.*)$", text, re.MULTILINE)


def test_the_commands_of_the_readme_name_things_that_exist() -> None:
    commands = readme_commands()
    assert len(commands) >= 5
    for command in commands:
        arguments = hydra_quoted([word for word in shlex.split(command, comments=True) if not word.startswith("-")])
        config = composed(arguments)
        assert all(name.split(".")[0] in [*config, *config_groups()] for name in setting_names(arguments))


def test_the_python_example_of_the_readme_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(example.strip().splitlines()) < 10
    if (ROOT / "dllm" / "models" / "checkpoints" / "mini-llada").is_dir():
        exec(compile(example, "README.md", "exec"), {})


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("output=~/out", "output={home}/out"), ("task.questions=~/q.json", "task.questions={home}/q.json"),
        ("model.adapter='~/a b'", "model.adapter='{home}/a b'"), ("+own.file=~", "+own.file={home}"),
        ("model.path=~/a,~/b", "model.path={home}/a,{home}/b"), ("--config-dir=~/conf", "--config-dir={home}/conf"),
        ("prompt=~/is a letter", "prompt='~/is a letter'"), ("output=a~b", "output='a~b'"), ("~task.x=1", "~task.x=1"),
    ],
)  # fmt: skip
def test_a_value_that_begins_with_a_tilde_is_in_the_home_folder(
    typed: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hydra_quoted([typed]) == [meant.format(home=tmp_path)]
