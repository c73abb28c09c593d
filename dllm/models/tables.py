"""The keys that we read of each family's ``config.json`` and of the tokenizer's files: type, range and default.

The bounds of sizes here are loose. They keep small what is derived from the sizes. The headers of the weights bound the
sizes tightly (``weights.check_sizes``), before a module is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dllm.common.kinds import is_whole
from dllm.models.keys import REQUIRED, KeyRule, allowed, boolean, integer, real, token_ids

MAX_SIZE = 2**24  # rows or columns of a matrix, and positions; up to here float32 counts exactly
MAX_LAYERS, MAX_EXPERTS = 10_000, 100_000
Table = dict[str, KeyRule]


def size(default: Any = REQUIRED) -> KeyRule:
    return integer(1, MAX_SIZE, default, size=True)


def experts(default: Any = REQUIRED) -> KeyRule:
    return integer(1, MAX_EXPERTS, default)


def epsilon(default: float) -> KeyRule:
    """The eps of RMSNorm. At 1e-12 a row of zeros is scaled by 1e6 only. Above 0.1 it would dominate small rows."""
    return real(1e-12, 0.1, default)


def _unscaled(value: Any) -> bool:
    kind = value.get("rope_type", value.get("type", "default")) if isinstance(value, dict) else None
    return kind == "default" and ("rope_theta" not in value or ROPE_THETA.fits(value["rope_theta"]))


def _all_full(value: Any) -> bool:
    return isinstance(value, list) and all(one == "full_attention" for one in value)


LAYERS = integer(1, MAX_LAYERS, REQUIRED)
ROPE_THETA = real(1, 1e12, 10000.0)
UNSCALED = KeyRule(
    "null or of rope_type 'default' with a rope_theta from 1 to 1e+12 (only unscaled rotary embeddings are supported)",
    _unscaled, {},
)  # fmt: skip

# The keys that decide the family.
ARCHITECTURE: Table = {
    "architectures": KeyRule("a list of names", lambda value: isinstance(value, list) and all(map(_text, value)), []),
    "model_type": KeyRule("a name", lambda value: isinstance(value, str)),
}

_ALL: Table = {
    "eos_token_id": token_ids(MAX_SIZE), "pad_token_id": integer(0, MAX_SIZE), "mask_token_id": integer(0, MAX_SIZE),
    "vocab_size": size(), "rope_theta": KeyRule(ROPE_THETA.rule, ROPE_THETA.fits),
    "rope_scaling": UNSCALED, "rope_parameters": UNSCALED,
}  # fmt: skip

LLADA: Table = {
    **_ALL,
    "d_model": size(), "n_layers": LAYERS, "n_heads": size(), "n_kv_heads": size(None),
    "multi_query_attention": boolean(None), "mlp_hidden_size": size(None), "mlp_ratio": real(1e-3, 1e3, 4),
    "embedding_size": size(None), "max_sequence_length": integer(1, MAX_SIZE, 4096), "rms_norm_eps": epsilon(1e-5),
    "rope_full_precision": boolean(True), "include_bias": boolean(), "include_qkv_bias": boolean(),
    "weight_tying": boolean(True), "scale_logits": boolean(), "input_emb_norm": boolean(),
    "block_group_size": integer(1, MAX_LAYERS, 1), "block_type": allowed("llama"), "activation_type": allowed("silu"),
    "layer_norm_type": allowed("rms"), "rope": allowed(True), "alibi": allowed(False),
    "attention_layer_norm": allowed(False), "bias_for_layer_norm": allowed(False),
    "layer_norm_with_affine": allowed(True),
}  # fmt: skip

# What all families but LLaDA share with Hugging Face's Qwen classes.
_QWEN: Table = {
    **_ALL,
    "hidden_size": size(), "num_hidden_layers": LAYERS, "num_attention_heads": size(),
    "num_key_value_heads": size(None), "head_dim": size(None), "max_position_embeddings": integer(1, MAX_SIZE, 32768),
    "rms_norm_eps": epsilon(1e-6), "tie_word_embeddings": boolean(),
    "hidden_act": allowed("silu"), "use_sliding_window": allowed(False),
}  # fmt: skip

DREAM: Table = {**_QWEN, "intermediate_size": size()}

SDAR: Table = {
    **_QWEN, "intermediate_size": size(), "block_size": integer(1, MAX_SIZE, 4), "attention_bias": allowed(False),
}  # fmt: skip

WEDLM: Table = {
    **_QWEN, "intermediate_size": size(), "qk_norm": boolean(None),
    "attention_bias": boolean(REQUIRED),  # true in Qwen2.5's body, false in Qwen3's
    "layer_types": KeyRule("a list of 'full_attention' alone (sliding windows are not supported)", _all_full),
}  # fmt: skip

NBDIFF: Table = {
    **_QWEN, "intermediate_size": size(), "block_length": integer(1, MAX_SIZE, 32),
    "bias": boolean(REQUIRED),  # of q, k, v and the output projection; published: true
}  # fmt: skip

LLADA_MOE: Table = {
    **_QWEN,
    "num_experts": experts(), "num_experts_per_tok": experts(),
    "expert_intermediate_size": size(), "dense_intermediate_size": integer(1, MAX_SIZE), "qk_layernorm": boolean(),
    "moe_layer_freq": KeyRule("a list of 0 and 1, one per layer", lambda value: isinstance(value, list) and all(
        is_whole(one) and one in (0, 1) for one in value)),
    "moe_router_score_function": allowed("softmax"), "partial_rotary_factor": allowed(1, 1.0), "clip_qkv": allowed(),
    "shared_expert_intermediate_size": allowed(0), "attention_bias": allowed(False),
    "moe_router_enable_expert_bias": allowed(False),
}  # fmt: skip

LLADA2: Table = {
    **_QWEN,
    "num_experts": experts(), "num_experts_per_tok": experts(), "moe_intermediate_size": size(),
    "intermediate_size": integer(1, MAX_SIZE), "first_k_dense_replace": integer(0, MAX_LAYERS, 0),
    "num_shared_experts": integer(0, MAX_EXPERTS, 0), "n_group": experts(1), "topk_group": experts(1),
    "routed_scaling_factor": real(1e-3, 1e3, 1.0), "partial_rotary_factor": real(1e-3, 1, 1.0),
    # The published class gives ``dense`` a bias where the key is absent. All published files say false.
    "use_qkv_bias": boolean(), "use_bias": boolean(True), "block_length": integer(1, MAX_SIZE, 32),
    "score_function": allowed("sigmoid"),
}  # fmt: skip


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _token(value: Any) -> bool:
    """A special token: a string, or an object with its content."""
    return _text(value) or (isinstance(value, dict) and _text(value.get("content")))


def _tokens(value: Any) -> bool:
    """A list of special tokens, or an object from names to special tokens."""
    return isinstance(value, list | dict) and all(map(_token, value.values() if isinstance(value, dict) else value))


def _numbered(value: Any) -> bool:
    """Added tokens by id: ``{"151643": {"content": "<|endoftext|>", "special": true}}``."""
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return isinstance(value, dict) and all(
        number.isascii() and number.isdigit() and isinstance(entry, dict) and _text(entry.get("content"))
        and all(isinstance(entry.get(name, False), bool) for name in flags)
        for number, entry in value.items()
    )  # fmt: skip


def _templates(value: Any) -> bool:
    """One template, or a list of named ones."""
    return _text(value) or (isinstance(value, list) and all(
        isinstance(one, dict) and _text(one.get("name")) and _text(one.get("template")) for one in value
    ))  # fmt: skip


SPECIAL_TOKEN_KEYS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
TOKENIZER: Table = {
    **{name: KeyRule("a string or an object with its content", _token) for name in SPECIAL_TOKEN_KEYS},
    "additional_special_tokens": KeyRule("a list of strings or of objects with their content", _tokens, []),
    "extra_special_tokens": KeyRule("a list or an object of strings or of objects with their content", _tokens, []),
    "added_tokens_decoder": KeyRule(
        "an object from ids to objects with a content and flags that are true or false", _numbered, {}
    ),
    "chat_template": KeyRule("a string or a list of objects with a name and a template", _templates),
}
GENERATION: Table = {"eos_token_id": token_ids(MAX_SIZE)}


def added_tokens(content: Mapping[str, Any]) -> Table:
    """added_tokens.json has a key per token; the value is its id."""
    return dict.fromkeys(content, integer(0, MAX_SIZE, REQUIRED))
