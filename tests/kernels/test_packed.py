"""Packed linear layers give what the plain ones give, and loading a model for the CPU packs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dllm import load
from dllm.parts import PackedLinear, can_pack, measured_packing, pack_weights, padded_rows

pytestmark = pytest.mark.skipif(
    not can_pack(torch.device("cpu"), torch.float32), reason="this PyTorch has no oneDNN operators to pack with"
)


@pytest.mark.parametrize("rows", [0, 1, 3, 17, 32, 77])
@pytest.mark.parametrize(("inner", "outer"), [(24, 40), (37, 101), (128, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_is_the_layer(rows: int, inner: int, outer: int, bias: bool) -> None:
    torch.manual_seed(rows + inner)
    linear, x = nn.Linear(inner, outer, bias=bias), torch.randn(2, rows, inner)
    packed = PackedLinear(linear)(x)
    assert packed.shape == (2, rows, outer)
    torch.testing.assert_close(packed, F.linear(x, linear.weight, linear.bias), atol=2e-5, rtol=1e-5)


def test_few_numbers_of_rows_reach_the_library() -> None:
    assert [padded_rows(rows) for rows in (0, 1, 15, 16, 17, 33, 64, 130, 257)] == [0, 1, 15, 16, 18, 36, 64, 144, 288]
    found = {padded_rows(rows) for rows in range(1, 1025)}
    assert len(found) == 15 + 6 * 8 + 1
    assert all(rows <= padded_rows(rows) <= rows * 9 / 8 for rows in range(1, 1025))
    assert all(padded_rows(length * rows) == length * rows for length in (8, 16, 32) for rows in range(1, 9))


def test_packing_drops_the_plain_weights_and_keeps_special_layers() -> None:
    class Special(nn.Linear):
        pass

    model = nn.ModuleDict({"plain": nn.Linear(800, 800, bias=False), "special": Special(8, 8)})
    pack_weights(model)
    assert isinstance(model["plain"], PackedLinear) and isinstance(model["special"], Special)
    assert [name for name, _ in model.named_parameters()] == ["special.weight", "special.bias"]


@pytest.mark.parametrize(("least", "packed"), [(500_000, ["large"]), (0, ["small", "large"])])
def test_small_matrices_are_packed_where_it_pays(
    least: int, packed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers are the same either way."""
    (tmp_path / "note").write_text(json.dumps({"values": {"packed from": {"value": least}}}))
    monkeypatch.setenv("DLLM_MACHINE_NOTE", str(tmp_path / "note"))
    model = nn.ModuleDict({"small": nn.Linear(128, 384), "large": nn.Linear(512, 1024)})
    x = {name: torch.randn(3, one.in_features) for name, one in model.items()}
    before = {name: one(x[name]) for name, one in model.items()}
    pack_weights(model)
    assert [name for name, one in model.items() if isinstance(one, PackedLinear)] == packed
    for name, one in model.items():
        torch.testing.assert_close(one(x[name]), before[name])


@pytest.mark.parametrize(("gain", "least"), [(0, 0), (200_000, 2 * 384 * 128)])
def test_the_least_size_is_above_the_largest_that_is_faster_unpacked(
    gain: int, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock by which packing costs ``gain``, and half of what the weights cost unpacked."""
    clock, plain, packed = [0.0], nn.Linear.forward, PackedLinear.forward

    def timed(forward: Any, cost: Any) -> Any:
        def act(self: Any, x: Tensor) -> Any:
            clock[0] += cost(self.in_features * self.out_features)
            return forward(self, x)

        return act

    monkeypatch.setattr(nn.Linear, "forward", timed(plain, lambda weights: 4 * weights))
    monkeypatch.setattr(PackedLinear, "forward", timed(packed, lambda weights: gain + 2 * weights))
    monkeypatch.setattr("dllm.common.machine_note.time.process_time", lambda: clock[0])
    assert measured_packing() == least


def test_two_dtypes_on_the_cpu_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 where the processor multiplies it; others would be widened in every call."""
    assert not can_pack(torch.device("cpu"), torch.float64)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    assert not can_pack(torch.device("cpu"), torch.bfloat16)
    assert not can_pack(torch.device("meta"), torch.float32)


def test_a_loaded_model_is_packed_and_gives_the_same_hidden_rows() -> None:
    packed, plain = load("mini-llada"), load("mini-llada", dtype="float64")
    assert isinstance(packed.transformer.lm_head, PackedLinear) and isinstance(plain.transformer.lm_head, nn.Linear)
    tokens = torch.arange(40).view(2, 20) % packed.config.vocab
    with torch.inference_mode():
        ours, theirs = (model.transformer.head(model.transformer.encode(tokens)) for model in (packed, plain))
    torch.testing.assert_close(ours.double(), theirs, atol=2e-4, rtol=1e-4)
