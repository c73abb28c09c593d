"""MLX folders: matrices whose rows are one stream of bits in words of 32, with scales and offsets by groups of columns.

A module that has ``scales`` is packed, any other is plain. ``weight`` is [N, D bits / 32], or [E, N, D bits / 32] of
experts; ``scales`` and ``biases`` (offsets, not the ``bias`` of a linear layer) are [N, D / group]. Floats of few bits
have scales in bytes and no offsets.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from dllm.errors import UserError
from dllm.models.files import FLOATS, Contents, Stored, broken, first_names
from dllm.models.keys import printed
from dllm.models.mlx_settings import AFFINE_FORMS, FLOAT_FORMS, MLX_KEY, MlxForm, MlxSettings
from dllm.models.prequantized import UNQUANTISED
from dllm.models.scaled_packing import Scaled, check_tensor

_CODES = {"mxfp4": ("e2m1", "e8m0"), "mxfp8": ("e4m3", "e8m0"), "nvfp4": ("e2m1", "e4m3")}  # of numbers and scales


def with_mlx(found: Contents, settings: MlxSettings, widths: Collection[int]) -> Contents:
    """The tensors of a folder with a weight in the place of those that make it up. widths: columns that matrices of the
    model have. Raises UserError where tensors do not fit each other, or what config.json says of them."""
    tensors = dict(found.tensors)
    for name in [name for name in tensors if name.endswith(".scales")]:
        path = name.removesuffix(".scales")
        weight, scales, offsets = (tensors.pop(f"{path}.{leaf}", None) for leaf in ("weight", "scales", "biases"))
        if weight is None or scales is None:
            raise broken(f"tensor {printed(name)} is there without its weight")
        if f"{path}.global_scale" in tensors:
            raise UserError(
                f"tensor {printed(path)}.global_scale is of a form of nvfp4 that is not read. {UNQUANTISED}."
            )
        form = _form(path, weight, scales, offsets, settings, widths)
        packing = _packing(form, weight, scales, offsets)
        tensors[f"{path}.weight"] = Stored(f"{path}.weight", weight.file, packing.shape, form.called, packing)
    if strange := [name for name in tensors if name.endswith(".biases")]:
        raise broken(f"tensor {first_names(strange)} is there without its scales")
    if all(one.packing is None for one in tensors.values()):
        note = f"{MLX_KEY} says {settings.usual.called}, and no tensor is packed: the weights are read as they are."
        return replace(found, notes=(*found.notes, note))
    return replace(found, tensors=tensors)


def _form(
    path: str, weight: Stored, scales: Stored, offsets: Stored | None, settings: MlxSettings, widths: Collection[int]
) -> MlxForm:
    """The form of a matrix: the one that config.json names for it, or for all, if its tensors have it; else, of those
    that are not named, the only one that they can have. Raises UserError where none fits."""
    if len(weight.shape) not in (2, 3) or weight.dtype != "U32":
        raise broken(f"tensor {printed(weight.name)} is {weight.dtype} {list(weight.shape)}, and MLX packs words of 32 "
                     "bits with two or three sizes")  # fmt: skip
    if offsets is None and scales.dtype != "U8":
        raise broken(f"tensor {printed(scales.name)} is there without its biases")
    words, groups = weight.shape[-1], scales.shape[-1] if scales.shape else 0
    forms = [one for one in (AFFINE_FORMS if offsets is not None else FLOAT_FORMS)
             if 32 * words == one.bits * one.group * groups]  # fmt: skip
    if path in settings.own:
        named = settings.own[path]
        said = "no packing" if named is None else f"{named.called} in groups of {named.group}"
        if named not in forms:
            raise broken(f"{MLX_KEY} says {said} of {printed(path)}, and its weight {list(weight.shape)} with scales "
                         f"{list(scales.shape)} is another form")  # fmt: skip
        assert named is not None
        return named
    forms = [one for one in forms if one.group * groups in widths] or forms
    if settings.usual in forms:
        return settings.usual
    if len(forms) != 1:
        found = f"tensor {printed(weight.name)} {list(weight.shape)} with scales {list(scales.shape)}"
        why = "has several forms" if forms else "has no form"
        raise broken(f"{found} {why} of MLX, and {MLX_KEY} does not name it")
    return forms[0]


def _packing(form: MlxForm, weight: Stored, scales: Stored, offsets: Stored | None) -> Scaled:
    columns = 32 * weight.shape[-1] // form.bits
    said, shape = f"{form.called} in groups of {form.group}", (*weight.shape[:-1], columns // form.group)
    codes, scale_codes = (f"uint{form.bits}", "") if form.mode == "affine" else _CODES[form.mode]
    check_tensor(scales, shape, ("U8",) if scale_codes else FLOATS, said)
    if offsets is not None:
        check_tensor(offsets, shape, FLOATS, said)
    return Scaled(codes, columns, weight, scales, (1, form.group), scale_codes, offsets=offsets)
