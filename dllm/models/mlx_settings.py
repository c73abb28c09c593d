"""What the config.json of an MLX folder says of its weights (mlx_lm 0.32, its function quantize_model)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dllm.common.coerce import is_whole
from dllm.errors import UserError
from dllm.models.keys import printed, shown
from dllm.models.prequantized import QUANTISATION, UNQUANTISED

MLX_KEY = "quantization"
_AFFINE_BITS, _AFFINE_GROUPS = (2, 3, 4, 5, 6, 8), (32, 64, 128)
_USUAL = {"affine": (4, 64), "mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}  # bits and columns, by mode


@dataclass(frozen=True)
class MlxForm:
    """How one matrix is packed."""

    bits: int  # of a number
    group: int  # columns with one scale
    mode: str = "affine"  # or mxfp4, mxfp8, nvfp4: floats of few bits, whose scales are bytes

    @property
    def called(self) -> str:
        """What people call it."""
        return f"MLX {self.bits}-bit" if self.mode == "affine" else f"MLX {self.mode}"


AFFINE_FORMS = tuple(MlxForm(bits, group) for bits in _AFFINE_BITS for group in _AFFINE_GROUPS)
FLOAT_FORMS = tuple(MlxForm(*usual, mode) for mode, usual in _USUAL.items() if mode != "affine")


@dataclass(frozen=True)
class MlxSettings:
    """What is said of all matrices, and of some by their modules' names."""

    usual: MlxForm  # of those that are not named
    own: Mapping[str, MlxForm | None]  # by the module's name; None: it is plain


def mlx_settings(published: Mapping[str, Any], file: str) -> MlxSettings | None:
    """None: it says nothing as MLX does. Raises UserError for forms that MLX does not have, and where another program's
    method is named beside it."""
    said = published.get(MLX_KEY)
    if not said:
        return None
    method = (other := published.get(QUANTISATION)) and isinstance(other, Mapping) and other.get("quant_method")
    if not isinstance(said, Mapping) or not ({"bits", "group_size", "mode"} & said.keys()) or said.get("quant_method"):
        return None  # ``refuse_quantised`` says so
    if method:
        raise UserError(f"{file} has {MLX_KEY} as MLX writes it, and {QUANTISATION}.quant_method={shown(method)}: they "
                        f"contradict each other. {UNQUANTISED}.")  # fmt: skip
    usual, own = _form(said, MLX_KEY, file), dict[str, MlxForm | None]()
    for path, one in said.items():
        if path in ("bits", "group_size", "mode"):
            continue
        if isinstance(one, Mapping):
            own[path] = _form(one, f"{MLX_KEY}.{printed(path)}", file)
        elif isinstance(one, bool):
            own[path] = usual if one else None
        elif path != "linear_class":
            raise UserError(f"{file} has {MLX_KEY}.{printed(path)}={shown(one)}, which must be a module's bits and "
                            f"group_size, or false. {UNQUANTISED}.")  # fmt: skip
    return MlxSettings(usual, own)


def _form(said: Mapping[str, Any], place: str, file: str) -> MlxForm:
    mode = said.get("mode") or "affine"
    if not isinstance(mode, str) or mode not in _USUAL:
        raise UserError(f"{file} has {place}.mode={shown(mode)}, which must be one of {', '.join(_USUAL)} to be read. "
                        f"{UNQUANTISED}.")  # fmt: skip
    bits, group = (said.get(key, usual) for key, usual in zip(("bits", "group_size"), _USUAL[mode], strict=True))
    allowed = (_AFFINE_BITS, _AFFINE_GROUPS) if mode == "affine" else tuple((one,) for one in _USUAL[mode])
    for key, value, values in zip(("bits", "group_size"), (bits, group), allowed, strict=True):
        if not is_whole(value) or value not in values:
            raise UserError(
                f"{file} has {place}.{key}={shown(value)} in mode {mode}, which must be one of "
                f"{', '.join(map(str, values))} to be read. {UNQUANTISED}."
            )
    return MlxForm(bits, group, mode)
