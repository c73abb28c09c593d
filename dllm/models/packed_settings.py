"""What config.json says of weights that another program has packed, by the program's word for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dllm.errors import UserError
from dllm.models.files import read_json
from dllm.models.grouped_settings import GroupedSettings, grouped_settings, unread_grouped, with_file_beside
from dllm.models.keys import shown
from dllm.models.mlx_settings import MlxSettings, mlx_settings
from dllm.models.prequantized import QUANTISATION, STORED_KEY, UNQUANTISED, refuse_quantised
from dllm.models.scaled_settings import ScaledSettings, scaled_settings, unread_scaled

BITSANDBYTES = "bitsandbytes"
MODELOPT_FILE = "hf_quant_config.json"  # what ModelOpt writes beside a config.json that says nothing
PackedSettings = GroupedSettings | MlxSettings | ScaledSettings | str
_BITSANDBYTES_KEYS = """
quant_method load_in_4bit load_in_8bit bnb_4bit_quant_type bnb_4bit_use_double_quant bnb_4bit_compute_dtype
bnb_4bit_quant_storage llm_int8_skip_modules llm_int8_threshold llm_int8_enable_fp32_cpu_offload
llm_int8_has_fp16_weight _load_in_4bit _load_in_8bit
"""


def packed_settings(published: Mapping[str, Any], file: str) -> PackedSettings | None:
    """What a parsed config.json says of packed weights; None: they are plain. Raises UserError for a method, or a
    layout, that is not read, and for two that are named at once."""
    readers: tuple[Callable[[Mapping[str, Any], str], PackedSettings | None], ...] = (
        grouped_settings, mlx_settings, scaled_settings, _bitsandbytes,
    )  # fmt: skip
    found = next((one for read in readers if (one := read(published, file)) is not None), None)
    if found is None:
        refuse_quantised(published, file)
    return found


def unread_packed(published: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys about packed weights that nothing here knows."""
    said = published.get(QUANTISATION)
    if isinstance(said, Mapping) and said.get("quant_method") == BITSANDBYTES:
        return tuple(f"{QUANTISATION}.{key}" for key in said if key not in _BITSANDBYTES_KEYS.split())
    return (*unread_grouped(published), *unread_scaled(published))


def with_files_beside(folder: Path, published: Mapping[str, Any]) -> Mapping[str, Any]:
    """config.json with what another file beside it says of packed weights. Raises UserError as
    ``with_file_beside``."""
    file = folder / MODELOPT_FILE
    if file.is_file() and not published.get(QUANTISATION) and not published.get(STORED_KEY):
        said = read_json(file).get("quantization")
        if not isinstance(said, dict):
            raise UserError(f"{file} has quantization={shown(said)}, which must be an object. {UNQUANTISED}.")
        published = {**published, QUANTISATION: {"quant_method": "modelopt", **said}}
    return with_file_beside(folder, published)


def _bitsandbytes(published: Mapping[str, Any], file: str) -> str | None:
    said = published.get(QUANTISATION)
    if not isinstance(said, Mapping) or said.get("quant_method") != BITSANDBYTES:
        return None
    for key in ("load_in_4bit", "load_in_8bit"):
        if not isinstance(said.get(key, False), bool):
            raise UserError(
                f"{file} has {BITSANDBYTES} weights with {key}={shown(said[key])} in {QUANTISATION}, which must be "
                f"true or false. {UNQUANTISED}."
            )
    if not (said.get("load_in_4bit") or said.get("load_in_8bit")):
        raise UserError(
            f"{file} has {BITSANDBYTES} weights in {QUANTISATION}, and neither load_in_4bit nor load_in_8bit is true. "
            f"{UNQUANTISED}."
        )
    return BITSANDBYTES
