"""Checkpoints that are quantised: our own by version and kind, those of other programs refused by their method."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from dllm.common.coerce import is_whole
from dllm.common.errors import Refusal, UserError
from dllm.models.keys import printed, quote

UNQUANTISED = "Take the unquantised checkpoint, which int8, int4 or float8 narrows while it is loaded"
_AGAIN = "Quantise the checkpoint again by task=quantize"
STORED_KEY, STORED_KINDS = "dllm_quantization", ("int8", "int4")  # of ``task=quantize``
# Version 1 has embedding and head in bfloat16; in version 2 they are narrow, of the kind ``head``.
STORED_VERSIONS = (1, 2)
# config.json's objects that say so: transformers', MLX's, and the older one of compressed-tensors.
QUANTISATION = "quantization_config"
QUANTISED_KEYS = (QUANTISATION, "quantization", "compression_config")
# Tensors that are beside or instead of a weight: GPTQ, AWQ, MLX, float8, compressed-tensors, bitsandbytes, HQQ.
_LEAVES = (
    "qweight", "qzeros", "g_idx", "scales", "biases", "weight_scale", "weight_scale_inv", "weight_scale_2",
    "weight_packed", "weight_shape", "weight_global_scale", "SCB", "absmax", "nested_absmax", "quant_map", "W_q",
)  # fmt: skip


def refuse_quantised(published: Mapping[str, Any], file: str, but: Collection[str] = ()) -> None:
    """Raise UserError where a config says that its weights are quantised. but: methods that are read, where
    ``quantization_config`` names them."""
    for name in QUANTISED_KEYS:
        value = published.get(name)
        method = value.get("quant_method") if isinstance(value, Mapping) else None
        if not value or (name == QUANTISATION and method is not None and method in but):
            continue
        setting = f"{name}={quote(value)}" if method is None else f"{name}.quant_method={quote(method)}"
        raise Refusal(f"{file} has {setting}: quantised weights of other programs are not read. {UNQUANTISED}.")


def of_quantised(names: Iterable[str]) -> str:
    """A sentence where tensors are those of a quantised checkpoint; empty: they are not."""
    leaf_name = next((name for name in names if name.rpartition(".")[2] in _LEAVES), None)
    if leaf_name is None:
        return ""
    return f"tensor {printed(leaf_name)} is of quantised weights of another program, which are not read. {UNQUANTISED}"


def stored_kinds(published: Mapping[str, Any], file: str) -> tuple[str | None, str | None]:
    """The kinds in which ``task=quantize`` has written the layers, and embedding and head; None: they are plain. Raises
    UserError for what this version does not read."""
    value = published.get(STORED_KEY)
    if value is None:
        return None, None
    entry = dict(value) if isinstance(value, Mapping) else {}
    version = entry.get("version")
    if not is_whole(version) or version not in STORED_VERSIONS:
        raise UserError(
            f"{file} has {STORED_KEY}.version={quote(version)}, and this dllm reads versions "
            f"{' and '.join(map(str, STORED_VERSIONS))}. {_AGAIN}, or take the dllm that wrote it."
        )
    if other := [key for key in entry if key not in ("version", "kind", "head")[: version + 1]]:
        setting = f"{file} has {STORED_KEY}.{printed(other[0])}={quote(entry[other[0]])}"
        raise UserError(f"{setting}, which version {version} does not have. {_AGAIN}.")
    if other := [key for key in QUANTISED_KEYS if published.get(key)]:
        setting = f"{file} has both {STORED_KEY} and {other[0]}"
        raise UserError(f"{setting}: the weights are quantised by one of them. {_AGAIN}.")
    kinds = [entry.get("kind"), entry.get("head")]
    for key, kind in zip(("kind", "head")[:version], kinds, strict=False):
        if kind not in STORED_KINDS:
            setting = f"{file} has {STORED_KEY}.{key}={quote(kind)}"
            raise UserError(f"{setting}, which must be one of {', '.join(STORED_KINDS)}.")
    return str(kinds[0]), str(kinds[1]) if version == 2 else None


def kinds_entry(kind: str, head: str | None) -> Mapping[str, Any]:
    """What config.json says of weights in these kinds."""
    return {"version": 1, "kind": kind} if head is None else {"version": 2, "kind": kind, "head": head}
