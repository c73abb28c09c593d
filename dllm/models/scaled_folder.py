"""Folders of compressed-tensors, ModelOpt and transformers' float8: which tensors make up a weight, and how.

| | tensors of a module | weight |
|---|---|---|
| FP8 | ``weight`` [N, D], ``weight_scale`` of the tensor, a row, a group or a block; DeepSeek's: ``weight_scale_inv`` | q s |
| INT8 | the same, and ``weight_zero_point`` where it is not symmetric | (q - z) s |
| INT1 to INT8, packed | ``weight_packed`` int32 [N, D bits / 32], ``weight_shape``, ``weight_zero_point`` packed down the rows | (q - z) s, codes from the middle |
| NVFP4 | ``weight_packed`` [N, D / 2], ``weight_scale`` [N, D / 16], ``weight_global_scale`` | q (s / g) |
| NVFP4 of ModelOpt | ``weight`` [N, D / 2], ``weight_scale``, ``weight_scale_2`` | q s g |
| MXFP4, MXFP8 | ``weight_packed`` or ``weight``, ``weight_scale`` [N, D / 32] | q 2^(s - 127) |
"""  # noqa: E501

from __future__ import annotations

from dataclasses import replace
from math import prod

from dllm.errors import UserError
from dllm.models.files import FLOATS, Contents, Stored, broken
from dllm.models.keys import printed
from dllm.models.packing import Part
from dllm.models.prequantized import QUANTISATION, UNQUANTISED
from dllm.models.scaled_packing import Scaled, check_tensor
from dllm.models.scaled_settings import ScaledSettings, Scheme
from dllm.models.tensor_reader import TensorReader

_SCALES = ("weight_scale", "weight_scale_inv")
# What concerns activations and the cache alone.
_UNUSED = ("input_scale", "input_zero_point", "input_global_scale", "output_scale", "output_zero_point", "k_scale",
           "v_scale", "q_scale", "k_zero_point", "v_zero_point")  # fmt: skip
_HELD = {"e4m3": ("F8_E4M3",), "int8": ("I8",), "e2m1": ("U8",)}  # how files store codes; other ones are I32
_SCALES_HELD = {"": (*FLOATS, "F8_E8M0"), "e4m3": ("F8_E4M3",), "e8m0": ("U8", "F8_E8M0"),
                "float or e8m0": (*FLOATS, "F8_E8M0", "U8")}  # fmt: skip
_SCALE_CODES = {"U8": "e8m0", "F8_E8M0": "e8m0", "F8_E4M3": "e4m3"}  # of scales that are bytes


def with_scaled(found: Contents, settings: ScaledSettings) -> Contents:
    """The tensors of a folder with a weight in the place of those that make it up. Raises UserError where these do not
    fit each other, or what config.json says of them."""
    tensors = {name: one for name, one in found.tensors.items() if name.rpartition(".")[2] not in _UNUSED}
    leaves = (*_SCALES, "weight_packed")
    modules = dict.fromkeys(name.rpartition(".")[0] for name in tensors if name.rpartition(".")[2] in leaves)
    with TensorReader({}) as reader:
        for module in modules:
            scheme = settings.scheme_of(module)
            packing = _packing(module, scheme, tensors, reader.part)
            name = f"{module}.weight"
            if name in tensors:
                beside = f"tensor {printed(name)} is beside {printed(packing.weight.name)}"
                raise broken(f"{beside}: which one counts is not known")
            tensors[name] = Stored(name, packing.weight.file, packing.shape, scheme.called, packing)
    notes = settings.notes
    if not modules:
        notes = (f"{QUANTISATION} says {settings.method}, and no tensor is packed: the weights are read as they are.",)
    return replace(found, tensors=tensors, notes=(*found.notes, *notes))


def _packing(module: str, scheme: Scheme, tensors: dict[str, Stored], part: Part) -> Scaled:
    names = [scheme.weight, scheme.scale, *([scheme.overall] if scheme.overall else [])]
    names += ["weight_shape"] if scheme.in_words else []
    names += [] if scheme.symmetric else ["weight_zero_point"]
    taken = {name: tensors.pop(f"{module}.{name}", None) for name in names}
    if missing := [name for name, one in taken.items() if one is None]:
        raise broken(f"module {printed(module)} is {scheme.called}, and its {' and '.join(missing)} is missing")
    held = {name: one for name, one in taken.items() if one is not None}
    if f"{module}.weight_g_idx" in tensors:
        raise UserError(f"tensor {printed(module)}.weight_g_idx tells an order of columns, which is not read. "
                        f"{UNQUANTISED}.")  # fmt: skip
    tensors.pop(f"{module}.weight_zero_point", None)  # of symmetric weights they are the middle
    weight, scales = held[scheme.weight], held[scheme.scale]
    if len(weight.shape) != 2 or 0 in weight.shape:
        raise broken(f"tensor {printed(weight.name)} has shape {list(weight.shape)}, not two sizes from 1 on")
    columns = _columns(weight, scheme, held.get("weight_shape"), part)
    rows, block = weight.shape[0], (min(scheme.block[0], weight.shape[0]), min(scheme.block[1], columns))
    check_tensor(weight, weight.shape, _HELD.get(scheme.codes, ("I32",)), scheme.called)
    _check_scales(scales, (-(-rows // block[0]), -(-columns // block[1])), scheme)
    overall, zeros = held.get(scheme.overall), held.get("weight_zero_point")
    if overall is not None and (prod(overall.shape) != 1 or overall.dtype != "F32"):
        raise broken(f"tensor {printed(overall.name)} is {overall.dtype} {list(overall.shape)}, not one number in F32")
    bits = int(scheme.codes.removeprefix("uint")) if scheme.in_words else 0
    if zeros is not None:
        packed = (-(-rows * bits // 32), -(-columns // block[1])) if bits else scales.shape
        check_tensor(zeros, packed, ("I32",) if bits else ("I8",), scheme.called)
    return Scaled(
        scheme.codes, columns, weight, scales, block, _SCALE_CODES.get(scales.dtype, ""),
        2 ** (bits - 1) if bits else 0, zeros, overall=overall, divided=scheme.divided,
    )  # fmt: skip


def _columns(weight: Stored, scheme: Scheme, shape: Stored | None, part: Part) -> int:
    """D. The words of a row may hold more numbers than it has, so that a tensor says how many these are."""
    if shape is None:
        return weight.shape[1] * (2 if scheme.codes == "e2m1" else 1)
    if prod(shape.shape) != 2 or not shape.dtype.startswith("I"):
        raise broken(f"tensor {printed(shape.name)} is {shape.dtype} {list(shape.shape)}, not two whole numbers")
    rows, columns = map(int, part(shape).flatten().tolist())
    bits = int(scheme.codes.removeprefix("uint"))
    if (rows, -(-columns * bits // 32)) != weight.shape or columns < 1:
        raise broken(f"tensor {printed(shape.name)} says {[rows, columns]}, and {printed(weight.name)} has shape "
                     f"{list(weight.shape)} in {bits} bits")  # fmt: skip
    return columns


def _check_scales(scales: Stored, blocks: tuple[int, int], scheme: Scheme) -> None:
    """Raise UserError for scales of another shape than that of the blocks, or kind. Of one block they may have any
    shape, of one column of blocks the second size may be left out."""
    shapes = [blocks, *([scales.shape] if prod(scales.shape) == prod(blocks) == 1 else [])]
    shapes += [blocks[:1]] if blocks[1] == 1 else []
    check_tensor(
        scales, scales.shape if scales.shape in shapes else blocks, _SCALES_HELD[scheme.scale_codes], scheme.called
    )
