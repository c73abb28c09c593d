"""What identifies a checkpoint: all of it, read once."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dllm.models import fingerprint as checkpoint
from dllm.parts import fingerprint

MIB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two shards of 3 MiB, which count as large, a day old; hashes are remembered in ``tmp_path``."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(checkpoint, "LARGE_BYTES", MIB)
    there = tmp_path / "model"
    there.mkdir()
    (there / "config.json").write_text("{}")
    for number in (1, 2):
        shard = there / f"model-{number}.safetensors"
        shard.write_bytes(bytes([number]) * 3 * MIB)
        aged(shard)
    return there


def aged(file: Path) -> None:
    os.utime(file, ns=(0, time.time_ns() - 86_400 * 10**9))


def edit(file: Path, at: int) -> None:
    with file.open("r+b") as stream:
        stream.seek(at)
        stream.write(b"!")


@pytest.mark.parametrize("at", [0, 3 * MIB // 2, 3 * MIB - 1], ids=["begin", "middle", "end"])
def test_a_changed_byte_anywhere_is_another_checkpoint(folder: Path, at: int) -> None:
    before = fingerprint(folder)
    shard = folder / "model-2.safetensors"
    times = shard.stat().st_mtime_ns
    edit(shard, at)
    os.utime(shard, ns=(times, times))  # the time of its content put back: that of its last change cannot be
    assert fingerprint(folder) != before
    shard.write_bytes(bytes([2]) * 3 * MIB)
    assert fingerprint(folder) == before


def test_what_is_no_part_of_the_model_does_not_count(folder: Path) -> None:
    before = fingerprint(folder)
    (folder / "notes.md").write_text("no part of the model")
    assert fingerprint(folder) == before
    (folder / "model-1.safetensors").rename(folder / "model-3.safetensors")
    assert fingerprint(folder) != before


def test_a_large_file_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    read = checkpoint.sha256_of
    monkeypatch.setattr(checkpoint, "sha256_of", lambda file: reads.append(file.name) or read(file))
    assert fingerprint(folder) == fingerprint(folder)
    assert sorted(reads) == ["config.json"] * 2 + ["model-1.safetensors", "model-2.safetensors"]


def test_a_file_that_may_still_change_within_its_clock_is_not_remembered(folder: Path) -> None:
    """A second edit within the clock's resolution would leave no trace in the file's times."""
    (folder / "model-1.safetensors").touch()
    fingerprint(folder)
    assert len(list((folder.parent / "cache" / "dllm" / "sha256").iterdir())) == 1


def test_a_home_that_cannot_be_written_costs_time_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "config.json"))
    assert fingerprint(folder) == before


def test_only_the_hubs_own_cache_vouches_for_its_folders(folder: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    for name, hub, trusted in (("step-1000", False, False), (commit, False, False), (commit, True, True)):
        home = folder.parent / f"{name}-{hub}"
        place = home / "snapshots" / name
        place.mkdir(parents=True)
        (place / "model.safetensors").write_bytes(b"a" * 10)
        if hub:
            (home / "blobs").mkdir()
        before = fingerprint(place)
        edit(place / "model.safetensors", 5)
        assert (fingerprint(place) == before == commit) is trusted
