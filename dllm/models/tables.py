"""The keys we read of each family's ``config.json`` and of the tokenizer's files: type, range and default.

Sizes have loose bounds here, which keep what is derived from them small; the headers of the weights bound them tightly
(``weights.check_sizes``) before a module is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dllm.common.kinds import is_whole
from dllm.models.keys import NEEDED, Key, flag, ids, only, real, whole

SIZE = 2**24  # rows or columns of a matrix, and positions: float32 counts exactly up to here
LAYERS, EXPERTS = 10_000, 100_000
Table = dict[str, Key]


def size(default: Any = NEEDED) -> Key:
    return whole(1, SIZE, default, size=True)


def layers() -> Key:
    return whole(1, LAYERS, NEEDED)


def epsilon(default: float) -> Key:
    """At 1e-12 a row of zeros is still scaled by 1e6 alone; above 0.1 it would drown what it guards."""
    return real(1e-12, 0.1, default)


def _unscaled(value: Any) -> bool:
    kind = value.get("rope_type", value.get("type", "default")) if isinstance(value, dict) else None
    return kind == "default" and ("rope_theta" not in value or ROPE_THETA.fits(value["rope_theta"]))


ROPE_THETA = real(1, 1e12, 10000.0)
UNSCALED = Key("null or of rope_type 'default' with a rope_theta from 1 to 1e+12 (only unscaled rotary embeddings are "
               "supported)", _unscaled, {})  # fmt: skip

# What decides which family a file is of.
ARCHITECTURE: Table = {
    "architectures": Key("a list of names", lambda value: isinstance(value, list) and all(map(_text, value)), []),
    "model_type": Key("a name", lambda value: isinstance(value, str), None),
}

_ALL: Table = {
    "eos_token_id": ids(SIZE), "pad_token_id": whole(0, SIZE), "mask_token_id": whole(0, SIZE),
    "vocab_size": size(), "rope_theta": Key(ROPE_THETA.rule, ROPE_THETA.fits),
    "rope_scaling": UNSCALED, "rope_parameters": UNSCALED,
}  # fmt: skip

LLADA: Table = {
    **_ALL,
    "d_model": size(), "n_layers": layers(), "n_heads": size(), "n_kv_heads": size(None),
    "multi_query_attention": flag(None), "mlp_hidden_size": size(None), "mlp_ratio": real(1e-3, 1e3, 4),
    "embedding_size": size(None), "max_sequence_length": whole(1, SIZE, 4096), "rms_norm_eps": epsilon(1e-5),
    "rope_full_precision": flag(True), "include_bias": flag(), "include_qkv_bias": flag(), "weight_tying": flag(True),
    "scale_logits": flag(), "input_emb_norm": flag(), "block_group_size": whole(1, LAYERS, 1),
    "block_type": only("llama"), "activation_type": only("silu"), "layer_norm_type": only("rms"), "rope": only(True),
    "alibi": only(False), "attention_layer_norm": only(False), "bias_for_layer_norm": only(False),
    "layer_norm_with_affine": only(True),
}  # fmt: skip

# What Dream, LLaDA-MoE, LLaDA2 and SDAR share with Hugging Face's Qwen classes.
_QWEN: Table = {
    **_ALL,
    "hidden_size": size(), "num_hidden_layers": layers(), "num_attention_heads": size(),
    "num_key_value_heads": size(None), "head_dim": size(None), "max_position_embeddings": whole(1, SIZE, 32768),
    "rms_norm_eps": epsilon(1e-6), "tie_word_embeddings": flag(),
    "hidden_act": only("silu"), "use_sliding_window": only(False),
}  # fmt: skip

DREAM: Table = {**_QWEN, "intermediate_size": size()}

SDAR: Table = {
    **_QWEN, "intermediate_size": size(), "block_size": whole(1, SIZE, 4), "attention_bias": only(False),
}  # fmt: skip

LLADA_MOE: Table = {
    **_QWEN,
    "num_experts": whole(1, EXPERTS, NEEDED), "num_experts_per_tok": whole(1, EXPERTS, NEEDED),
    "expert_intermediate_size": size(), "dense_intermediate_size": whole(1, SIZE), "qk_layernorm": flag(),
    "moe_layer_freq": Key("a list of 0 and 1, one per layer", lambda value: isinstance(value, list) and all(
        is_whole(one) and one in (0, 1) for one in value)),
    "moe_router_score_function": only("softmax"), "partial_rotary_factor": only(1, 1.0), "clip_qkv": only(),
    "shared_expert_intermediate_size": only(0), "attention_bias": only(False),
    "moe_router_enable_expert_bias": only(False),
}  # fmt: skip

LLADA2: Table = {
    **_QWEN,
    "num_experts": whole(1, EXPERTS, NEEDED), "num_experts_per_tok": whole(1, EXPERTS, NEEDED),
    "moe_intermediate_size": size(), "intermediate_size": whole(1, SIZE), "first_k_dense_replace": whole(0, LAYERS, 0),
    "num_shared_experts": whole(0, EXPERTS, 0), "n_group": whole(1, EXPERTS, 1), "topk_group": whole(1, EXPERTS, 1),
    "routed_scaling_factor": real(1e-3, 1e3, 1.0), "partial_rotary_factor": real(1e-3, 1, 1.0),
    # The published class gives ``dense`` a bias where the key is absent; all published files say false.
    "use_qkv_bias": flag(), "use_bias": flag(True), "block_length": whole(1, SIZE, 32),
    "score_function": only("sigmoid"),
}  # fmt: skip


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _token(value: Any) -> bool:
    """A special token is written as a string or as an object with its content."""
    return _text(value) or (isinstance(value, dict) and _text(value.get("content")))


def _tokens(value: Any) -> bool:
    """A list of special tokens, or an object that gives each a name."""
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


NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
TOKENIZER: Table = {
    **{name: Key("a string or an object with its content", _token) for name in NAMED},
    "additional_special_tokens": Key("a list of strings or of objects with their content", _tokens, []),
    "extra_special_tokens": Key("a list or an object of strings or of objects with their content", _tokens, []),
    "added_tokens_decoder": Key(
        "an object from ids to objects with a content and flags that are true or false", _numbered, {}
    ),
    "chat_template": Key("a string or a list of objects with a name and a template", _templates),
}
GENERATION: Table = {"eos_token_id": ids(SIZE)}


def added_tokens(content: Mapping[str, Any]) -> Table:
    """added_tokens.json has a key per token; the value is its id."""
    return dict.fromkeys(content, whole(0, SIZE, NEEDED))
