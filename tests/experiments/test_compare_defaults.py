"""Defaults beside published settings: where the settings come from, and what the figures decide."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from dllm.compose.parts import configurations
from dllm.tasks.mini import tasks as mini
from experiments.compare import defaults as compare_defaults
from experiments.compare import published_settings
from experiments.compare.defaults import Row, Scores, beside, main
from experiments.compare.published_settings import differences

TASKS = len(mini.SHORT_ANSWERS)


def scores(right: list[float], doubt: str = "") -> Scores:
    return Scores("m", "sampler=x", 0, right, [4] * len(right), doubt)


def row(default: list[float], best: list[float], doubt: str = "") -> Row:
    return Row("sampler=x", scores(default, doubt), "sampler.y=1", scores(best))


def test_settings_are_read_from_the_published_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """klass: its file's numbers. dkv_dream: 256 steps of 256 tokens, 512 of 512, are 32 of 32; 128 and 256 are 16."""
    names, others = ["published/klass", "published/dkv_dream"], published_settings.choices
    monkeypatch.setattr(published_settings, "choices", lambda group: names if group == "experiment" else others(group))
    monkeypatch.setattr(published_settings, "ELSEWHERE", {"sampler=klass": ("sampler.threshold=0.7",)})
    found = published_settings.published_settings()
    assert found["sampler=klass"] == [
        "sampler.threshold=0.6 sampler.kl=0.015", "sampler.threshold=0.6", "sampler.threshold=0.7", "sampler.kl=0.001",
        "sampler.kl=0.005",
    ]  # fmt: skip
    assert found["cache=dkv"] == ["cache.refresh_interval=4 cache.shift_type=un"]
    assert found["sampler=dream"] == ["sampler.steps=32", "sampler.steps=16"]
    assert found["cache=none"] == []


def test_differences_are_words_of_the_command_line() -> None:
    usual: dict[str, Any] = {"text": None, "open": True, "steps": None, "inner": {"_target_": "a.B"}, "list": [1]}
    credit = configurations("sampler", "credit")["sampler"]
    chosen = {"text": "The answer is", "open": False, "steps": 64, "inner": credit, "list": [1, 2]}
    words = " ".join(differences("sampler", chosen, usual, 0.5))
    assert shlex.split(words) == [
        "sampler.text=The answer is", "sampler.open=false", "sampler.steps=32", "sampler/inner=credit",
        "sampler.list=[1,2]",
    ]  # fmt: skip
    assert [*differences("blocks", {"block_length": 64}, {"block_length": 32}, 1.0)] == []  # no answer is longer


def test_what_stands_beside_a_part() -> None:
    assert [beside(f"cache={name}") for name in ("dual", "elastic", "dkv_greedy")] == [
        "blocks.block_length=8", "", "sampler=order blocks.block_length=8",
    ]  # fmt: skip
    assert beside("sampler=eb") == beside("eos=none") == ""


@pytest.mark.parametrize(
    ("wrong", "doubt", "verdict"),
    [(0, "", "stays"), (-4, "", "stays"), (4, "", "**too far**"), (4, "mind", "warns"), (1, "", "stays")],
)
def test_a_default_that_is_too_far_behind_needs_a_warning(wrong: int, doubt: str, verdict: str) -> None:
    """wrong: of eight answers to each task, those that only the published setting gets right; < 0: only the default."""
    lost, won = (([0.0] * max(count, 0) + [1.0] * (8 - max(count, 0))) * TASKS for count in (wrong, -wrong))
    if wrong == 1:  # in one task alone: a point
        lost = [0.0] + [1.0] * (8 * TASKS - 1)
    assert row(lost, won, doubt).verdict() == verdict


def test_a_few_items_are_no_sure_loss() -> None:
    """Two answers of 26: eight points, but by chance now and then."""
    assert row([0.0, 1.0, 0.0, 1.0] + [1.0] * 22, [1.0] * 26).verdict() == "stays, not surely worse"


def test_a_line_by_hand() -> None:
    """One of 13 tasks of 2 items all wrong: 24 of 26 against 26, on average 1/13 less, which is 8 points."""
    found = row([0.0, 0.0] + [1.0] * 2 * (TASKS - 1), [1.0] * 2 * TASKS)
    cells = str(found).strip("| ").split(" | ")
    assert cells[:6] == ["sampler=x", "92 (76-98)", "4.0", "`sampler.y=1`", "100 (87-100)", "4.0"]
    assert cells[6].startswith("-8 (-") and cells[7] == "26"


def test_the_command_goes_on_from_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mini, "SHORT_ANSWERS", ("copy",))
    settings = {"sampler=dus": ["blocks.block_length=8", "sampler.base=1"]}  # base 1 is refused, and left out
    monkeypatch.setattr(compare_defaults, "published_settings", lambda: settings)
    kept = tmp_path / "kept.jsonl"
    words = ["mini-llada", "--parts", "sampler=dus", "--count", "1", "--again", "2", "--keep", str(kept)]
    main(words)
    first, decoded = capsys.readouterr().out, kept.read_text()
    assert "| sampler=dus | " in first and "`blocks.block_length=8`" in first
    assert decoded.count("\n") in (2, 4)
    monkeypatch.setattr(compare_defaults.Bench, "decoded", lambda *_: pytest.fail("it was decoded before"))
    monkeypatch.setattr(compare_defaults, "published_settings", lambda: {"sampler=dus": ["blocks.block_length=8"]})
    main(words)
    assert capsys.readouterr().out == first and kept.read_text() == decoded
