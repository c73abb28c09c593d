"""What config.json says of weights that compressed-tensors, ModelOpt or transformers' float8 have written.

Words and defaults are those of compressed-tensors 0.20 (its classes QuantizationConfig and QuantizationArgs), of
ModelOpt's ``hf_quant_config.json`` and of transformers' FineGrainedFP8Config. Only weights are packed here: what a file
says of activations and of the cache is reported, and not applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dllm.common.coerce import is_whole
from dllm.common.errors import UserError
from dllm.models.formats.affine import WHOLE_AXIS, Scheme
from dllm.models.formats.expressions import RULE, expression
from dllm.models.formats.layouts import EVERY_MODULE, PackedPlace, PackedSettings
from dllm.models.formats.prequantized import QUANTISATION
from dllm.models.keys import REQUIRED, KeyRule, KeyRules, integer, only, printed

OLDER_KEY = "compression_config"  # of compressed-tensors
COMPRESSED_TENSORS = "compressed-tensors"


def _float8(block: tuple[int, int]) -> Scheme:
    return Scheme("FP8", "e4m3", block)


_TENSOR, _CHANNEL = (WHOLE_AXIS, WHOLE_AXIS), (1, WHOLE_AXIS)
_NVFP4 = Scheme(
    "NVFP4", "e2m1", (1, 16), "weight_packed", scale_codes="e4m3", overall="weight_global_scale", divided=True
)
_MXFP4 = Scheme("MXFP4", "e2m1", (1, 32), "weight_packed", scale_codes="e8m0")
_MXFP8 = Scheme("MXFP8", "e4m3", (1, 32), scale_codes="e8m0")
_FIXED = {"nvfp4-pack-quantized": _NVFP4, "mxfp4-pack-quantized": _MXFP4, "mxfp8-quantized": _MXFP8}
_PACKED = "pack-quantized"
# By the words that a config may have instead of a group: num_bits, type and strategy, or the scheme.
_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "W8A16": {"num_bits": 8, "strategy": "channel"},
    "W4A16": {"group_size": 128},
    "W4A16_ASYM": {"group_size": 128, "symmetric": False},
    "W4A8": {"group_size": 128},
    "W4AFP8": {"group_size": 128},
    "W8A8": {"num_bits": 8, "strategy": "channel"},
    "INT8": {"num_bits": 8, "strategy": "channel"},
    "FP8": {"type": "float", "num_bits": 8, "strategy": "tensor"},
    "FP8_DYNAMIC": {"type": "float", "num_bits": 8, "strategy": "channel"},
    "FP8_BLOCK": {"type": "float", "num_bits": 8, "strategy": "block", "block_structure": [128, 128]},
    **{name: {"type": "float", "strategy": "tensor_group", "group_size": 16} for name in ("NVFP4", "NVFP4A16")},
    **{name: {"type": "float", "strategy": "group", "group_size": 32} for name in ("MXFP4", "MXFP4A16")},
    **{name: {"type": "float", "num_bits": 8, "group_size": 32} for name in ("MXFP8", "MXFP8A16")},
}
_ACTIVATIONS = (
    "activations stay in full precision, though config.json says how they are quantised: answers may "
    "differ from those of programs that do it"
)
_CACHE = "keys and values stay in full precision, though config.json says how they are quantised"


def _names(value: Any) -> bool:
    """Whether it is a list of names, and of expressions after ``re:``."""
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        return False
    try:
        return all(expression(text[3:]) for text in value if text.startswith("re:"))
    except UserError:
        return False


def _blocks(value: Any) -> bool:
    return min(_rows_and_columns(value)) > 0


def _rows_and_columns(value: Any) -> tuple[int, int]:
    """Of a block, as a list or as ``128x128``; (0, 0): it is neither."""
    try:
        rows, columns = map(int, value.split("x") if isinstance(value, str) else value)
    except (TypeError, ValueError):
        return 0, 0
    return rows, columns


_ANY = KeyRule("anything", lambda value: True)
_TARGETS = KeyRule(f"a list of names, in which re: begins {RULE},", _names, [])
_BLOCK = KeyRule("two numbers, of rows and columns,", _blocks)
SCALED_KEYS: Mapping[str, KeyRules] = {
    COMPRESSED_TENSORS: {
        "config_groups": KeyRule(
            "an object of groups", lambda value: isinstance(value, Mapping) and bool(value), REQUIRED
        ),
        "sparsity_config": KeyRule(
            "absent or dense",
            lambda value: not value or (isinstance(value, Mapping) and value.get("format", "dense") == "dense"),
        ),
        "transform_config": KeyRule("absent", lambda value: not value),
        "ignore": _TARGETS,
        "format": _ANY,
        "kv_cache_scheme": _ANY,
    },
    "modelopt": {
        "quant_algo": only("NVFP4", "FP8", default=REQUIRED),
        "group_size": _ANY,
        "kv_cache_quant_algo": _ANY,
        "kv_cache_scheme": _ANY,
    },
    "fp8": {
        "fmt": only("e4m3"),
        "weight_block_size": KeyRule(_BLOCK.rule, _BLOCK.fits, [128, 128], null=None),
        "scale_fmt": only("float", "ue8m0"),
    },
}
_WEIGHTS: KeyRules = {
    "symmetric": KeyRule("true or false", lambda value: isinstance(value, bool), True, null=REQUIRED),
    "actorder": KeyRule("null, 'weight' or 'static'", lambda value: value != "group"),
}
_SIZES: KeyRules = {  # of formats that do not say them themselves
    "num_bits": integer(1, 8, 4),
    "type": only("int", "float", default="int"),
    "strategy": only("tensor", "channel", "group", "block"),
    "group_size": _ANY,
    "block_structure": _BLOCK,
}


def scaled_settings(published: Mapping[str, Any], file: str) -> PackedSettings | None:
    """What a parsed config.json says of such weights; None: nothing. Raises UserError for a layout that is not read."""
    key, content = scale_settings(published)
    if content is None:
        return None
    place = PackedPlace(file, key, str(content.get("quant_method", COMPRESSED_TENSORS)))
    values = place.read(SCALED_KEYS[place.method], content)
    parse = {COMPRESSED_TENSORS: _compressed, "modelopt": _modelopt, "fp8": _fine_grained}[place.method]
    schemes, notes = parse(values, place)
    if values.get("kv_cache_scheme") or values.get("kv_cache_quant_algo"):
        notes = (*notes, _CACHE)
    return PackedSettings(
        place.method,
        f"{QUANTISATION} says {place.method}",
        schemes,
        tuple(values.get("ignore", ())),
        tuple(f"{note}." for note in notes),
    )


def scale_settings(published: Mapping[str, Any]) -> tuple[str, Mapping[str, Any] | None]:
    """The key of the file and its value; None: the file has none."""
    for key, usual in ((QUANTISATION, ""), (OLDER_KEY, COMPRESSED_TENSORS)):
        content = published.get(key)
        method = content.get("quant_method", usual) if isinstance(content, Mapping) else None
        if isinstance(content, Mapping) and isinstance(method, str) and method in SCALED_KEYS:
            return key, content
    return QUANTISATION, None


def _compressed(values: Mapping[str, Any], place: PackedPlace) -> tuple[Mapping[str, Scheme], tuple[str, ...]]:
    schemes, notes = dict[str, Scheme](), dict[str, None]()
    for name, group in values["config_groups"].items():
        if not isinstance(group, Mapping):  # a preset's name, and what it is for
            if name not in _PRESETS:
                rule = f"a group, or one of {', '.join(_PRESETS)},"
                raise place.wrong("config_groups." + printed(name), group, rule)
            notes |= {} if name.endswith("A16") else {_ACTIVATIONS: None}
            group = {"targets": group, "weights": _PRESETS[name]}
        notes |= {_ACTIVATIONS: None} if group.get("input_activations") or group.get("output_activations") else {}
        if group.get("weights") is not None:
            key = f"{printed(name)}.targets"
            targets = place.read({key: _TARGETS}, {key: group.get("targets")})[key]
            kind = group.get("format") or values["format"]
            schemes |= dict.fromkeys(targets, _scheme(group["weights"], kind, place))
    return schemes, tuple(notes)


def _scheme(weights: Any, kind: Any, place: PackedPlace) -> Scheme:
    """The scheme of a group's ``weights`` in the format ``kind``."""
    if not isinstance(weights, Mapping):
        raise place.wrong("weights", weights, "an object")
    zeros = "" if place.read(_WEIGHTS, weights)["symmetric"] else "weight_zero_point"
    if isinstance(kind, str) and kind in _FIXED:
        return _FIXED[kind]
    formats, packed = ("float-quantized", "int-quantized", "naive-quantized", _PACKED), kind == _PACKED
    if kind not in formats:
        raise place.wrong("format", kind, f"{', '.join((*formats, *_FIXED))}, or mixed-precision with one for groups,")
    values = place.read(_SIZES, weights)
    bits, floats, block = values["num_bits"], values["type"] == "float", _block(values, place)
    if bits != 8 and not packed:  # noqa: PLR2004
        raise place.wrong("num_bits", bits, "8")
    if not packed:
        return _float8(block) if floats else Scheme("INT8", "int8", block, zeros=zeros)
    if floats or block[0] not in (1, WHOLE_AXIS):
        raise place.wrong(
            "type" if floats else "strategy", "float" if floats else "block", "int" if floats else "group or channel"
        )
    return Scheme(f"INT{bits}", f"uint{bits}", (1, block[1]), "weight_packed", zeros=zeros)


def _block(values: Mapping[str, Any], place: PackedPlace) -> tuple[int, int]:
    """Rows and columns that share a scale."""
    group, strategy = values["group_size"], values["strategy"]
    if strategy is None:
        strategy = "tensor" if group is None else "channel" if group == -1 else "group"
    if strategy == "block":
        if values["block_structure"] is None:
            raise place.wrong("block_structure", None, _BLOCK.rule)
        return _rows_and_columns(values["block_structure"])
    if strategy == "group":
        if group is None or not is_whole(group) or group < 1:
            raise place.wrong("group_size", group, "a number of columns")
        return 1, int(group)
    return _TENSOR if strategy == "tensor" else _CHANNEL


def _modelopt(values: Mapping[str, Any], place: PackedPlace) -> tuple[Mapping[str, Scheme], tuple[str, ...]]:
    schemes = {
        "NVFP4": Scheme("NVFP4", "e2m1", (1, 16), scale_codes="e4m3", overall="weight_scale_2"),
        "FP8": _float8(_TENSOR),
    }
    kind = values["quant_algo"]
    if kind == "NVFP4" and values["group_size"] not in (None, 16):
        raise place.wrong("group_size", values["group_size"], "16")
    # The modules that it excludes are given with wildcards; they are those without scales.
    return {EVERY_MODULE: schemes[kind]}, (_ACTIVATIONS,)


def _fine_grained(values: Mapping[str, Any], place: PackedPlace) -> tuple[Mapping[str, Scheme], tuple[str, ...]]:
    size = values["weight_block_size"]
    block = _TENSOR if size is None else _rows_and_columns(size)
    # DeepSeek V3.1 stores the powers of two of ue8m0 as float32, V4 as bytes: their tensors tell.
    powers = "float or e8m0" if values["scale_fmt"] == "ue8m0" else ""
    return {EVERY_MODULE: Scheme("FP8", "e4m3", block, scale="weight_scale_inv", scale_codes=powers)}, (_ACTIVATIONS,)
