"""The formats of other programs' packed weights, a row each, and the tensors of a folder with whole weights instead.

A format names the leaf by which a module is known to be packed, the leaves that do not count here, and an operation
that takes a module's tensors and gives its weight. All of an operation's checks are of headers: no number is read.

| | tensors of a module | weight |
|---|---|---|
| GPTQ, AWQ | ``qweight``, ``qzeros``, ``scales``, ``g_idx`` (``dllm.models.formats.affine.Grouped``) | (q - z) s |
| MLX | ``weight`` [N, D bits / 32], or [E, N, ..] of experts, ``scales`` and ``biases`` [N, D / group]; floats of few bits have scales in bytes and no offsets | q s + b |
| FP8 | ``weight`` [N, D], ``weight_scale`` of the tensor, a row, a group or a block; DeepSeek's: ``weight_scale_inv`` | q s |
| INT8 | the same, and ``weight_zero_point`` where it is not symmetric | (q - z) s |
| INT1 to INT8, packed | ``weight_packed`` int32 [N, D bits / 32], ``weight_shape``, ``weight_zero_point`` packed down the rows | (q - z) s, codes from the middle |
| NVFP4 | ``weight_packed`` [N, D / 2], ``weight_scale`` [N, D / 16], ``weight_global_scale`` | q (s / g) |
| NVFP4 of ModelOpt | ``weight`` [N, D / 2], ``weight_scale``, ``weight_scale_2`` | q s g |
| MXFP4, MXFP8 | ``weight_packed`` or ``weight``, ``weight_scale`` [N, D / 32] | q 2^(s - 127) |
| bitsandbytes, 8 bits | ``weight`` int8 [N, D], ``SCB`` [N] | q s / 127 |
| bitsandbytes, 4 bits | see ``dllm.models.formats.blocks_of_four`` | |
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from math import prod

import torch

from dllm.common.errors import Refusal, UserError
from dllm.models.config import ModelConfig
from dllm.models.formats.affine import WORD_BITS, Grouped, Scaled, Scheme
from dllm.models.formats.blocks_of_four import FOUR_BIT_STATE, blocks_of_four
from dllm.models.formats.layouts import Module, PackedSettings, check_tensor
from dllm.models.formats.packed_settings import BNB_INT8, MLX_KEY, MLX_SCHEMES
from dllm.models.formats.packing import Packing, Part
from dllm.models.formats.prequantized import QUANTISATION, UNQUANTISED
from dllm.models.keys import printed
from dllm.models.weights.files import FLOATS, Contents, StoredTensor, broken, first_names
from dllm.models.weights.tensor_reader import TensorReader

# What concerns activations and the cache alone.
_UNUSED = frozenset(
    f"{what}_{kind}" for what in ("input", "output", "k", "v", "q") for kind in ("scale", "zero_point", "global_scale")
)
_CODE_DTYPES = {"e4m3": ("F8_E4M3",), "int8": ("I8",), "e2m1": ("U8",)}  # how files store codes; other ones are I32
_SCALE_DTYPES = {
    "": (*FLOATS, "F8_E8M0"),
    "e4m3": ("F8_E4M3",),
    "e8m0": ("U8", "F8_E8M0"),
    "float or e8m0": (*FLOATS, "F8_E8M0", "U8"),
}
_Packed = tuple[str, Packing, tuple[int, ...]]  # what people call it, the operation on its tensors, and its shape
_Operation = Callable[[Module, PackedSettings, Collection[int]], _Packed]


@dataclass(frozen=True)
class Format:
    """A row of the table."""

    packs: Mapping[str, _Operation]  # by an expression of tensors' names whose first group is the module's
    unused: Collection[str] = ()  # leaves that do not count


def with_whole_weights(contents: Contents, settings: PackedSettings | None, widths: Collection[int]) -> Contents:
    """The tensors of a folder, with one for those that make up a weight. settings: what config.json says (None: they
    are plain). widths: columns of the model's matrices. Raises UserError where tensors do not fit each other or it."""
    if settings is None:
        return contents
    form, packed = PACKED_FORMATS[settings.method], dict[str, StoredTensor]()
    tensors = {name: tensor for name, tensor in contents.tensors.items() if name.rpartition(".")[2] not in form.unused}
    with TensorReader({}) as reader:
        for pattern, operation in form.packs.items():
            matches = [match for name in tensors if (match := re.fullmatch(pattern, name))]
            for name, path in {match[1]: match[0] for match in matches}.items():
                module = Module(name, tensors, reader.part, path)
                label, packing, shape = operation(module, settings, widths)
                weight = name if pattern == FOUR_BIT_STATE else f"{name}.weight"
                first = module.sources[0]
                if weight in tensors and weight not in contents.unnamed:
                    beside = f"tensor {printed(weight)} is beside {printed(first.name)}"
                    raise broken(f"{beside}: which one counts is not known")
                packed[weight] = StoredTensor(weight, first.file, shape, label, packing)
        if not packed:
            note = f"{settings.statement}, and no tensor is packed: the weights are read as they are."
            return replace(contents, notes=(*contents.notes, note))
        notes = settings.notes
        if settings.method == "gptq":
            packed, notes = _ordered(packed, settings, reader.part)
    if strange := [name for name in tensors if settings.method == "mlx" and name.endswith(".biases")]:
        raise broken(f"tensor {first_names(strange)} is there without its scales")
    return replace(contents, tensors={**tensors, **packed}, notes=(*contents.notes, *notes))


def matrix_widths(config: ModelConfig) -> frozenset[int]:
    """How many columns matrices of a model have."""
    widths = {config.width, config.mlp_width, *(config.attention_widths(layer)[0] for layer in range(config.layers))}
    return frozenset(widths if config.moe is None else {*widths, config.moe.width, config.moe.shared_width})


def _grouped(module: Module, settings: PackedSettings, _: Collection[int]) -> _Packed:
    weight, zeros, scales, index = map(module.take, ("qweight", "qzeros", "scales", "g_idx"))
    if weight is None or zeros is None or scales is None:
        raise broken(f"tensor {printed(module.name)}.qweight is there without its qzeros and scales")
    if len(weight.shape) != 2:
        raise broken(f"tensor {printed(weight.name)} has shape {list(weight.shape)}, not two sizes")
    scheme, awq = settings.usual, settings.method == "awq"
    packing = Grouped(scheme, weight, scales, zeros, None if awq else index, settings.subtracted, awq)
    outputs, columns = packing.shape
    groups, form = -(-columns // scheme.block[1]), f"{scheme.label} in groups of {settings.group}"
    check_tensor(zeros, (groups, outputs * scheme.bits // WORD_BITS), ("I32",), form)
    check_tensor(scales, (groups, outputs), FLOATS, form)
    if index is not None:
        check_tensor(index, (columns,), ("I32",), form)
    check_tensor(weight, weight.shape, ("I32",), form)
    return scheme.label, packing, packing.shape


def _ordered(
    packed: Mapping[str, StoredTensor], settings: PackedSettings, part: Part
) -> tuple[dict[str, StoredTensor], tuple[str, ...]]:
    """Matrices of GPTQ with an index only where it says another order than the plain one, and with the zeros that they
    have. Raises UserError for an order that is not known, and where ``sym`` is true of other zeros."""
    packings = {name: _with_order(tensor.packing, settings, part) for name, tensor in packed.items()}
    middle, zeros = 2 ** (settings.usual.bits - 1), {}
    if settings.symmetric is not False:
        zeros = {name: packing.file_zero(part) for name, packing in packings.items()}
    if settings.symmetric is None and {*zeros.values()} not in ({middle}, {middle - 1}):
        zeros = {}
    if odd := [name for name, zero in zeros.items() if zero not in (middle, middle - 1)]:
        names = first_names([f"{name.removesuffix('.weight')}.qzeros" for name in odd])
        raise UserError(
            f"{QUANTISATION} has sym=true, so all zeros are {middle}, and other ones stand in {names}. "
            "Set sym to false there if they are meant, or take another copy."
        )
    # Published folders have zeros of the second format under the name of the first (vllm issue 38966).
    packings |= {
        name: replace(packings[name], subtracted=middle - zero) for name, zero in zeros.items() if zero is not None
    }
    other = [
        name.removesuffix(".weight") for name, packing in packings.items() if packing.subtracted != settings.subtracted
    ]
    declared, actual = ("gptq", "gptq_v2") if settings.subtracted else ("gptq_v2", "gptq")
    names = first_names(other)
    note = f"checkpoint_format is {declared}, and {names} have the zeros of {actual}, as which they are read."
    tensors = {name: replace(packed[name], packing=packing) for name, packing in packings.items()}
    return tensors, (note,) if other else ()


def _with_order(packing: Packing | None, settings: PackedSettings, part: Part) -> Grouped:
    """Raises UserError for an index that no packer writes, and for none where the order is not known. GPTQ-for-LLaMa
    left zeros there, and means the plain order."""
    assert isinstance(packing, Grouped)
    plain, order = packing.in_order, packing.order(part)
    groups, stem = int(plain[-1]) + 1, printed(packing.weight.name.removesuffix(".qweight"))
    if order is None or (not order.any() and groups > 1):
        if settings.ordered and groups > 1:
            why = "g_idx is missing" if order is None else "g_idx is all zero"
            raise Refusal(
                f"{QUANTISATION} has desc_act=true, and {stem}.{why}: the order of its columns is not "
                f"known. {UNQUANTISED}."
            )
        return replace(packing, index=None)
    if ((order < 0) | (order >= groups)).any():
        raise broken(f"tensor {stem}.g_idx names groups that are not 0 to {groups - 1}")
    counts, expected = order.bincount(minlength=groups), plain.bincount()
    if not torch.equal(counts, expected):
        group = int((counts != expected).nonzero()[0])
        raise broken(
            f"tensor {stem}.g_idx puts {counts[group]} columns into group {group}, which has {expected[group]}"
        )
    return replace(packing, index=None) if torch.equal(order, plain) else packing


def _mlx(module: Module, settings: PackedSettings, widths: Collection[int]) -> _Packed:
    weight, scales, offsets = map(module.take, ("weight", "scales", "biases"))
    if weight is None or scales is None:
        raise broken(f"tensor {printed(module.name)}.scales is there without its weight")
    if module.take("global_scale") is not None:
        raise Refusal(
            f"tensor {printed(module.name)}.global_scale is of a form of nvfp4 that is not read. {UNQUANTISED}."
        )
    if len(weight.shape) not in (2, 3) or weight.dtype != "U32":
        raise broken(
            f"tensor {printed(weight.name)} is {weight.dtype} {list(weight.shape)}, and MLX packs words of 32 "
            "bits with two or three sizes"
        )
    if offsets is None and scales.dtype != "U8":
        raise broken(f"tensor {printed(scales.name)} is there without its biases")
    scheme = _mlx_scheme(module.name, weight, scales, offsets, settings, widths)
    group = scheme.block[1]
    columns, form = WORD_BITS * weight.shape[-1] // scheme.bits, f"{scheme.label} in groups of {group}"
    shape = (*weight.shape[:-1], columns // group)
    check_tensor(scales, shape, ("U8",) if scheme.scale_codes else FLOATS, form)
    if offsets is not None:
        check_tensor(offsets, shape, FLOATS, form)
    packing = Scaled(scheme, weight, scales, None, columns, offsets)
    return scheme.label, packing, packing.shape


def _mlx_scheme(
    path: str,
    weight: StoredTensor,
    scales: StoredTensor,
    offsets: StoredTensor | None,
    settings: PackedSettings,
    widths: Collection[int],
) -> Scheme:
    """The scheme of a matrix: the one that config.json names for it, or for all, if its tensors have it; else, of those
    that are not named, the only one that they can have. Raises UserError where none fits."""
    words, groups = weight.shape[-1], scales.shape[-1] if scales.shape else 0
    fit = {
        scheme: scheme.block[1] * groups
        for scheme in MLX_SCHEMES
        if bool(scheme.offsets) == (offsets is not None) and WORD_BITS * words == scheme.bits * scheme.block[1] * groups
    }
    if path in settings.schemes or path in settings.ignored:
        declared = settings.schemes.get(path)
        if declared is None or declared not in fit:
            form = "no packing" if declared is None else f"{declared.label} in groups of {declared.block[1]}"
            raise broken(
                f"{MLX_KEY} says {form} of {printed(path)}, and its weight {list(weight.shape)} with scales "
                f"{list(scales.shape)} is another form"
            )
        return declared
    candidates = [scheme for scheme, columns in fit.items() if columns in widths] or list(fit)
    if settings.usual in candidates:
        return settings.usual
    if len(candidates) != 1:
        tensor_text = f"tensor {printed(weight.name)} {list(weight.shape)} with scales {list(scales.shape)}"
        why = "has several forms" if candidates else "has no form"
        raise broken(f"{tensor_text} {why} of MLX, and {MLX_KEY} does not name it")
    return candidates[0]


def _scaled(module: Module, settings: PackedSettings, _: Collection[int]) -> _Packed:
    scheme = settings.scheme_of(module.name)
    names = [scheme.weight, scheme.scale, scheme.overall, "weight_shape" if scheme.in_words else "", scheme.zeros]
    tensors = {name: module.take(name) for name in filter(None, names)}
    if missing := [name for name, tensor in tensors.items() if tensor is None]:
        raise broken(f"module {printed(module.name)} is {scheme.label}, and its {' and '.join(missing)} is missing")
    if module.take("weight_g_idx") is not None:
        raise Refusal(
            f"tensor {printed(module.name)}.weight_g_idx tells an order of columns, which is not read. {UNQUANTISED}."
        )
    module.take("weight_zero_point")  # of symmetric weights they are the middle
    weight, scales, zeros, overall = (
        tensors.get(name) for name in (scheme.weight, scheme.scale, scheme.zeros, scheme.overall)
    )
    assert weight is not None and scales is not None
    if len(weight.shape) != 2 or 0 in weight.shape:
        raise broken(f"tensor {printed(weight.name)} has shape {list(weight.shape)}, not two sizes from 1 on")
    columns = _columns(weight, scheme, tensors.get("weight_shape"), module.part)
    rows, bits = weight.shape[0], scheme.bits
    blocks = -(-rows // scheme.block[0]), -(-columns // scheme.block[1])
    check_tensor(weight, weight.shape, _CODE_DTYPES.get(scheme.codes, ("I32",)), scheme.label)
    # Scales of one block may have any shape; of one column of blocks the second size may be left out.
    alike = prod(scales.shape) == prod(blocks) == 1 or (blocks[1] == 1 and scales.shape == blocks[:1])
    check_tensor(scales, scales.shape if alike else blocks, _SCALE_DTYPES[scheme.scale_codes], scheme.label)
    if overall is not None and (prod(overall.shape) != 1 or overall.dtype != "F32"):
        raise broken(f"tensor {printed(overall.name)} is {overall.dtype} {list(overall.shape)}, not one number in F32")
    if zeros is not None:
        down = (-(-rows * bits // WORD_BITS), blocks[1]) if scheme.in_words else scales.shape
        check_tensor(zeros, down, ("I32",) if scheme.in_words else ("I8",), scheme.label)
    packing = Scaled(scheme, weight, scales, zeros, columns, overall=overall)
    return scheme.label, packing, packing.shape


def _columns(weight: StoredTensor, scheme: Scheme, shape: StoredTensor | None, part: Part) -> int:
    """D. The words of a row may hold more numbers than it has, so that a tensor says how many these are."""
    if shape is None:
        return weight.shape[1] * (2 if scheme.codes == "e2m1" else 1)
    if prod(shape.shape) != 2 or not shape.dtype.startswith("I"):
        raise broken(f"tensor {printed(shape.name)} is {shape.dtype} {list(shape.shape)}, not two whole numbers")
    rows, columns = map(int, part(shape).flatten().tolist())
    if (rows, -(-columns * scheme.bits // WORD_BITS)) != weight.shape or columns < 1:
        raise broken(
            f"tensor {printed(shape.name)} says {[rows, columns]}, and {printed(weight.name)} has shape "
            f"{list(weight.shape)} in {scheme.bits} bits"
        )
    return columns


def _eight_bits(module: Module, settings: PackedSettings, _: Collection[int]) -> _Packed:
    weight, scales = map(module.need, (".weight", ".SCB"))
    layout = module.take("weight_format")
    if layout is not None and (prod(layout.shape) != 1 or int(module.part(layout).item()) != 0):
        raise broken(f"tensor {printed(layout.name)} tells another layout than rows, which no published folder has")
    if len(weight.shape) != 2:
        raise broken(f"tensor {printed(weight.name)} has shape {list(weight.shape)}, not two sizes")
    check_tensor(weight, weight.shape, ("I8",), "its SCB")
    check_tensor(scales, weight.shape[:1], ("F32",), f"a weight of {list(weight.shape)}")
    packing = Scaled(BNB_INT8, weight, scales, None, weight.shape[1])
    return BNB_INT8.label, packing, packing.shape


_WORDS, _SCALES = (
    Format({r"(.+)\.qweight": _grouped}),
    Format({r"(.+)\.(?:weight_scale|weight_scale_inv|weight_packed)": _scaled}, _UNUSED),
)
PACKED_FORMATS = {
    "gptq": _WORDS,
    "awq": _WORDS,
    "mlx": Format({r"(.+)\.scales": _mlx}),
    "compressed-tensors": _SCALES,
    "modelopt": _SCALES,
    "fp8": _SCALES,
    "bitsandbytes": Format({FOUR_BIT_STATE: blocks_of_four, r"(.+)\.SCB": _eight_bits}),
}
