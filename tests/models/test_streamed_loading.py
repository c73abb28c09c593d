"""Loading part by part: the same weights, in little memory, and told as it goes."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from harness import DATA
from safetensors.torch import load_file
from torch import nn

from dllm import UserError, load
from dllm.models.weights import load_progress, tensor_reader, weights
from dllm.parts import (
    PROCESS,
    Footprint,
    Layer,
    LoadProgress,
    Source,
    TensorReader,
    Transformer,
    load_model,
    locate,
    quantize_part,
    read_contents,
    read_model_config,
    refuse_too_large,
)

MINI = locate("mini-llada")


def test_tensors_are_those_of_the_file_however_little_is_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = DATA / "models" / "llada2_moe"
    stored = read_contents(folder).tensors
    plain = load_file(folder / "model.safetensors")
    monkeypatch.setattr(tensor_reader, "MAPPED", 1000)
    with TensorReader(stored) as reader:
        for name, tensor in plain.items():
            assert torch.equal(reader.read(Source(name), tensor.dtype), tensor)
        name = next(name for name, tensor in plain.items() if tensor.ndim == 2 and len(tensor) > 8)
        found = reader.read(Source(name, (3, 8)), torch.bfloat16)
    assert torch.equal(found, plain[name][3:8].to(torch.bfloat16))


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_one_layer_at_a_time_is_plain(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a layer is quantised, those before it are, and those behind it are not read."""
    whole: list[nn.Module] = []
    built: Callable[..., Any] = weights.network_of

    def model_of(*given: Any) -> nn.Module:
        whole.append(built(*given))
        return whole[-1]

    seen = []

    def watched(part: nn.Module, *how: Any) -> None:
        if isinstance(part, Layer):
            layers = list(whole[0].layers)  # type: ignore[arg-type]
            at = next(number for number, layer in enumerate(layers) if layer is part)
            assert all(one.weight.is_meta for layer in layers[at + 1 :] for one in linears(layer))
            assert not any(linears(layer) for layer in layers[:at])
            seen.append(at)
        quantize_part(part, *how)

    monkeypatch.setattr(weights, "network_of", model_of)
    monkeypatch.setattr(weights, "quantize_part", watched)
    load_model(MINI, dtype=torch.bfloat16, quantize=kind)
    assert seen == list(range(4))


def linears(layer: nn.Module) -> list[nn.Linear]:
    return [one for one in layer.modules() if type(one) is nn.Linear]


def test_progress_is_told_from_nothing_to_all() -> None:
    told: list[LoadProgress] = []
    load_model(DATA / "models" / "llada2_moe", watch=told.append)
    total = sum(one.bytes for one in read_contents(DATA / "models" / "llada2_moe").tensors.values())
    assert told[0].count == 0 and told[-1].count == told[-1].total == total
    assert [one.count for one in told] == sorted(one.count for one in told)
    words = list(dict.fromkeys(one.part for one in told))
    assert words == [
        "beginning",
        "the embedding",
        "layer 1 of 3",
        "layer 2 of 3",
        "layer 3 of 3",
        "the last norm",
        "the head",
    ]


def test_a_log_has_lines_and_small_models_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load("mini-llada")
    assert "Loading" not in capsys.readouterr().err
    monkeypatch.setattr(load_progress, "WORTH_A_LINE", 1000)
    monkeypatch.setattr(load_progress, "LINE_SECONDS", 0.0)
    load("mini-llada")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Loading mini-llada: 0.0 of 0.0 GB, beginning" and lines[-1].endswith(", the head")
    assert any("layer 2 of 4, 0 s left" in line for line in lines)


def test_a_bar_leaves_a_terminal_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    with load_progress.load_progress("mini") as watch:
        watch(LoadProgress(1 << 30, 4 << 30, "layer 1 of 4"))
        shown = sys.stderr.getvalue()
    assert "Loading mini" in shown and not shown.endswith("\r")
    assert sys.stderr.getvalue().endswith(" \r")


@pytest.mark.parametrize(
    ("kind", "head"),
    [("float32", None), ("bfloat16", None), ("int8", None), ("int4", None), ("int8", "int4"), ("int4", "int8")],
)
def test_the_footprint_is_what_the_weights_take(kind: str, head: str | None) -> None:
    quantize = kind if kind.startswith("int") else None
    dtype = "bfloat16" if quantize else kind
    model = load("mini-llada", dtype=dtype, quantize=quantize, pack=False, quantize_head=head)
    held = [*model.transformer.parameters(), *model.transformer.buffers()]
    taken = sum(one.numel() * one.element_size() for one in {id(one): one for one in held}.values())
    assert Footprint.of(model.config, kind, head).weights - PROCESS == pytest.approx(taken, rel=0.03)


def test_a_model_too_large_for_the_memory_is_told_the_kind_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    config = read_model_config(MINI)
    room = Footprint.of(config, "int8").loading
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=room))
    with pytest.raises(UserError, match=r"takes 0\.4 GiB of memory in bfloat16 .* Set quantize=int8 dtype"):
        load("mini-llada", dtype="bfloat16")
    with torch.device("meta"):
        model = Transformer(config)
    refuse_too_large(model, "int8")
    room = Footprint.of(config, "int4", "int4").loading
    with pytest.raises(UserError, match=r"in int4 .* Set quantize=int4 dtype=bfloat16 quantize_head=int4\."):
        refuse_too_large(model, "int4")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    with pytest.raises(UserError, match=r"in int4 .* Take a machine with more\."):
        refuse_too_large(model, "int4")


def test_a_folder_that_is_read_in_pieces_decodes_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load_model(MINI).state_dict()
    monkeypatch.setattr(tensor_reader, "MAPPED", 4096)
    found = load_model(MINI).state_dict()
    assert expected.keys() == found.keys() and all(torch.equal(found[name], expected[name]) for name in expected)
