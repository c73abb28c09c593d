"""Quantised folders: what memory would hold bit for bit, whole or none, and refused where they cannot be read."""

from __future__ import annotations

import errno
import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from model_folders import edit_config, wide_folder
from safetensors import safe_open
from torch import Tensor

from dllm import Decoder, UserError, load
from dllm.kernels import narrow_linear
from dllm.models.weights import narrow_writer
from dllm.parts import (
    Adapter,
    describe,
    fact_rows,
    inspect_checkpoint,
    locate,
    mapped,
    narrowed,
    packs_by_64,
    placed,
    quantize_folder,
    read_contents,
    stored,
    unwatched,
)
from tests.support.adapters import adapted
from tests.support.killing import killed_after

KINDS = ("int8", "int4")


def quantized(source: Path, target: Path, kind: str = "int4", adapter: Adapter | None = None) -> Path:
    quantize_folder(source, target, describe(source, 60).config, kind, adapter, unwatched)
    return target


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantized(locate("mini-llada"), tmp_path_factory.mktemp("quantized") / "mini")


def held(folder: str | Path, **options: Any) -> Mapping[str, Tensor]:
    return load(folder, dtype="bfloat16", mask_id=60, **options).transformer.state_dict()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["llada_mha_untied", "llada_gqa_tied", "llada2_moe", "wedlm_bias", "sdar_moe"])
def test_on_disk_is_in_memory_bit_for_bit(name: str, kind: str, tmp_path: Path) -> None:
    """Dense and routed, with biases and without, the head tied to the embedding and not."""
    source = wide_folder(name, tmp_path / "source")
    expected, found = held(source, quantize=kind), held(quantized(source, tmp_path / "target", kind))
    assert expected.keys() == found.keys() and any(one.dtype in (torch.int8, torch.uint8) for one in found.values())
    for key, tensor in expected.items():
        assert found[key].dtype == tensor.dtype and torch.equal(found[key], tensor), key


def test_it_decodes_the_same_and_says_its_kind(mini: Path) -> None:
    stored_one, made = load(mini, dtype="bfloat16"), load("mini-llada", dtype="bfloat16", quantize="int4")
    assert stored_one.quantize == "int4" and stored_one.ids == made.ids
    answers = [Decoder(model, gen_length=8, cache="dual")("Copy the list:\n[1, 2]")[0] for model in (stored_one, made)]
    assert (answers[0].tokens, answers[0].nfe) == (answers[1].tokens, answers[1].nfe)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_numbers_lie_in_the_file_at_multiples_of_64_bytes(mini: Path, tmp_path: Path, kind: str) -> None:
    """The operator for four bits has a layout of its own on processors without AVX-512, which is made at loading."""
    folder = mini if kind == "int4" else quantized(locate("mini-llada"), tmp_path / "eight", kind)
    for one in read_contents(folder).tensors.values():
        assert mapped(one).data_ptr() % 64 == 0
    if kind == "int4" and torch.backends.cpu.get_cpu_capability() != "AVX512":
        return
    narrow = load(folder, dtype="bfloat16").transformer.layers[0].mlp.down.narrow
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]
    spans = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    assert any(begin <= narrow.data_ptr() < end for begin, end in spans), "mapped, not copied"


def test_our_kernels_and_other_processors_read_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps and scales of the kernel's layout by another way; another operator's layout from the steps."""
    weight = torch.randn(176, 256, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    for bits in (8, 4):
        for found, expected in zip(placed(*stored(weight, bits), True), narrowed(weight, bits), strict=True):
            assert torch.equal(found, expected)
    assert packs_by_64() == torch.equal(placed(*stored(weight, 4), False)[0], stored(weight, 4)[0])
    monkeypatch.setattr(narrow_linear, "packs_by_64", lambda: False)
    operator = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
        narrow_linear.out_of_blocks(stored(weight, 4)[0]).int() + 8, 1
    )
    assert torch.equal(placed(*stored(weight, 4), False)[0], operator)


def test_an_adapter_is_merged_before_it_is_rounded(tmp_path: Path) -> None:
    source = wide_folder("llada_mha_untied", tmp_path / "source")
    pytest.importorskip("peft")
    lora = tmp_path / "lora"
    adapted(source, lora)
    expected = held(source, quantize="int8", adapter=lora)
    found = held(quantized(source, tmp_path / "target", "int8", Adapter.read(lora)))
    assert all(torch.equal(expected[key], found[key]) for key in expected)


@pytest.mark.parametrize("at", [1, 3, 7])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")], ids=repr)
def test_what_was_stopped_is_no_checkpoint_and_goes_on(
    at: int, error: BaseException, mini: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped while the file of a part is written; the parts before it are not made again."""
    source, target, calls = locate("mini-llada"), tmp_path / "target", []
    tensor_bytes = narrow_writer._bytes_of

    def stopping(tensor: Tensor) -> memoryview:
        if len(list(target.glob("*.safetensors"))) == at - 1:
            raise error
        return tensor_bytes(tensor)

    with monkeypatch.context() as patch:
        patch.setattr(narrow_writer, "_bytes_of", stopping)
        with pytest.raises(type(error)):
            quantized(source, target)
    assert {file.name for file in target.iterdir()} == {
        "quantizing.json",
        *(f"model-{number:05}-of-00007.safetensors" for number in range(1, at)),
    }
    with pytest.raises(UserError, match="has not ended. Run the same task=quantize command again"):
        load(target, dtype="bfloat16")
    with pytest.raises(UserError, match="holds a conversion of another checkpoint or kind"):
        quantized(source, target, "int8")
    write = narrow_writer.write_tensors
    monkeypatch.setattr(narrow_writer, "write_tensors", lambda file, part: (calls.append(file), write(file, part))[1])
    quantized(source, target)
    assert len(calls) == 7 - (at - 1)
    assert contents(target) == contents(mini)


def slowly(target: Path) -> None:
    """A conversion that rests in the middle of each file."""
    tensor_bytes = narrow_writer._bytes_of
    narrow_writer._bytes_of = lambda tensor: (time.sleep(0.02), tensor_bytes(tensor))[1]
    quantized(locate("mini-llada"), target)


def test_killed_it_goes_on(mini: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    for seconds in (0.15, 0.35):
        killed_after(seconds, slowly, target)
        assert not (target / "config.json").exists()
    quantized(locate("mini-llada"), target)
    assert contents(target) == contents(mini)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_disk_with_too_little_room_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(0, 0, 1000))  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"are to be written, and the disk has 0\.0 GiB free"):
        quantized(locate("mini-llada"), tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty. Name another folder"):
        quantized(locate("mini-llada"), tmp_path)


def copied(mini: Path, target: Path) -> Path:
    shutil.copytree(mini, target)
    return target


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"version": 3, "kind": "int4"}, r"version=3, and this dllm reads versions 1 and 2\. Quantise"),
        ({"version": 1, "kind": "int3"}, r"kind='int3', which must be one of int8, int4\."),
        (7, "version=null"),
        ({"version": 1, "kind": "int4", "head": "int8"}, r"head='int8', which version 1 does not have\. Quantise"),
        ({"version": True, "kind": "int4"}, "version=true"),
        ({"version": 1, "kind": "int4", "x": 1}, "x=1, which version"),
        ({"version": 1, "kind": "int8"}, r"model-00002-of-00007|tensor layers\.0\.attn\.qkv\.narrow is U8 .* I8"),
    ],
)
def test_a_folder_of_another_version_or_kind_is_refused(value: Any, sentence: str, mini: Path, tmp_path: Path) -> None:
    folder = copied(mini, tmp_path / "copy")
    edit_config(folder, dllm_quantization=value)
    with pytest.raises(UserError, match=sentence):
        load(folder, dtype="bfloat16")
    assert not inspect_checkpoint(folder).usable


def test_what_it_cannot_become_is_told(mini: Path, tmp_path: Path) -> None:
    for options, sentence in (
        ({"quantize": "int8"}, r"quantize=int8: the weights of this folder are int4 already\. Set quantize=None"),
        ({"dtype": "float32"}, r"are int4 already, and multiply rows of bfloat16\. Set dtype=bfloat16"),
        ({"adapter": tmp_path}, r"Run task=quantize with the adapter"),
        ({"kernels": "invariant"}, "invariant"),
    ):
        with pytest.raises(UserError, match=sentence):
            load(mini, **{"dtype": "bfloat16", **options})
    assert load(mini, dtype="bfloat16", quantize="int4").quantize == "int4"


def test_check_compares_the_checksums(mini: Path, tmp_path: Path) -> None:
    report = inspect_checkpoint(mini)
    rows = dict(fact_rows(report))
    assert report.usable and rows["stored"].startswith("int4 of task=quantize, 7 files") and "memory int4" in rows
    assert "memory bfloat16" not in rows and report.parameters == inspect_checkpoint("mini-llada").parameters
    folder = copied(mini, tmp_path / "copy")
    file = folder / "model-00003-of-00007.safetensors"
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    assert inspect_checkpoint(folder).problems == (
        "model-00003-of-00007.safetensors is not what was written: its SHA-256 is another.",
    )
    file.write_bytes(data[:-64])
    assert not inspect_checkpoint(folder).usable
    with pytest.raises(UserError, match="model-00003-of-00007.safetensors is not a readable safetensors file"):
        load(folder, dtype="bfloat16")


def test_any_reader_of_safetensors_reads_its_files(mini: Path) -> None:
    index = json.loads((mini / "model.safetensors.index.json").read_text())
    for name, file in index["weight_map"].items():
        with safe_open(mini / file, "pt") as shard:
            assert torch.equal(shard.get_tensor(name), mapped(read_contents(mini).tensors[name]))
