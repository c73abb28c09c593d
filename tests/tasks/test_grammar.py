"""LanguageTool over HTTP and from a folder, with a stand-in that answers as it does."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dllm import UserError
from dllm.parts import JAR, GrammarChecker, ParallelBench, identity
from dllm.tasks.parallelbench import grammar
from tests.tasks import fake_language_tool as fake


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(grammar, "PAUSE", 0.0)
    server, url = fake.serve()
    yield url
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("ending", ["", "/", "/v2", "/v2/check"])
def test_a_server_judges(url: str, ending: str) -> None:
    judge = GrammarChecker(url + ending)
    assert judge("The dog sleeps.") == 1.0 and judge("  Teh dog met teh cat. ") == 0.0
    assert judge.version == "LanguageTool 6.6"


def test_no_text_is_no_grammatical_text(url: str) -> None:
    assert GrammarChecker(url)("") == 0.0 and GrammarChecker(url)(" \n\t") == 0.0


def test_odd_texts_are_judged_and_too_long_ones_are_not(url: str) -> None:
    judge = GrammarChecker(url)
    assert judge("\udc80 \x00 & a=b % \u202e") == 1.0 and judge("\ud83d teh") == 0.0
    assert judge("word " * fake.LIMIT) is None


def test_a_busy_server_is_asked_again(url: str) -> None:
    judge = GrammarChecker(url)
    fake.Handler.failures = 2
    assert judge("The dog sleeps.") == 1.0
    fake.Handler.failures = 3
    with pytest.raises(UserError, match="answered 503"):
        judge("The dog sleeps.")


def test_a_server_that_dies_stops_the_run_with_a_way_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "PAUSE", 0.0)
    server, url = fake.serve()
    judge = GrammarChecker(url)
    server.shutdown()
    server.server_close()
    with pytest.raises(UserError, match="finished samples are kept"):
        judge("The dog sleeps.")


def test_what_is_no_server_is_refused_before_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(grammar, "PAUSE", 0.0)
    with pytest.raises(UserError, match="does not answer"):
        GrammarChecker("http://127.0.0.1:9")
    with pytest.raises(UserError, match=f"holds no {JAR}"):
        GrammarChecker(str(tmp_path))
    (tmp_path / JAR).touch()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="needs Java"):
        GrammarChecker(str(tmp_path))


def test_another_web_server_is_no_language_tool(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake.Handler, "do_POST", lambda self: self._send(200, ["hello"]))
    with pytest.raises(UserError, match="is not a LanguageTool server"):
        GrammarChecker(url)


@pytest.mark.parametrize("setting", ["download", "folder"])
def test_a_server_is_not_started_without_the_library(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_with_java(tmp_path, "exit 3", monkeypatch)
    monkeypatch.setattr(grammar, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="needs language-tool-python, which is not installed"):
        GrammarChecker(setting if setting == "download" else str(folder))


def folder_with_java(tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A LanguageTool folder, and a ``java`` that runs ``script``."""
    (tmp_path / "bin").mkdir()
    (tmp_path / JAR).touch()
    java = tmp_path / "bin" / "java"
    java.write_text(f'#!/bin/sh\nif [ "$1" = -version ]; then echo \'openjdk version "17.0.1"\'; exit; fi\n{script}\n')
    java.chmod(0o755)
    monkeypatch.setenv("PATH", f"{java.parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_a_server_is_started_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with_java(tmp_path, f'exec {sys.executable} {fake.__file__} "$@"', monkeypatch)
    judge = GrammarChecker(str(folder))
    assert judge("The dog sleeps.") == 1.0 and judge("Teh teh dog.") == 0.0 and judge.version == "LanguageTool 6.6"


def test_a_server_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with_java(tmp_path, "exit 3", monkeypatch)
    with pytest.raises(UserError, match="starts no LanguageTool server .*exited early with code 3"):
        GrammarChecker(str(folder))("The dog sleeps.")


def test_the_benchmark_uses_its_judge_and_names_its_version(url: str) -> None:
    task = ParallelBench(tasks=["easy"], count=1, grammar=url)
    item = task.items()[0]
    words = item.truth["answer"]["words"]
    assert task.score(item, " ".join(words)) == {"score": 1.0, "inclusion_score": 1.0, "grammar_score": 1.0}
    assert task.score(item, "teh " + " ".join(words))["score"] == 0.0
    assert task.stamp()["grammar"] == "LanguageTool 6.6" and task.missing() == {}


def test_a_judge_of_nothing_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="judges none of the tasks chosen"):
        ParallelBench(tasks=["copy"], grammar=url)


def test_a_server_that_moves_belongs_to_the_same_run(url: str) -> None:
    config = {"task": {"suite": "r1", "grammar": url}}
    moved = {"task": {"suite": "r1", "grammar": "http://elsewhere:1"}}
    judged = ParallelBench(tasks=["easy"], count=1, grammar=url).stamp()
    assert identity(config, judged) == identity(moved, judged)
    assert identity(config, judged) != identity(config, ParallelBench(tasks=["easy"], count=1).stamp())
