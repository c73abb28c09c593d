"""Packed files of random codes: each kind loads the numbers that its codes and scales mean, and the table has it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dllm.parts import load_model
from experiments.bench import llama_cpp, packed_files, random_checkpoint
from experiments.bench.packed_files import KINDS, main, write

SMALL = {
    "d_model": 128,
    "n_heads": 2,
    "n_kv_heads": 2,
    "mlp_hidden_size": 256,
    "vocab_size": 320,
    "embedding_size": 320,
    "mask_token_id": 310,
    "eos_token_id": 311,
    "pad_token_id": 311,
}
STEM = "model.transformer.blocks.0.attn_out"
Parts = dict[str, Tensor]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = {**random_checkpoint.SHAPES["llada-8b"], **SMALL}
    monkeypatch.setitem(random_checkpoint.SHAPES, "llada-8b", shape)


def nibbles(data: Tensor) -> Tensor:
    """Codes of four bits, the low half of a byte first."""
    raw = data.contiguous().view(torch.uint8)
    return torch.stack([raw & 15, raw >> 4], -1).flatten(1).float()


def spread(scales: Tensor, width: int) -> Tensor:
    """A number of each column from one of each group."""
    return scales.float().repeat_interleave(width // scales.shape[1], 1)


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def nf4(parts: Parts) -> Tensor:
    """Doubly quantised: the high half of a byte first."""
    raw = parts[".weight"].flatten()
    codes = torch.stack([raw >> 4, raw & 15], -1).flatten().long()
    absmax = parts[".weight.nested_quant_map"][parts[".weight.absmax"].long()]
    absmax = absmax * parts[".weight.nested_absmax"].repeat_interleave(256)[: len(absmax)] + 0.1
    return (parts[".weight.quant_map"][codes] * absmax.repeat_interleave(64)).view(128, 128)


MEANT: dict[str, Callable[[Parts], Tensor]] = {
    "MLX, 4 bits in groups of 64": lambda one: (
        nibbles(one[".weight"]) * spread(one[".scales"], 128) + spread(one[".biases"], 128)
    ),
    "compressed-tensors FP8": lambda one: one[".weight"].float() * one[".weight_scale"].float(),
    "compressed-tensors INT8": lambda one: one[".weight"].float() * one[".weight_scale"].float(),
    "compressed-tensors W4A16": lambda one: (nibbles(one[".weight_packed"]) - 8) * spread(one[".weight_scale"], 128),
    "compressed-tensors NVFP4": lambda one: (
        E2M1[nibbles(one[".weight_packed"]).long()] * (spread(one[".weight_scale"], 128) / one[".weight_global_scale"])
    ),
    "bitsandbytes NF4, twice": nf4,
    "bitsandbytes int8": lambda one: one[".weight"].float() * one[".SCB"][:, None] / 127,
}


def test_each_kind_is_meant_by_a_formula() -> None:
    assert MEANT.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_loads_as_its_codes_and_scales_mean(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    assert write(kind, tmp_path, 1) == tmp_path
    held = load_file(tmp_path / "model.safetensors")
    expected = MEANT[kind]({name.removeprefix(STEM): one for name, one in held.items() if name.startswith(STEM)})
    found = load_model(tmp_path, dtype=torch.bfloat16, fuse=False).layers[0].attn.o.weight
    torch.testing.assert_close(found.float(), expected, rtol=2**-8, atol=1e-9)
    assert expected.std() > 0


@pytest.mark.program  # two processes
def test_the_table_has_a_row_of_each_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = "compressed-tensors INT8"
    monkeypatch.setattr(packed_files, "KINDS", {kind: KINDS[kind]})
    monkeypatch.setattr(llama_cpp, "KINDS", ("BF16", "Q4_0"))
    assert main([str(tmp_path), "--layers", "1"]) == 0
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [line[0] for line in lines] == [kind, "GGUF Q4_0"] and not list(tmp_path.iterdir())
    assert all(0 <= float(line[2]) < 60 and float(line[3]) > 0.1 for line in lines)
