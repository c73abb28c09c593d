"""Shipped models are stored compressed, some as differences to another one, and unpack to the same bytes."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dllm import UserError, load
from dllm.models.weights import shipped
from dllm.parts import CHECKPOINTS, PACKED, SINGLE, is_shipped, locate, plain_folder, shipped_models
from experiments.mini.ship import pack
from tests.models.model_folders import copy_of


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches"


def packed(tmp_path: Path) -> tuple[Path, bytes]:
    folder = copy_of("llada_gqa_tied", tmp_path)
    weights = (folder / SINGLE).read_bytes()
    pack(folder)
    return folder, weights


def test_a_packed_folder_unpacks_once_to_the_same_bytes(tmp_path: Path, caches: Path) -> None:
    folder, weights = packed(tmp_path)
    assert sorted(file.name for file in folder.iterdir() if file.name.startswith("model")) == [PACKED]
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


def test_a_model_is_packed_as_differences_to_its_base(
    tmp_path: Path, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "CHECKPOINTS", tmp_path)
    draw = torch.Generator().manual_seed(0)
    embed, own = (torch.randn(61, 40, generator=draw).bfloat16() for _ in range(2))
    near = (embed.float() + 0.01 * torch.randn(61, 40, generator=draw)).bfloat16()
    models = {"first": {"embed": embed}, "second": {"table": near, "own": -own, "bias": own[0]}}
    for name, tensors in models.items():
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / SINGLE, metadata={"format": "pt"})
        (tmp_path / name / "config.json").write_text("{}")
    plain = {name: (tmp_path / name / SINGLE).read_bytes() for name in models}
    pack(tmp_path / "first")
    pack(tmp_path / "second", base="first")
    assert {name: (plain_folder(tmp_path / name) / SINGLE).read_bytes() for name in models} == plain
    alone = (tmp_path / "second" / PACKED).stat().st_size
    (tmp_path / "second" / SINGLE).write_bytes(plain["second"])
    pack(tmp_path / "second")
    assert alone < 0.85 * (tmp_path / "second" / PACKED).stat().st_size


WEIGHTS = {
    "mini-ar": "ad99d3086497fe72",
    "mini-dream": "d94562a6c0d7c3c1",
    "mini-llada": "cbd2544a085344dd",
    "mini-llada-distilled": "cc10d1520f900ab6",
    "mini-nbdiff": "13b9d9f60ce9cb91",
    "mini-wedlm": "e605746b55a897c4",
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_shipped_weights_are_those_that_their_cards_measured(name: str) -> None:
    assert hashlib.sha256((locate(name) / SINGLE).read_bytes()).hexdigest()[:16] == WEIGHTS[name]


def test_what_is_shipped_is_packed_and_known_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all((CHECKPOINTS / name / PACKED).is_file() for name in shipped_models())
    assert is_shipped(locate("mini-llada")) and is_shipped(plain_folder(CHECKPOINTS / "mini-llada"))
    assert is_shipped(CHECKPOINTS / "mini-llada") and not is_shipped(Path("/anywhere/mini-llada"))
    assert load("mini-llada").path == locate("mini-llada")
    monkeypatch.setattr(shipped, "CHECKPOINTS", Path("/nowhere"))
    assert shipped_models() == []
