"""Shipped models: packed without loss, unpacked once, and never half."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dllm.errors import UserError
from dllm.models import shipped
from dllm.models.bundle import load, locate
from dllm.models.files import SINGLE
from dllm.models.shipped import CHECKPOINTS, PACKED, is_shipped, pack, plain_folder, shipped_models
from tests.models.model_folders import copy_of


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches"


def packed(tmp_path: Path) -> tuple[Path, bytes]:
    folder = copy_of("tiny-llada", tmp_path)
    weights = (folder / SINGLE).read_bytes()
    pack(folder)
    return folder, weights


def test_a_packed_folder_unpacks_once_to_the_same_bytes(tmp_path: Path, caches: Path) -> None:
    folder, weights = packed(tmp_path)
    assert sorted(file.name for file in folder.iterdir() if "safetensors" in file.name) == [PACKED]
    first = locate(folder)
    assert first.is_relative_to(caches) and first.name == folder.name
    assert {file.name: file.read_bytes() for file in first.iterdir()} == {SINGLE: weights} | {
        file.name: file.read_bytes() for file in folder.iterdir() if file.name != PACKED
    }
    made = (first / SINGLE).stat().st_mtime_ns
    assert locate(folder) == first and (first / SINGLE).stat().st_mtime_ns == made
    assert [place.name for place in first.parent.iterdir()] == [folder.name]  # no scratch is left


def test_an_edited_folder_is_another_one(tmp_path: Path, caches: Path) -> None:
    folder, _ = packed(tmp_path)
    before = locate(folder)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    after = locate(folder)
    assert after != before and (after / "chat_template.jinja").read_text() == "{{ messages[0].content }}"


def test_a_copy_that_a_cleaner_left_incomplete_is_made_again(tmp_path: Path, caches: Path) -> None:
    folder, weights = packed(tmp_path)
    (locate(folder) / SINGLE).unlink()
    assert (locate(folder) / SINGLE).read_bytes() == weights


def test_where_no_cache_can_be_written_a_temporary_folder_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, weights = packed(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # also for root, who may write everywhere
    assert (locate(folder) / SINGLE).read_bytes() == weights and locate(folder) == locate(folder)
    shutil.rmtree(locate(folder).parent)


@pytest.mark.parametrize("size", [0, 40, 100_000])
def test_a_cut_file_is_refused_and_leaves_nothing(tmp_path: Path, caches: Path, size: int) -> None:
    folder, _ = packed(tmp_path)
    (folder / PACKED).write_bytes((folder / PACKED).read_bytes()[:size])
    with pytest.raises(UserError, match=f"{PACKED} cannot be unpacked .* Fetch it again, whole"):
        locate(folder)
    assert not [file for file in caches.rglob("*") if file.is_file()]


def test_what_is_shipped_is_packed_and_known_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all((CHECKPOINTS / name / PACKED).is_file() for name in shipped_models())
    assert is_shipped(locate("mini-llada")) and is_shipped(plain_folder(CHECKPOINTS / "mini-llada"))
    assert is_shipped(CHECKPOINTS / "mini-llada") and not is_shipped(Path("/anywhere/mini-llada"))
    assert load("mini-llada").path == locate("mini-llada")
    monkeypatch.setattr(shipped, "CHECKPOINTS", Path("/nowhere"))
    assert shipped_models() == []
