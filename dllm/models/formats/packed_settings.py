"""What config.json, or an older file beside it, says of weights that another program has packed.

Words and defaults are those of their writers: AutoGPTQ, GPTQModel, AutoRound, AutoAWQ, and ``GPTQConfig`` and
``AwqConfig`` of transformers 5.23; mlx_lm 0.32 (its function quantize_model). A key is read, or may only have the value
that changes nothing; ``task=check`` names all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dllm.common.coerce import is_whole
from dllm.common.errors import Refusal
from dllm.models.formats.affine import WHOLE_AXIS, Scheme
from dllm.models.formats.layouts import EVERY_MODULE, PackedPlace, PackedSettings
from dllm.models.formats.prequantized import QUANTISATION, STORED_KEY, UNQUANTISED, refuse_quantised
from dllm.models.formats.scaled_settings import SCALED_KEYS, scale_settings, scaled_settings
from dllm.models.keys import REQUIRED, KeyRule, KeyRules, only, printed, quote
from dllm.models.weights.files import mismatched, read_json

BITSANDBYTES, MLX_KEY = "bitsandbytes", "quantization"
MODELOPT_FILE = "hf_quant_config.json"  # what ModelOpt writes beside a config.json without quantisation
PACKING_METHODS = ("gptq", "awq")
# What AutoGPTQ and AutoAWQ wrote before transformers kept it in config.json, and the method that it stands for where
# the file names none. GPTQModel writes the first still, beside config.json.
BESIDE = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
# Keys of one meaning, the one that messages name first. transformers 5 calls the second its legacy field.
_SPELLINGS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "gptq": {
        "bits": ("bits", "w_bit"),
        "group_size": ("group_size", "q_group_size"),
        "checkpoint_format": ("checkpoint_format", "format"),
    },
    "awq": {
        "bits": ("bits", "w_bit"),
        "group_size": ("group_size", "q_group_size"),
        "version": ("version", "format", "checkpoint_format"),
    },
}
_FLAG = KeyRule("true or false", lambda value: isinstance(value, bool))
_ABSENT = KeyRule("null", lambda value: not value)


def _leaves_out(value: Any) -> bool:
    """Whether rules by module only leave modules out: GPTQModel's by names that begin with ``-:``, AutoRound's by bits
    that are not fewer than the plain ones."""
    return not value or (
        isinstance(value, Mapping)
        and all(
            str(name).startswith("-:")
            or (isinstance(setting, Mapping) and is_whole(setting.get("bits")) and setting["bits"] >= 16)
            for name, setting in value.items()
        )
    )


_BOTH: KeyRules = {
    "group_size": KeyRule(
        "-1 or a number of columns from 8 on", lambda value: is_whole(value) and (value == -1 or value > 7), REQUIRED
    ),
    "desc_act": _FLAG,
    "sym": _FLAG,
    "static_groups": _FLAG,
    "rotation": _ABSENT,
    "adapter": _ABSENT,
    "super_bits": _ABSENT,
    "super_group_size": _ABSENT,
    "pack_dtype": only("int32"),
    "data_type": only("int"),
    "act_bits": KeyRule("16 or more", lambda value: is_whole(value) and value >= 16),
    "is_marlin_format": KeyRule("false", lambda value: not value),
    "dynamic": KeyRule("rules that leave modules out ('-:...')", _leaves_out),
    "extra_config": KeyRule("rules that leave modules out (16 bits)", _leaves_out),
}
_GROUPED: Mapping[str, KeyRules] = {
    "gptq": {
        "bits": only(4, 8, default=REQUIRED),
        "checkpoint_format": only("gptq", "gptq_v2", any_case=True),
        **_BOTH,
    },
    "awq": {
        "bits": only(4, default=REQUIRED),
        "zero_point": only(True),
        "version": only("gemm", any_case=True),
        "backend": KeyRule("another than 'llm-awq'", lambda value: _lower(value) not in ("llm-awq", "llm_awq")),
        **_BOTH,
        "desc_act": only(False),
    },
}
_IN_BITS: KeyRules = {
    key: KeyRule("true or false", _FLAG.fits, False, null=REQUIRED) for key in ("load_in_4bit", "load_in_8bit")
}
BNB_INT8 = Scheme("INT8", "int8", (1, WHOLE_AXIS), scale="SCB", steps_per_unit=127.0)
_AFFINE_BITS, _AFFINE_GROUPS = (2, 3, 4, 5, 6, 8), (32, 64, 128)
_MLX_USUAL = {"affine": (4, 64), "mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}  # bits and columns, by mode
_MLX_CODES = {"mxfp4": ("e2m1", "e8m0"), "mxfp8": ("e4m3", "e8m0"), "nvfp4": ("e2m1", "e4m3")}  # and of scales


def _mlx_scheme(mode: str, bits: int, group: int) -> Scheme:
    if mode == "affine":
        return Scheme(f"MLX {bits}-bit", f"uint{bits}", (1, group), scale="scales", offsets="biases")
    codes, scale_codes = _MLX_CODES[mode]
    return Scheme(f"MLX {mode}", codes, (1, group), scale="scales", scale_codes=scale_codes)


MLX_SCHEMES = (
    *(_mlx_scheme("affine", bits, group) for bits in _AFFINE_BITS for group in _AFFINE_GROUPS),
    *(_mlx_scheme(mode, *_MLX_USUAL[mode]) for mode in _MLX_CODES),
)


def packed_settings(published: Mapping[str, Any], file: str) -> PackedSettings | None:
    """What a parsed config.json says of packed weights; None: they are plain. Raises UserError for a method, or a
    layout, that is not read, and for two that are named at once."""
    content = published.get(QUANTISATION)
    method = content.get("quant_method") if isinstance(content, Mapping) else None
    if isinstance(content, Mapping) and method in PACKING_METHODS:
        return _grouped(content, PackedPlace(file, QUANTISATION, method))
    mlx = published.get(MLX_KEY)
    if isinstance(mlx, Mapping) and {"bits", "group_size", "mode"} & mlx.keys() and not mlx.get("quant_method"):
        if method:
            raise Refusal(
                f"{file} has {MLX_KEY} as MLX writes it, and {QUANTISATION}.quant_method={quote(method)}: "
                f"they contradict each other. {UNQUANTISED}."
            )
        return _mlx(mlx, PackedPlace(file, MLX_KEY, "mlx"))
    if (scaled := scaled_settings(published, file)) is not None:
        return scaled
    if isinstance(content, Mapping) and method == BITSANDBYTES:
        place = PackedPlace(file, QUANTISATION, BITSANDBYTES)
        if not any(place.read(_IN_BITS, content).values()):
            raise Refusal(
                f"{file} has {BITSANDBYTES} weights in {QUANTISATION}, and neither load_in_4bit nor "
                f"load_in_8bit is true. {UNQUANTISED}."
            )
        return PackedSettings(BITSANDBYTES, f"{QUANTISATION} says {BITSANDBYTES}", {})
    refuse_quantised(published, file)
    return None


def packed_notes(published: Mapping[str, Any]) -> tuple[str, ...]:
    """A sentence about the keys of packed weights that are not read."""
    key, content = scale_settings(published)
    if content is None:
        key, content = QUANTISATION, published.get(QUANTISATION)
    method = content.get("quant_method", "compressed-tensors") if isinstance(content, Mapping) else None
    tables = {BITSANDBYTES: _IN_BITS, **_GROUPED, **SCALED_KEYS}
    if not isinstance(content, Mapping) or method not in tables:
        return ()
    spellings = [name for names in _SPELLINGS.get(method, {}).values() for name in names]
    keys_read = {"quant_method", *tables[method], *spellings}
    names = [printed(name) for name, value in content.items() if value is not None and name not in keys_read]
    return (f"{key} has keys that change nothing here, or are not known: {', '.join(names)}.",) if names else ()


def with_files_beside(folder: Path, published: Mapping[str, Any]) -> Mapping[str, Any]:
    """config.json with what another file beside it says of packed weights, where itself does not. Raises UserError
    where the two contradict each other, and as ``packed_settings`` with the file's name."""
    if published.get(STORED_KEY):
        return published
    file = folder / MODELOPT_FILE
    if file.is_file() and not published.get(QUANTISATION):
        content = read_json(file).get("quantization")
        if not isinstance(content, dict):
            raise Refusal(f"{file} has quantization={quote(content)}, which must be an object. {UNQUANTISED}.")
        published = {**published, QUANTISATION: {"quant_method": "modelopt", **content}}
    for name, method in BESIDE.items():
        settings = published.get(QUANTISATION)
        if not (folder / name).is_file() or not (settings is None or isinstance(settings, Mapping)):
            continue
        beside = {"quant_method": method, **read_json(folder / name)}
        refuse_quantised({QUANTISATION: beside}, name, PACKING_METHODS)
        packed_settings({QUANTISATION: beside}, name)
        settings = {key: value for key, value in (settings or {}).items() if value is not None}
        _refuse_contradiction(folder, name, settings, beside)
        published = {**published, QUANTISATION: {**beside, **settings}}
    return published


def _refuse_contradiction(folder: Path, name: str, settings: Mapping[str, Any], beside: Mapping[str, Any]) -> None:
    method = beside["quant_method"]
    spellings = _SPELLINGS[method] if settings.get("quant_method", method) == method else {}
    for key, names in {**{key: (key,) for key in ("quant_method", "desc_act", "sym")}, **spellings}.items():
        first, second = (
            next((content[name] for name in names if content.get(name) is not None), None)
            for content in (settings, beside)
        )
        if None not in (first, second) and _lower(first) != _lower(second):
            raise mismatched(
                f"{folder}: config.json has {key}={quote(first)} in {QUANTISATION}, and {name} has {quote(second)}",
                f"config.json and {name}",
            )


def _grouped(content: Mapping[str, Any], place: PackedPlace) -> PackedSettings:
    merged = dict(content)
    for key, names in _SPELLINGS[place.method].items():
        values_by_name = {name: content[name] for name in names if content.get(name) is not None}
        if len({quote(_lower(value)) for value in values_by_name.values()}) > 1:
            conflict = ", ".join(f"{name}={quote(value)}" for name, value in values_by_name.items())
            raise Refusal(f"{place.file} has {conflict} in {place.key}: they contradict each other. {UNQUANTISED}.")
        merged[key] = next(iter(values_by_name.values()), None)
    values = place.read(_GROUPED[place.method], merged)
    bits, group, gptq = values["bits"], values["group_size"], place.method == "gptq"
    label, block = f"{place.method.upper()} {bits}-bit", (1, WHOLE_AXIS if group == -1 else group)
    scheme = Scheme(label, f"uint{bits}", block, "qweight", "scales", zeros="qzeros")
    first = gptq and _lower(values["checkpoint_format"]) != "gptq_v2"
    ordered = bool(values["desc_act"]) and not values["static_groups"]
    return PackedSettings(
        place.method,
        f"{place.key} says {scheme.label}",
        {EVERY_MODULE: scheme},
        subtracted=int(first),
        symmetric=values["sym"] if gptq else False,
        ordered=ordered,
    )


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _mlx(content: Mapping[str, Any], place: PackedPlace) -> PackedSettings:
    usual, schemes, plain = _mlx_form(content, place), dict[str, Scheme](), list[str]()
    for path, entry in content.items():
        if path in ("bits", "group_size", "mode", "linear_class"):
            continue
        if isinstance(entry, Mapping):
            schemes[path] = _mlx_form(entry, PackedPlace(place.file, f"{place.key}.{printed(path)}", place.method))
        elif entry is True:
            schemes[path] = usual
        elif entry is False:
            plain.append(path)
        else:
            raise place.wrong(printed(path), entry, "a module's bits and group_size, or false,")
    return PackedSettings("mlx", f"{place.key} says {usual.label}", {EVERY_MODULE: usual, **schemes}, tuple(plain))


def _mlx_form(content: Mapping[str, Any], place: PackedPlace) -> Scheme:
    mode = place.read({"mode": only(*_MLX_USUAL)}, content)["mode"] or "affine"
    usual = dict(zip(("bits", "group_size"), _MLX_USUAL[mode], strict=True))
    choices = (_AFFINE_BITS, _AFFINE_GROUPS) if mode == "affine" else tuple((value,) for value in usual.values())
    rules = {key: only(*some, default=usual[key]) for key, some in zip(usual, choices, strict=True)}
    rules = {key: replace(rule, rule=f"{rule.rule} in mode {mode}", null=REQUIRED) for key, rule in rules.items()}
    values = place.read(rules, content)
    return _mlx_scheme(mode, values["bits"], values["group_size"])
