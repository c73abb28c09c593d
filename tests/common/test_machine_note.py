"""What was measured is kept with the processor, and measured again where the note does not hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dllm import UserError
from dllm.common import machine_note
from dllm.common.machine_note import note, noted


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, on a machine without other programs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("DLLM_MACHINE_NOTE")
    monkeypatch.setattr(machine_note, "is_busy", lambda: False)
    return tmp_path


def counter() -> Callable[[], int]:
    """A measurement whose value is how often it ran."""
    times = list[None]()
    return lambda: times.append(None) or len(times)


def test_a_value_is_measured_once(folder: Path) -> None:
    measure = counter()
    assert [noted("a", measure), noted("a", measure), noted("b", lambda: [7]), noted("a", measure)] == [1, 1, [7], 1]
    (file,) = folder.rglob("*.*")
    assert {name: entry["value"] for name, entry in json.loads(file.read_text())["values"].items()} == {
        "a": 1,
        "b": [7],
    }


@pytest.mark.parametrize("text", ["{", "[]", '{"processor": 1, "values": {}}', '{"values": {"a": {"value": 5}}}', "5"])
def test_a_broken_note_is_made_anew(folder: Path, text: str) -> None:
    measure = counter()
    noted("a", measure)
    note().write_text(text)
    assert [noted("a", measure), noted("a", measure)] == [2, 2]


@pytest.mark.parametrize("changed", ["processor", "torch", "threads"])
def test_a_note_of_another_machine_is_made_anew(folder: Path, changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it has the name of ours."""
    measure, here = counter(), note()
    noted("a", measure)
    monkeypatch.setattr(machine_note, "note", lambda: here)
    there = machine_note.machine_fingerprint() | {changed: "another"}
    monkeypatch.setattr(machine_note, "machine_fingerprint", lambda: there)
    assert [noted("a", measure), noted("a", measure)] == [2, 2]


def test_processors_have_notes_of_their_own(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure, first = counter(), note()
    noted("a", measure)
    (tmp_path / "cpuinfo").write_text("model name\t: Another\nflags\t\t: avx2\n")
    monkeypatch.setattr(machine_note, "CPU_INFO", tmp_path / "cpuinfo")
    assert note() != first and noted("a", measure) == 2
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("DLLM_MACHINE_NOTE")
    assert noted("a", measure) == 1


def test_a_value_that_was_taken_under_load_is_taken_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = counter()
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.delenv("DLLM_MACHINE_NOTE")
    monkeypatch.setattr(machine_note.os, "cpu_count", lambda: 2)
    for load, times in ((9.0, 1), (9.0, 1), (0.4, 2), (0.4, 2), (9.0, 2)):
        monkeypatch.setattr(machine_note.os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert noted("a", measure) == times, load


@pytest.mark.parametrize("place", ["missing", "a file", "read-only"])
def test_without_a_folder_values_are_measured_each_time(
    folder: Path, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, measure = tmp_path / "home", counter()
    if place == "a file":
        home.write_text("")
    elif place == "read-only":
        home.mkdir(mode=0o500)
        monkeypatch.setattr(machine_note.Path, "mkdir", refusing)  # root may write anyway
    else:
        monkeypatch.setattr(machine_note.Path, "write_text", refusing)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    assert [noted("a", measure), noted("a", measure)] == [1, 2]


def refusing(*_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied")


def test_a_measurement_draws_none_of_the_user_s_numbers(folder: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    noted("a", lambda: torch.rand(9).sum().item())
    assert torch.equal(torch.rand(3), expected)


def test_a_file_of_the_user_s_holds_instead(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, measure = tmp_path / "fixed", counter()
    file.write_text(json.dumps({"values": {"a": {"value": 12}}}))
    monkeypatch.setenv("DLLM_MACHINE_NOTE", str(file))
    assert [noted("a", measure), noted("b", measure)] == [12, 1] and "b" not in file.read_text()
    for text in ("{", "[]", '{"values": {"a": 3}}'):
        file.write_text(text)
        with pytest.raises(UserError, match=r"fixed is no note of a machine \(.*Give a file of .*or unset it"):
            noted("a", measure)
    file.unlink()
    with pytest.raises(UserError, match="is no note of a machine"):
        noted("a", measure)
