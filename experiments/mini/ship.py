"""How a shipped model's weights are compressed: ``pack(folder)``, which ``dllm.models.weights.shipped`` undoes."""

from __future__ import annotations

import lzma
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load, save
from torch import Tensor

from dllm.models.weights.files import SINGLE
from dllm.models.weights.shipped import PACKED, as_bits, as_floats, shipped_tensors

# (lc, lp, pb) that tell pairs of bytes apart, and fours: by the former, weights in bfloat16 shrink to 64 % (68 % by xz
# alone), by the latter those in float32 to 84 % (92 %).
LITERALS = ((3, 1, 1), (2, 2, 2))


def pack(folder: Path, base: str = "") -> None:
    """Compress a folder's weights. Raises OSError.

    base: a shipped model with tensors that are near these, both in bfloat16: what is compressed are differences to
    them, for mini-llada-distilled, which shares embedding and head, 27 % of the size.
    """
    if base:
        _write_differences(folder / SINGLE, base)
    plain = (folder / SINGLE).read_bytes()
    settings = [dict(zip(("lc", "lp", "pb"), values, strict=True)) for values in LITERALS]
    ways = [lzma.compress(plain, filters=[{"id": lzma.FILTER_LZMA2, "preset": 9, **setting}]) for setting in settings]
    (folder / PACKED).write_bytes(min(ways, key=len))
    (folder / SINGLE).unlink()


def _write_differences(file: Path, base: str) -> None:
    """Tensors less the base's nearest ones. Which these are is said in the metadata."""
    tensors, bases = load(file.read_bytes()), shipped_tensors(base)
    pairs = {name: near for name, tensor in tensors.items() if (near := _nearest(tensor, bases))}
    parted = {
        name: as_bits(tensor) - as_bits(bases[pairs[name]]) if name in pairs else tensor
        for name, tensor in tensors.items()
    }
    file.write_bytes(save(as_floats(parted), metadata={"base": base, **pairs}))


def _nearest(tensor: Tensor, bases: Mapping[str, Tensor]) -> str | None:
    """The tensor of the same shape that is nearest, if differences are smaller than 0.6 of the numbers themselves."""
    gaps = {
        name: float((tensor.float() - other.float()).abs().mean())
        for name, other in bases.items()
        if other.shape == tensor.shape
    }
    near = min(gaps, key=gaps.__getitem__, default=None)
    return near if near and gaps[near] < 0.6 * float(tensor.float().abs().mean()) else None
