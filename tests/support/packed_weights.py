"""Packers of weights in few bits, written number by number from what their formats say, and their folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

Numbers = NDArray[Any]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of AutoAWQ's "gemm" layout: what the lowest bits of a word hold, and so on


class Packed(NamedTuple):
    """A layer's tensors by their last names, and the weights [N, D] that they stand for."""

    tensors: dict[str, Tensor]  # qweight, qzeros, scales, perhaps g_idx
    weight: Tensor  # in float32


def words(numbers: Numbers, bits: int, axis: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Words of 32 bits along ``axis``, each number placed by a loop."""
    many, moved = 32 // bits, np.moveaxis(numbers.astype(np.uint64), axis, -1)
    out = np.zeros((*moved.shape[:-1], moved.shape[-1] // many), np.uint64)
    for word in range(out.shape[-1]):
        for place in range(many):
            number = place if order is None else order[place]
            out[..., word] |= moved[..., word * many + number] << np.uint64(bits * place)
    return torch.from_numpy(np.moveaxis(out, -1, axis).astype(np.uint32).view(np.int32).copy())


def packed(
    weight: Tensor,
    method: str = "gptq",
    bits: int = 4,
    group: int = 32,
    symmetric: bool = False,
    ordered: bool = False,
    first_format: bool = True,
    seed: int = 0,
) -> Packed:
    """A matrix rounded and packed. ordered: columns belong to groups in a random order (GPTQ's desc_act)."""
    values = weight.double().numpy()
    outputs, columns = values.shape
    width = columns if group == -1 else group
    groups = np.arange(columns) // width
    if ordered:
        groups = np.random.default_rng(seed).permutation(groups)
    count, top = groups.max() + 1, 2**bits - 1
    scales, zeros = np.zeros((count, outputs), np.float16), np.zeros((count, outputs), np.int64)
    for number in range(count):
        part = values[:, groups == number]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        size = 2 * np.maximum(-low, high) / top if symmetric else (high - low) / top
        scales[number] = np.maximum(size, 1e-4)
        zeros[number] = (top + 1) // 2 if symmetric else np.clip(np.round(-low / scales[number]), 0, top)
    size, zero = scales.astype(np.float64)[groups].T, zeros[groups].T
    steps = np.clip(np.round(values / size) + zero, 0, top).astype(np.int64)
    wide = torch.from_numpy((steps - zero).astype(np.float32) * size.astype(np.float32))
    if method == "awq":
        tensors = {"qweight": words(steps.T, 4, 1, AWQ_ORDER), "qzeros": words(zeros, 4, 1, AWQ_ORDER)}
    else:
        # The first format subtracts one from each number of a packed word, so that a zero of 0 borrows from the next.
        ones = sum(1 << place for place in range(0, 32, bits))
        plain = words(zeros, bits, 1).numpy().view(np.uint32)
        stored = (plain - np.uint32(ones)) if first_format else plain
        tensors = {
            "qweight": words(steps.T, bits, 0),
            "qzeros": torch.from_numpy(stored.view(np.int32).copy()),
            "g_idx": torch.from_numpy(groups.astype(np.int32)),
        }
    return Packed({**tensors, "scales": torch.from_numpy(scales)}, wide)


def packed_folder(source: Path, target: Path, wide: Path, leave: str = "head", **how: Any) -> None:
    """A checkpoint's linear layers packed, as ``target``, and the plain float32 copy of the same numbers, as ``wide``.
    leave: names with this in them stay as they are."""
    tensors = {name: tensor for file in source.glob("*.safetensors") for name, tensor in load_file(file).items()}
    small: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        stem = name.removesuffix(".weight")
        if (
            tensor.ndim < 2
            or not any(f".{layers}." in name for layers in ("layers", "blocks"))
            or name.endswith(("mlp.gate.weight", "expert_bias"))
        ):
            small[name] = tensor
            continue
        found = packed(tensor, **how)
        small |= {f"{stem}.{leaf}": part for leaf, part in found.tensors.items()}
        tensors[name] = found.weight
    config = json.loads((source / "config.json").read_text())
    method = how.get("method", "gptq")
    said = {"quant_method": method, "bits": how.get("bits", 4), "group_size": how.get("group", 32)}
    said |= (
        {"version": "gemm", "zero_point": True}
        if method == "awq"
        else {
            "checkpoint_format": "gptq" if how.get("first_format", True) else "gptq_v2",
            "desc_act": how.get("ordered", False),
        }
    )
    for folder, part, more in ((target, small, {"quantization_config": said}), (wide, tensors, {})):
        folder.mkdir(parents=True, exist_ok=True)
        save_file(part, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({**config, **more}))
