"""What config.json says of weights that compressed-tensors, ModelOpt or transformers' float8 have written.

Words and defaults are those of compressed-tensors 0.20 (its classes QuantizationConfig and QuantizationArgs), of
ModelOpt's ``hf_quant_config.json`` and of transformers' FineGrainedFP8Config. Only weights are packed here: what a file
says of activations and of the cache is told, and not done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dllm.common.coerce import is_whole
from dllm.errors import UserError
from dllm.models.expressions import RULE, expression
from dllm.models.keys import printed, shown
from dllm.models.prequantized import QUANTISATION, UNQUANTISED

OLDER_KEY = "compression_config"  # of compressed-tensors
COMPRESSED_TENSORS = "compressed-tensors"
SCALED_METHODS = (COMPRESSED_TENSORS, "modelopt", "fp8")
_ALL = "re:"  # names every module
_WHOLE = 1 << 62  # rows or columns of a block that is the whole tensor


@dataclass(frozen=True)
class Scheme:
    """How the weights of some modules are packed."""

    called: str  # what people call it: FP8, INT8, INT4, NVFP4, MXFP4
    codes: str  # of its numbers, see ``dllm.models.codes``
    block: tuple[int, int]  # rows and columns that share a scale
    weight: str = "weight"  # the leaf that holds the codes
    scale: str = "weight_scale"  # the leaf that holds the scales
    scale_codes: str = (
        ""  # of scales that must be bytes; empty: they are floats, or bytes whose kind says what they are
    )
    symmetric: bool = True  # no zeros
    overall: str = ""  # the leaf of a number that all scales have in common; empty: none
    divided: bool = False  # scales are divided by it, not weights multiplied

    @property
    def in_words(self) -> bool:
        """Whether its codes are in words of 32 bits."""
        return self.codes.startswith("uint")


@dataclass(frozen=True)
class ScaledSettings:
    """What a config says of packed weights."""

    method: str  # compressed-tensors, modelopt or fp8
    schemes: Mapping[str, Scheme]  # by a module's name, ``re:`` and an expression, or a class of modules
    ignored: tuple[str, ...] = ()  # modules that are plain, told in the same ways
    notes: tuple[str, ...] = ()  # sentences about what is said and not done

    def scheme_of(self, module: str) -> Scheme:
        """Of a module that has scales. Raises UserError for one that is said to be plain, and where none is said."""
        if any(_match(one, module) for one in self.ignored):
            raise UserError(f"{QUANTISATION} has {printed(module)} in ignore, and the weights have scales for it. "
                            f"{UNQUANTISED}.")  # fmt: skip
        found = [(match, target) for target in self.schemes if (match := _match(target, module))]
        if not found:
            raise UserError(f"{QUANTISATION} names no group for {printed(module)}, which has scales. {UNQUANTISED}.")
        return self.schemes[min(found)[1]]


def _match(target: str, module: str) -> int:
    """How a target names a module, the first that counts: 1 by its name, 2 by an expression, 3 by its class, 4 by the
    end of its name; 0: it does not. Equal ones count by the alphabet (compressed-tensors' match_targets, which
    knows the first three). A linear layer is any that has scales but an embedding."""
    if target.startswith("re:"):
        return 2 if expression(target[3:]).matches(module) else 0
    if target in ("Linear", "Embedding"):
        return 3 if module.endswith(("embed_tokens", "word_embeddings", "wte")) == (target == "Embedding") else 0
    return 1 if module in (target, f"model.{target}") else 4 if module.endswith(f".{target}") else 0


def _float8(block: tuple[int, int]) -> Scheme:
    return Scheme("FP8", "e4m3", block)


_TENSOR, _CHANNEL = (_WHOLE, _WHOLE), (1, _WHOLE)
_NVFP4 = Scheme("NVFP4", "e2m1", (1, 16), "weight_packed", scale_codes="e4m3", overall="weight_global_scale",
                divided=True)  # fmt: skip
_MXFP4 = Scheme("MXFP4", "e2m1", (1, 32), "weight_packed", scale_codes="e8m0")
_MXFP8 = Scheme("MXFP8", "e4m3", (1, 32), scale_codes="e8m0")
_FIXED = {"nvfp4-pack-quantized": _NVFP4, "mxfp4-pack-quantized": _MXFP4, "mxfp8-quantized": _MXFP8}
# By the words that a config may have in the place of a group: num_bits, type and strategy, or the scheme.
_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "W8A16": {"num_bits": 8, "strategy": "channel"}, "W4A16": {"group_size": 128},
    "W4A16_ASYM": {"group_size": 128, "symmetric": False}, "W4A8": {"group_size": 128}, "W4AFP8": {"group_size": 128},
    "W8A8": {"num_bits": 8, "strategy": "channel"}, "INT8": {"num_bits": 8, "strategy": "channel"},
    "FP8": {"type": "float", "num_bits": 8, "strategy": "tensor"},
    "FP8_DYNAMIC": {"type": "float", "num_bits": 8, "strategy": "channel"},
    "FP8_BLOCK": {"type": "float", "num_bits": 8, "strategy": "block", "block_structure": [128, 128]},
    **{name: {"type": "float", "strategy": "tensor_group", "group_size": 16} for name in ("NVFP4", "NVFP4A16")},
    **{name: {"type": "float", "strategy": "group", "group_size": 32} for name in ("MXFP4", "MXFP4A16")},
    **{name: {"type": "float", "num_bits": 8, "group_size": 32} for name in ("MXFP8", "MXFP8A16")},
}  # fmt: skip
_ACTIVATIONS = ("activations stay in full precision, though config.json says how they are quantised: answers may "
                "differ from those of programs that do it")  # fmt: skip
_CACHE = "keys and values stay in full precision, though config.json says how they are quantised"
_KNOWN: Mapping[str, str] = {
    COMPRESSED_TENSORS: """quant_method format quantization_status ignore kv_cache_scheme config_groups version
                global_compression_ratio sparsity_config transform_config""",
    "modelopt": """quant_method quant_algo kv_cache_quant_algo group_size exclude_modules ignore producer config_groups
                has_zero_point pre_quant_scale kv_cache_scheme""",
    "fp8": """quant_method activation_scheme fmt weight_block_size modules_to_not_convert scale_fmt dequantize
           ignored_layers""",
}


def scaled_settings(published: Mapping[str, Any], file: str) -> ScaledSettings | None:
    """What a parsed config.json says of such weights; None: nothing, or another method. Raises UserError for a layout
    that is not read."""
    key, said = _said(published)
    if said is None:
        return None
    place = _Place(file, key, str(said.get("quant_method", COMPRESSED_TENSORS)))
    return {COMPRESSED_TENSORS: _compressed, "modelopt": _modelopt, "fp8": _fine_grained}[place.method](said, place)


def unread_scaled(published: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys about such weights that nothing here knows."""
    key, said = _said(published)
    known = _KNOWN[said.get("quant_method", COMPRESSED_TENSORS)].split() if said else []
    return tuple(f"{key}.{one}" for one, value in (said or {}).items() if value is not None and one not in known)


def _said(published: Mapping[str, Any]) -> tuple[str, Mapping[str, Any] | None]:
    for key in (QUANTISATION, OLDER_KEY):
        said = published.get(key)
        if (
            isinstance(said, Mapping)
            and said.get("quant_method", COMPRESSED_TENSORS if key == OLDER_KEY else "") in SCALED_METHODS
        ):
            return key, said
    return QUANTISATION, None


@dataclass(frozen=True)
class _Place:
    """Where something is said, for messages."""

    file: str  # that says it
    key: str  # of the file, under which it is
    method: str  # whose words it has

    def refused(self, what: str, value: Any, rule: str) -> UserError:
        return UserError(f"{self.file} has {self.method} weights with {what}={shown(value)} in {self.key}, which must "
                         f"be {rule} to be read. {UNQUANTISED}.")  # fmt: skip


def _compressed(said: Mapping[str, Any], place: _Place) -> ScaledSettings:
    groups = said.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise place.refused("config_groups", groups, "an object of groups")
    sparse = said.get("sparsity_config")
    if sparse and (not isinstance(sparse, Mapping) or sparse.get("format", "dense") != "dense"):
        raise place.refused("sparsity_config", sparse, "absent or dense")
    if said.get("transform_config"):
        raise place.refused("transform_config", said["transform_config"], "absent")
    ignored = _texts(said.get("ignore"), "ignore", place)
    schemes, notes = dict[str, Scheme](), dict[str, None]()
    for name, group in groups.items():
        if not isinstance(group, Mapping):  # a preset's name, and what it is for
            if name not in _PRESETS:
                raise place.refused(
                    "config_groups." + printed(name), group, f"a group, or one of {', '.join(_PRESETS)}"
                )
            group = {"targets": group, "weights": _PRESETS[name]}
            notes |= {} if name.endswith("A16") else {_ACTIVATIONS: None}
        notes |= {_ACTIVATIONS: None} if group.get("input_activations") or group.get("output_activations") else {}
        if group.get("weights") is not None:
            kind = group.get("format") or said.get("format")
            targets = _texts(group.get("targets"), f"{printed(name)}.targets", place)
            schemes |= dict.fromkeys(targets, _scheme(group["weights"], kind, place))
    if said.get("kv_cache_scheme"):
        notes[_CACHE] = None
    return ScaledSettings(place.method, schemes, ignored, tuple(f"{one}." for one in notes))


def _texts(value: Any, key: str, place: _Place) -> tuple[str, ...]:
    value = [] if value is None else value
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise place.refused(key, value, "a list of names")
    for one in value:
        if one.startswith("re:"):
            try:
                expression(one[3:])
            except UserError:
                raise place.refused(key, one, f"{RULE}, behind re:") from None
    return tuple(value)


def _scheme(weights: Any, kind: Any, place: _Place) -> Scheme:
    """The scheme of a group's ``weights`` in the format ``kind``."""
    if not isinstance(weights, Mapping):
        raise place.refused("weights", weights, "an object")
    bits, floats = weights.get("num_bits", 4), weights.get("type", "int") == "float"
    symmetric = weights.get("symmetric", True)
    if not isinstance(symmetric, bool):
        raise place.refused("symmetric", symmetric, "true or false")
    if weights.get("actorder") == "group":
        raise place.refused("actorder", "group", "null, 'weight' or 'static'")
    if isinstance(kind, str) and kind in _FIXED:
        return _FIXED[kind]
    if kind not in ("float-quantized", "int-quantized", "naive-quantized", "pack-quantized"):
        known = ", ".join(("float-quantized", "int-quantized", "naive-quantized", "pack-quantized", *_FIXED))
        raise place.refused("format", kind, f"{known}, or mixed-precision with a format for each group")
    if not is_whole(bits) or not 1 <= bits <= 8 or (bits != 8 and kind != "pack-quantized"):
        raise place.refused("num_bits", bits, "1 to 8" if kind == "pack-quantized" else "8")
    block = _block(weights, place)
    if kind == "pack-quantized":
        if floats or block[0] not in (1, _WHOLE):
            raise place.refused("type" if floats else "strategy", "float" if floats else "block", "int" if floats else
                                "group or channel")  # fmt: skip
        return Scheme(f"INT{bits}", f"uint{bits}", (1, block[1]), "weight_packed", symmetric=symmetric)
    return _float8(block) if floats else Scheme("INT8", "int8", block, symmetric=symmetric)


def _block(weights: Mapping[str, Any], place: _Place) -> tuple[int, int]:
    """Rows and columns that share a scale."""
    group, strategy = weights.get("group_size"), weights.get("strategy")
    if strategy is None:
        strategy = "tensor" if group is None else "channel" if group == -1 else "group"
    if strategy == "block":
        return _rows_and_columns(weights.get("block_structure"), "block_structure", place)
    if strategy == "group":
        if group is None or not is_whole(group) or group < 1:
            raise place.refused("group_size", group, "a number of columns")
        return 1, int(group)
    if strategy not in ("tensor", "channel"):
        raise place.refused("strategy", strategy, "tensor, channel, group or block")
    return _TENSOR if strategy == "tensor" else _CHANNEL


def _rows_and_columns(value: Any, key: str, place: _Place) -> tuple[int, int]:
    given = value.split("x") if isinstance(value, str) else value
    try:
        rows, columns = map(int, given)
    except (TypeError, ValueError):
        rows = columns = 0
    if rows < 1 or columns < 1:
        raise place.refused(key, value, "two numbers, of rows and columns")
    return rows, columns


def _modelopt(said: Mapping[str, Any], place: _Place) -> ScaledSettings:
    width, kind = said.get("group_size"), said.get("quant_algo")
    schemes = {
        "NVFP4": Scheme("NVFP4", "e2m1", (1, 16), scale_codes="e4m3", overall="weight_scale_2"),
        "FP8": _float8(_TENSOR),
    }
    if not isinstance(kind, str) or kind not in schemes:
        raise place.refused("quant_algo", kind, " or ".join(schemes))
    if kind == "NVFP4" and width not in (None, 16):
        raise place.refused("group_size", width, "16")
    notes = [f"{_ACTIVATIONS}."]
    if said.get("kv_cache_quant_algo") or said.get("kv_cache_scheme"):
        notes.append(f"{_CACHE}.")
    # The modules that it excludes are told with wildcards; they are those without scales.
    return ScaledSettings(place.method, {_ALL: schemes[kind]}, (), tuple(notes))


def _fine_grained(said: Mapping[str, Any], place: _Place) -> ScaledSettings:
    if said.get("fmt") not in (None, "e4m3"):
        raise place.refused("fmt", said["fmt"], "e4m3")
    size = said.get("weight_block_size", [128, 128])
    block = _TENSOR if size is None else _rows_and_columns(size, "weight_block_size", place)
    if said.get("scale_fmt") not in (None, "float", "ue8m0"):
        raise place.refused("scale_fmt", said["scale_fmt"], "float or ue8m0")
    # DeepSeek V3.1 stores the powers of two of ue8m0 as float32, V4 as bytes: their tensors tell.
    powers = "float or e8m0" if said.get("scale_fmt") == "ue8m0" else ""
    scheme = Scheme("FP8", "e4m3", block, scale="weight_scale_inv", scale_codes=powers)
    return ScaledSettings(place.method, {_ALL: scheme}, (), (f"{_ACTIVATIONS}.",))
