"""The families that predict the next token, for rows of autoregressive models beside those of diffusion.

Keys and defaults are those of LlamaConfig, MistralConfig, Qwen2Config and Qwen3Config of transformers 5.23. They decode
from left to right alone (``experiment=ar``), to the tokens of transformers' greedy ``generate``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dllm.common.errors import UserError
from dllm.models.agreement import FILE, Values, agree
from dllm.models.families import NORMED, QWEN, Family, Fields
from dllm.models.keys import MAX_LAYERS, MAX_SIZE, KeyRules, allowed, boolean, integer, list_of, quote, size
from dllm.models.network.visibility import NextToken

_SLIDING = "sliding_attention"
_KINDS = list_of(f"a list of 'full_attention' and {_SLIDING!r}", lambda value: value in ("full_attention", _SLIDING))
_LLAMA_KEYS: KeyRules = {
    **QWEN,
    "num_key_value_heads": size(None),
    "max_position_embeddings": integer(1, MAX_SIZE, 2048),
    "attention_bias": boolean(),
    "mlp_bias": boolean(),
}
_MISTRAL_KEYS: KeyRules = {
    **QWEN,
    "num_key_value_heads": size(8, null=None),
    "max_position_embeddings": integer(1, MAX_SIZE, 131072),
    "sliding_window": integer(1, MAX_SIZE, 4096, null=None),
    "layer_types": allowed(),
}
_QWEN2_KEYS: KeyRules = {
    **QWEN,
    "use_sliding_window": boolean(),
    "sliding_window": integer(1, MAX_SIZE, 4096, null=None),
    "max_window_layers": integer(0, MAX_LAYERS, 28),
    "layer_types": _KINDS,
}
_QWEN3_KEYS: KeyRules = {**_QWEN2_KEYS, **NORMED, "head_dim": size(128, null=None), "attention_bias": boolean()}


@dataclass(frozen=True, eq=False)
class NextTokenFamily(Family):
    """A class of transformers that predicts the next token."""

    def fields(self, published: Mapping[str, Any], architecture: str) -> Fields:
        if published.get("mask_token_id") is not None:
            raise UserError(
                f"{FILE} has mask_token_id={quote(published['mask_token_id'])} under {architecture}, which predicts "
                "the next token and has no mask. If these weights were trained to fill masks, say as which family: "
                "model.family=A2DQwen3LMHeadModel, say. Else drop the key."
            )
        fields = super().fields(published, architecture)
        scaling = fields.get("scaling")
        if scaling is None or not scaling.by_length or fields["max_length"] == scaling.trained:
            return fields
        return {
            **fields,
            "max_length": scaling.trained,
            "unsaid": (
                f"{FILE} changes its rotary embedding while a text grows beyond {scaling.trained} tokens, under keys "
                f"that are kept as they were: texts of {scaling.trained} tokens are the longest here."
            ),
        }


def _llama(values: Values) -> Fields:
    bias = values["attention_bias"]
    return Fields(qkv_bias=bias, output_bias=bias, mlp_bias=values["mlp_bias"])


def _mistral(values: Values) -> Fields:
    return _windows(values["sliding_window"], range(values["num_hidden_layers"]))


def _qwen2(values: Values) -> Fields:
    """Windows in the layers that the file names, or else from ``max_window_layers`` on."""
    kinds, layers = values["layer_types"], range(values["num_hidden_layers"])
    window = values["sliding_window"] if values["use_sliding_window"] else None
    rule, keys = "layers with a window need its length", ("layer_types", "use_sliding_window", "sliding_window")
    agree(window is not None or _SLIDING not in (kinds or ()), values, rule, *keys)
    if kinds is not None:
        return _windows(window, [layer for layer in layers[: len(kinds)] if kinds[layer] == _SLIDING])
    return _windows(window, layers[values["max_window_layers"] :])


def _qwen3(values: Values) -> Fields:
    bias = values["attention_bias"]
    return Fields(**_qwen2(values), qkv_bias=bias, output_bias=bias)


def _windows(window: int | None, layers: range | list[int]) -> Fields:
    has = window is not None and len(layers) > 0
    return Fields(window=window, windowed=frozenset(layers)) if has else {}


_LLAMA = NextTokenFamily("llama", _LLAMA_KEYS, {"attention": NextToken(), "prediction_shift": 1}, _llama)
_QWEN2 = replace(_LLAMA, name="qwen2", keys=_QWEN2_KEYS, fixed={**_LLAMA.fixed, "qkv_bias": True}, of=_qwen2)
NEXT_TOKEN_FAMILIES = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": replace(_LLAMA, name="mistral", keys=_MISTRAL_KEYS, of=_mistral),
    "Qwen2ForCausalLM": _QWEN2,
    "Qwen3ForCausalLM": replace(
        _QWEN2, name="qwen3", keys=_QWEN3_KEYS, fixed={**_LLAMA.fixed, "qk_norm": True}, of=_qwen3
    ),
}
