"""What config.json, or an older file beside it, says of weights that GPTQ or AWQ has packed.

The words are those of their writers: AutoGPTQ, GPTQModel, AutoRound, AutoAWQ, and ``GPTQConfig`` and ``AwqConfig`` of
transformers 5.23. A key is read, or may only have the value that changes nothing, or tells how the weights were made;
any other is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dllm.common.coerce import is_whole
from dllm.errors import UserError
from dllm.models.files import mismatched, read_json
from dllm.models.keys import shown
from dllm.models.prequantized import QUANTISATION, STORED_KEY, UNQUANTISED, refuse_quantised

PACKING_METHODS = ("gptq", "awq")
# What AutoGPTQ and AutoAWQ wrote before transformers kept it in config.json, and the method that it stands for where
# the file names none. GPTQModel writes the first still, beside config.json.
BESIDE = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
# Keys of one meaning, the one that messages name first. transformers 5 calls the second its legacy field.
_SPELT: Mapping[str, dict[str, tuple[str, ...]]] = {
    "gptq": {"bits": ("bits", "w_bit"), "group_size": ("group_size", "q_group_size"),
             "checkpoint_format": ("checkpoint_format", "format")},
    "awq": {"bits": ("bits", "w_bit"), "group_size": ("group_size", "q_group_size"),
            "version": ("version", "format", "checkpoint_format")},
}  # fmt: skip
_Rule = tuple[str, Callable[[Any], bool]]  # continues "must be", and says whether a value is allowed


def _leaves_out(value: Any) -> bool:
    """Whether rules by module only leave modules out: GPTQModel's by names that begin with ``-:``, AutoRound's by bits
    that are not fewer than the plain ones."""
    return not value or (isinstance(value, Mapping) and all(
        str(name).startswith("-:") or (isinstance(one, Mapping) and is_whole(one.get("bits")) and one["bits"] >= 16)
        for name, one in value.items()
    ))  # fmt: skip


_WIDTHS: _Rule = ("-1 or a number of columns from 8 on", lambda value: is_whole(value) and (value == -1 or value > 7))
_FLAG: _Rule = ("true or false", lambda value: value is None or isinstance(value, bool))
_ABSENT: _Rule = ("null", lambda value: not value)
_BOTH: dict[str, _Rule] = {
    "group_size": _WIDTHS, "desc_act": _FLAG, "sym": _FLAG, "static_groups": _FLAG, "rotation": _ABSENT,
    "adapter": _ABSENT, "super_bits": _ABSENT, "super_group_size": _ABSENT,
    "pack_dtype": ("'int32'", lambda value: value in ("int32", None)),
    "data_type": ("'int'", lambda value: value in ("int", None)),
    "act_bits": ("16 or more", lambda value: value is None or (is_whole(value) and value >= 16)),
    "is_marlin_format": ("false", lambda value: not value),
    "dynamic": ("rules that leave modules out ('-:...')", _leaves_out),
    "extra_config": ("rules that leave modules out (16 bits)", _leaves_out),
}  # fmt: skip
_RULES: Mapping[str, dict[str, _Rule]] = {
    "gptq": {
        "bits": ("4 or 8", lambda value: is_whole(value) and value in (4, 8)),
        "checkpoint_format": ("'gptq' or 'gptq_v2'", lambda value: _lower(value) in ("gptq", "gptq_v2", None)),
        **_BOTH,
    },
    "awq": {
        "bits": ("4", lambda value: is_whole(value) and value == 4),
        "zero_point": ("true", lambda value: value in (True, None)),
        "version": ("'gemm'", lambda value: _lower(value) in ("gemm", None)),
        "backend": ("another than 'llm-awq'", lambda value: _lower(value) not in ("llm-awq", "llm_awq")),
        **_BOTH, "desc_act": ("false", lambda value: value in (False, None)),
    },
}  # fmt: skip
# How the weights were made, which of their modules are packed (their tensors show it), and what other programs do with
# them. AWQ's zeros are in its files whatever ``sym`` says.
_TOLD = """
quant_method method quantizer provider packing_format autoround_version meta tokenizer dataset damp_percent
damp_auto_increment
true_sequential act_group_aware hyb_act mse v2 v2_alpha gptaq failsafe lm_head modules_in_block_to_quantize
modules_to_not_convert modules_to_convert block_name_to_quantize to_quant_block_names quant_block_list
module_name_preceding_first_block model_name_or_path model_file_base_name model_seqlen max_input_length batch_size
pad_token_id cache_block_outputs use_cuda_fp16 use_exllama disable_exllama exllama_config exllama_version backend
pack_impl use_safetensors zero_point do_fuse fuse_max_seq_len modules_to_fuse enable_quanted_input
enable_minmax_tuning enable_norm_bias_tuning seqlen scale_dtype iters lr minmax_lr nsamples low_gpu_mem_usage
gradient_accumulate_steps amp supported_types act_group_size act_sym act_dynamic act_data_type
offload_to_disk offload_to_disk_path mock_quantization gc_mode wait_for_submodule_finalizers
auto_forward_data_parallel hessian vram_strategy parallel_packing uri true_sequential_act is_attention_quantized
"""
_READ = frozenset(_TOLD.split()) | {word for spelt in _SPELT.values() for words in spelt.values() for word in words}


@dataclass(frozen=True)
class GroupedSettings:
    """What a config says of packed weights."""

    method: str  # gptq or awq
    bits: int  # of a weight
    group: int  # columns with one scale; -1: all of an output
    subtracted: int  # from stored zeros, of each number of a word
    symmetric: bool | None = None  # every zero is the middle step; None: not said
    ordered: bool = False  # columns may be in any group, as g_idx alone says

    @property
    def kind(self) -> str:
        """What people call it."""
        return f"{self.method.upper()} {self.bits}-bit"

    @property
    def middle(self) -> int:
        """The step that is zero where weights are symmetric."""
        return int(2 ** (self.bits - 1))


def grouped_settings(published: Mapping[str, Any], file: str) -> GroupedSettings | None:
    """What a parsed config.json says of packed weights; None: nothing, or another method than these. Raises UserError
    for a layout that is not read."""
    said = published.get(QUANTISATION)
    method = said.get("quant_method") if isinstance(said, Mapping) else None
    if not isinstance(said, Mapping) or method not in PACKING_METHODS:
        return None
    given = {**said, **_by_one_name(said, method, file)}
    for key, (rule, fits) in _RULES[method].items():
        if not fits(given.get(key)):
            raise UserError(
                f"{file} has {method} weights with {key}={shown(given.get(key))} in {QUANTISATION}, which must be "
                f"{rule} to be read. {UNQUANTISED}."
            )
    first = method == "gptq" and _lower(given["checkpoint_format"]) != "gptq_v2"
    symmetric = given.get("sym") if method == "gptq" else False
    ordered = bool(given.get("desc_act")) and not given.get("static_groups")
    return GroupedSettings(method, given["bits"], given["group_size"], int(first), symmetric, ordered)


def _by_one_name(said: Mapping[str, Any], method: str, file: str) -> dict[str, Any]:
    """The values of keys that have several names, by the first. Raises UserError where two of them differ."""
    out: dict[str, Any] = {}
    for key, names in _SPELT[method].items():
        found = {name: said[name] for name in names if said.get(name) is not None}
        if len({shown(_lower(value)) for value in found.values()}) > 1:
            told = ", ".join(f"{name}={shown(value)}" for name, value in found.items())
            raise UserError(f"{file} has {told} in {QUANTISATION}: they contradict each other. {UNQUANTISED}.")
        out[key] = _first(said, names)
    return out


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def unread_grouped(published: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys about packed weights that nothing here knows."""
    said = published.get(QUANTISATION)
    if not isinstance(said, Mapping) or said.get("quant_method") not in PACKING_METHODS:
        return ()
    known = _READ | _RULES[said["quant_method"]].keys()
    return tuple(f"{QUANTISATION}.{key}" for key, value in said.items() if value is not None and key not in known)


def with_file_beside(folder: Path, published: Mapping[str, Any]) -> Mapping[str, Any]:
    """config.json with what an older file beside it says of packed weights, as far as itself does not. Raises UserError
    where the two contradict each other, and as ``grouped_settings`` with the file's name."""
    for name, method in BESIDE.items():
        if not (folder / name).is_file() or published.get(STORED_KEY):
            continue
        beside = {"quant_method": method, **read_json(folder / name)}
        own = published.get(QUANTISATION)
        if own is not None and not isinstance(own, Mapping):
            return published
        refuse_quantised({QUANTISATION: beside}, name, PACKING_METHODS)
        grouped_settings({QUANTISATION: beside}, name)
        own = {key: value for key, value in (own or {}).items() if value is not None}
        _refuse_contradiction(folder, name, own, beside)
        published = {**published, QUANTISATION: {**beside, **own}}
    return published


def _refuse_contradiction(folder: Path, name: str, own: Mapping[str, Any], beside: Mapping[str, Any]) -> None:
    method = beside["quant_method"]
    spelt = _SPELT.get(method, {}) if own.get("quant_method", method) == method else {}
    keys = {key: (key,) for key in ("quant_method", "desc_act", "sym")} | spelt
    for key, names in keys.items():
        first, second = (_first(one, names) for one in (own, beside))
        if None not in (first, second) and _lower(first) != _lower(second):
            raise mismatched(f"{folder}: config.json has {key}={shown(first)} in {QUANTISATION}, and {name} has "
                             f"{shown(second)}", f"config.json and {name}")  # fmt: skip


def _first(said: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((said[name] for name in names if said.get(name) is not None), None)
