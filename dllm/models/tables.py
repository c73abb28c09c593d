"""The keys that we read of each family's ``config.json``: type, range, and the default of the published class.

Defaults are those of the classes that come with the checkpoints (``configuration_*.py``), which a file may leave out:
LLaDAConfig of GSAI-ML/LLaDA-8B, LLaDAConfig of inclusionAI/LLaDA-MoE-7B-A1B, LLaDA2MoeConfig of inclusionAI/LLaDA2.0,
DreamConfig of Dream-org/Dream-v0, SDARConfig of JetLM/SDAR, WeDLMConfig of tencent/WeDLM-8B, PanguEmbeddedConfig of
openPangu-Embedded-7B (NBDiff's base); of the families of 2026 those of the classes that they extend: Qwen2Config,
Qwen3Config, Qwen3MoeConfig, LlamaConfig and Ministral3Config of transformers 4.57 and 5.23. REQUIRED: the class has no
default that can be built, one that is not supported here, or one that nobody could read. Keys that no table reads:
``dllm.models.common_keys``.

The bounds of sizes here are loose. They keep small what is derived from the sizes. The headers of the weights bound the
sizes tightly (``weights.check_sizes``), before a module is built.
"""

from __future__ import annotations

from typing import Any

from dllm.common.coerce import is_whole
from dllm.models.common_keys import ALL_FULL
from dllm.models.keys import AS_ABSENT, REQUIRED, KeyRule, allowed, boolean, integer, real, token_ids
from dllm.models.rope import THETA

MAX_SIZE = 2**24  # rows or columns of a matrix, and positions; up to here float32 counts exactly
MAX_LAYERS, MAX_EXPERTS = 10_000, 100_000
Table = dict[str, KeyRule]


def size(default: Any = REQUIRED, null: Any = AS_ABSENT) -> KeyRule:
    return integer(1, MAX_SIZE, default, size=True, null=null)


def experts(default: Any = REQUIRED) -> KeyRule:
    return integer(1, MAX_EXPERTS, default)


def _length(default: int) -> KeyRule:
    return integer(1, MAX_SIZE, default)


def epsilon(default: float) -> KeyRule:
    """The eps of RMSNorm. At 1e-12 a row of zeros is scaled by 1e6 only. Above 0.1 it would dominate small rows."""
    return real(1e-12, 0.1, default)


def theta(default: Any) -> KeyRule:
    return KeyRule(THETA.rule, THETA.fits, default)


LAYERS = integer(1, MAX_LAYERS, REQUIRED)
WHOLE_HEAD = allowed(1, 1.0)  # all features of a head rotate
BLOCK = integer(1, MAX_SIZE)  # its two spellings must agree; without them the family's usual length counts


def _text(value: Any) -> bool:
    return isinstance(value, str)


# The keys that decide the family.
ARCHITECTURE: Table = {
    "architectures": KeyRule("a list of names", lambda value: isinstance(value, list) and all(map(_text, value)), []),
    "model_type": KeyRule("a name", lambda value: isinstance(value, str)),
}

_ALL: Table = {
    "eos_token_id": token_ids(MAX_SIZE), "pad_token_id": integer(0, MAX_SIZE), "mask_token_id": integer(0, MAX_SIZE),
    "vocab_size": size(),
    # ``dllm.models.rope`` reads them first; what it found stands in rope_theta and partial_rotary_factor
    "rope_scaling": KeyRule("an object or null", lambda value: isinstance(value, dict)),
    "rope_parameters": KeyRule("an object or null", lambda value: isinstance(value, dict)),
    "rotary_dim": integer(2, MAX_SIZE), "partial_rotary_factor": WHOLE_HEAD,
}  # fmt: skip

LLADA: Table = {
    **_ALL,
    "d_model": size(), "n_layers": LAYERS, "n_heads": size(), "n_kv_heads": size(None),
    "multi_query_attention": boolean(None), "mlp_hidden_size": size(None), "mlp_ratio": real(1e-3, 1e3, 4),
    "embedding_size": size(50304, null=None), "max_sequence_length": _length(1024), "rms_norm_eps": epsilon(1e-5),
    "rope_theta": theta(1e4), "rope_full_precision": boolean(True), "include_bias": boolean(),
    "include_qkv_bias": boolean(), "weight_tying": boolean(True), "scale_logits": boolean(),
    "input_emb_norm": boolean(), "block_group_size": integer(1, MAX_LAYERS, 1),
    # The class's own defaults are sequential, swiglu, default and false.
    "block_type": allowed("llama", default=REQUIRED), "activation_type": allowed("silu", default=REQUIRED),
    "layer_norm_type": allowed("rms", default=REQUIRED), "rope": allowed(True, default=REQUIRED),
    "alibi": allowed(False), "attention_layer_norm": allowed(False), "bias_for_layer_norm": allowed(False),
    "layer_norm_with_affine": allowed(True),
    "tie_word_embeddings": boolean(),  # of transformers' base class; LLaDA's asks weight_tying alone
}  # fmt: skip

# What all families but LLaDA share with Hugging Face's Qwen classes.
_QWEN: Table = {
    **_ALL,
    "hidden_size": size(), "num_hidden_layers": LAYERS, "num_attention_heads": size(),
    "num_key_value_heads": size(32, null=None), "head_dim": size(None), "max_position_embeddings": _length(32768),
    "rms_norm_eps": epsilon(1e-6), "rope_theta": theta(1e4), "tie_word_embeddings": boolean(),
    "hidden_act": allowed("silu"), "use_sliding_window": allowed(False),
}  # fmt: skip
_NORMED = {"qk_norm": allowed(True), "use_qk_norm": allowed(True), "qk_layernorm": allowed(True)}

DREAM: Table = {**_QWEN, "intermediate_size": size(), "attention_bias": allowed(True)}  # of q, k and v

SDAR: Table = {
    **_QWEN, **_NORMED, "intermediate_size": size(), "head_dim": size(128, null=None),
    "block_size": BLOCK, "block_length": BLOCK, "use_regular_causal": allowed(False),
}  # fmt: skip

WEDLM: Table = {
    **_QWEN, "intermediate_size": size(), "qk_norm": boolean(None),
    "attention_bias": boolean(REQUIRED),  # true in Qwen2.5's body and by default, false in Qwen3's
    "layer_types": ALL_FULL,
}  # fmt: skip

NBDIFF: Table = {
    **_QWEN, "intermediate_size": size(), "block_size": BLOCK, "block_length": BLOCK,
    "num_key_value_heads": size(8, null=None), "rms_norm_eps": epsilon(1e-5), "rope_theta": theta(1.6e7),
    "bias": boolean(True),  # of q, k, v and the output projection
}  # fmt: skip

LLADA_MOE: Table = {
    **_QWEN,
    "num_experts": experts(), "num_experts_per_tok": experts(), "num_key_value_heads": size(None),
    "max_position_embeddings": _length(4096), "rms_norm_eps": epsilon(1e-5), "rope_theta": theta(REQUIRED),
    "expert_intermediate_size": size(), "dense_intermediate_size": integer(1, MAX_SIZE), "qk_layernorm": boolean(),
    "moe_layer_freq": KeyRule("a list of 0 and 1, one per layer", lambda value: isinstance(value, list) and all(
        is_whole(one) and one in (0, 1) for one in value), REQUIRED),
    "moe_router_score_function": allowed("softmax"), "moe_router_enable_expert_bias": allowed(False),
    # The class never renormalises nor scales, whatever the file says.
    "norm_topk_prob": allowed(False), "routed_scaling_factor": allowed(1, 1.0),
    "router_num_group": allowed(-2), "router_topk_group": allowed(-2),
    "shared_expert_intermediate_size": allowed(0, -1), "partial_rotary_factor": allowed(1, 1.0, default=REQUIRED),
}  # fmt: skip

LLADA2: Table = {
    **_QWEN, **_NORMED,
    "num_experts": experts(), "num_experts_per_tok": experts(), "moe_intermediate_size": size(),
    "num_key_value_heads": size(), "max_position_embeddings": _length(16384), "rms_norm_eps": epsilon(1e-5),
    "intermediate_size": integer(1, MAX_SIZE), "first_k_dense_replace": integer(0, MAX_LAYERS, 0),
    "num_shared_experts": integer(0, MAX_EXPERTS, 0), "n_group": experts(8), "topk_group": experts(4),
    "routed_scaling_factor": real(1e-3, 1e3, 2.5), "partial_rotary_factor": real(1e-3, 1, 0.5),
    "use_qkv_bias": boolean(), "use_bias": boolean(True), "block_length": BLOCK, "block_size": BLOCK,
    # The class always routes by sigmoid with a bias in float32, and renormalises.
    "score_function": allowed("sigmoid"), "norm_topk_prob": allowed(True),
    "moe_router_enable_expert_bias": allowed(True), "router_dtype": allowed("fp32"),
}  # fmt: skip

# Classes of transformers under other masks: Qwen3 (norms of heads), Qwen2 (biases of q, k and v), Llama (neither).
QWEN3: Table = {
    **_QWEN, **_NORMED, "intermediate_size": size(), "head_dim": size(128, null=None), "layer_types": ALL_FULL,
}  # fmt: skip
QWEN2: Table = {**_QWEN, "intermediate_size": size(), "layer_types": ALL_FULL}
LLAMA: Table = {
    **_QWEN, "intermediate_size": size(), "num_key_value_heads": size(None), "max_position_embeddings": _length(2048),
    "attention_bias": allowed(False), "mlp_bias": allowed(False), "layer_norm_eps": allowed(),
}  # fmt: skip

ILLADA: Table = {  # of the class only the default of eps is known
    **LLAMA, "rope_theta": theta(REQUIRED), "max_position_embeddings": _length(REQUIRED),
}  # fmt: skip
DREAM_REASONER: Table = {
    **QWEN3, "rope_theta": theta(REQUIRED), "num_key_value_heads": size(), "block_size": BLOCK, "block_length": BLOCK,
}  # fmt: skip
DIFFCODER: Table = {**LLAMA, "block_size": BLOCK, "block_length": BLOCK}

_QWEN3_MOE: Table = {
    **_QWEN, **_NORMED,
    "num_experts": experts(), "num_experts_per_tok": experts(), "moe_intermediate_size": size(),
    "intermediate_size": integer(1, MAX_SIZE), "num_key_value_heads": size(), "rope_theta": theta(REQUIRED),
    "norm_topk_prob": boolean(REQUIRED),  # false in Qwen3MoeConfig, true in all published files
}  # fmt: skip
SDAR_MOE: Table = {
    **_QWEN3_MOE, "block_size": BLOCK, "block_length": BLOCK, "decoder_sparse_step": integer(1, MAX_LAYERS, 1),
    "mlp_only_layers": KeyRule("a list of numbers of layers", lambda value: isinstance(value, list) and all(
        is_whole(one) and 0 <= one < MAX_LAYERS for one in value), []),
}  # fmt: skip
RND1: Table = {  # the class makes every layer sparse
    **_QWEN3_MOE, "decoder_sparse_step": allowed(1), "mlp_only_layers": allowed([]), "is_causal": allowed(False),
}  # fmt: skip

FAST_DLLM_V2: Table = {**QWEN2, "bd_size": integer(1, MAX_SIZE, 32)}

NEMOTRON: Table = {
    **LLAMA, "block_size": BLOCK, "block_length": BLOCK, "num_key_value_heads": size(8, null=None),
    "max_position_embeddings": _length(262144), "rms_norm_eps": epsilon(1e-5), "head_dim": size(128, null=None),
    "dlm_paradigm": allowed("bidirectional"), "sliding_window": allowed(),
}  # fmt: skip

EFFICIENT_DLM: Table = {
    **QWEN3, "block_size": BLOCK, "block_length": BLOCK, "disable_qk_norm": allowed(False),
    "dlm_paradigm": allowed("bidirectional"), "dlm_type": allowed("llada"), "dlm_arch": allowed("encoder"),
    "num_ar_layers": allowed(0),
    "num_diffusion_layers": allowed(0),
}  # fmt: skip
