"""What the keys of published files cannot hold: written from the published configurations, not read from our tables."""

from __future__ import annotations

import math
from typing import Any

NAN, INF, HUGE, DEEP = math.nan, math.inf, 10**9, "[" * 200_000 + "]" * 200_000

# Every kind of key, with values that mean nothing there.
NONSENSE: dict[str, tuple[Any, ...]] = {
    "size": ("96", "", 4.5, 0, -3, 5000, HUGE, 10**30, NAN, INF, True, [4], {}),
    "length": ("96", 4.5, 0, -3, HUGE, 10**30, NAN, True, [4], {}),
    "id": ("5", "abc", 4.5, -1, HUGE, 10**30, NAN, True, [5], {}),
    "ids": ("5", 4.5, -1, HUGE, NAN, True, {}, ["5"], [5, -1], [HUGE], [[5]]),
    "real": ("x", "1e-5", NAN, INF, -INF, -1.0, 0, 1e30, 10**400, True, [], {}),
    "flag": ("false", "yes", 2, 0.5, [], {}, NAN),
    "rope": (
        "linear",
        5,
        [],
        True,
        {"rope_type": "yarn", "factor": 4.0},
        {"type": "linear"},
        {"rope_theta": "x"},
        {"full_attention": {"rope_type": "yarn"}},
        {"full_attention": {"rope_theta": 0}},
        {"factor": 2.0},
        {"partial_rotary_factor": 2},
        {"mrope_section": [1]},
        {"a": {"b": {"c": {"rope_theta": NAN}}}},
    ),
    "factor": ("x", NAN, INF, -1.0, 0, 1.5, True, [], {}),
    "off": (True, 1, "x", [1], {}, NAN),
    "unset": (True, 1, 0.5, "x", [1], {"quant_method": "gptq"}, NAN),
}
_IDS = {"eos_token_id": "ids", "pad_token_id": "id", "mask_token_id": "id"}
_QWEN = {
    **_IDS, "hidden_size": "size", "num_hidden_layers": "size", "num_attention_heads": "size", "vocab_size": "size",
    "num_key_value_heads": "size", "head_dim": "size", "max_position_embeddings": "length", "rms_norm_eps": "real",
    "rope_theta": "real", "rope_scaling": "rope", "rope_parameters": "rope", "tie_word_embeddings": "flag",
    "partial_rotary_factor": "factor", "mlp_bias": "off", "final_logit_softcapping": "unset", "layer_norm_eps": "unset",
    "quantization_config": "unset", "quantization": "unset", "vision_config": "unset",
}  # fmt: skip
_EXPERTS = {"num_experts": "size", "num_experts_per_tok": "size"}
KEYS: dict[str, dict[str, str]] = {
    "llada_mha_untied": {
        **_IDS,
        "d_model": "size",
        "n_layers": "size",
        "n_heads": "size",
        "n_kv_heads": "size",
        "vocab_size": "size",
        "mlp_hidden_size": "size",
        "embedding_size": "size",
        "max_sequence_length": "length",
        "rms_norm_eps": "real",
        "rope_theta": "real",
        "rope_scaling": "rope",
        "include_bias": "flag",
        "include_qkv_bias": "flag",
        "weight_tying": "flag",
        "scale_logits": "flag",
        "input_emb_norm": "flag",
        "rope_full_precision": "flag",
        "multi_query_attention": "flag",
        "alibi": "flag",
        "block_group_size": "length",
        "rope_parameters": "rope",
        "quantization_config": "unset",
        "layer_norm_eps": "unset",
    },
    "dream_gqa": {**_QWEN, "intermediate_size": "size"},
    "sdar_b4": {**_QWEN, "intermediate_size": "size", "block_size": "length"},
    "wedlm_qknorm": {**_QWEN, "intermediate_size": "size"},
    "nbdiff_gqa": {**_QWEN, "intermediate_size": "size", "block_length": "length", "bias": "flag"},
    "llada_moe": {**_QWEN, **_EXPERTS, "expert_intermediate_size": "size", "qk_layernorm": "flag"},
    "llada2_moe": {
        **_QWEN,
        **_EXPERTS,
        "intermediate_size": "size",
        "moe_intermediate_size": "size",
        "n_group": "size",
        "topk_group": "size",
        "routed_scaling_factor": "real",
        "block_length": "length",
        "use_bias": "flag",
        "use_qkv_bias": "flag",
    },
}
_BODY = {**_QWEN, "intermediate_size": "size"}
KEYS |= {
    "a2d_qwen3": {**_BODY, "use_sliding_window": "off"},
    "a2d_qwen2": _BODY,
    "a2d_llama": {key: kind for key, kind in _BODY.items() if key != "head_dim"},
    "illada": {**_BODY, "attention_bias": "off"},
    "dreamreasoner": {**_BODY, "block_size": "length"},
    "diffcoder": {**_BODY, "attention_bias": "off"},
    "sdar_moe": {**_BODY, **_EXPERTS, "moe_intermediate_size": "size", "norm_topk_prob": "flag"},
    "rnd1": {**_BODY, **_EXPERTS, "moe_intermediate_size": "size", "norm_topk_prob": "flag", "is_causal": "off"},
    "fastdllm_v2": {**_BODY, "bd_size": "length"},
    "nemotron": {**_BODY, "block_size": "length", "tie_word_embeddings": "off"},
    "efficient_dlm": {**_BODY, "block_size": "length", "tie_word_embeddings": "off", "disable_qk_norm": "off"},
}
for _name in ("sdar_moe", "rnd1"):
    del KEYS[_name]["intermediate_size"]  # of dense layers, which these have none of
del KEYS["nemotron"]["rope_theta"]  # stands in its rope_parameters
KEYS["llada_gqa_tied"] = KEYS["llada_mha_untied"]
BASES = tuple(KEYS)

# Nonsense of single keys beyond their type, and signs of another model.
MORE: dict[str, dict[str, tuple[Any, ...]]] = {
    "wedlm_qknorm": {"layer_types": (["sliding_attention"] * 3, ["full_attention"], "x"), "rotary_dim": (8,)},
    "nbdiff_gqa": {"block_size": (999,), "block_length": (999,), "hidden_act": ("gelu",)},
    "sdar_b4": {
        "block_size": (1, 2, 3, "4"),
        "block_length": (3, 8),
        "use_regular_causal": (True, 1),
        "rotary_dim": (8, 32),
        "head_dim": (17,),
    },
    "llada_moe": {"num_experts_per_tok": (999,), "moe_layer_freq": ("x", [1], [1, 2], [1, "1"], {}, 5)},
    "llada2_moe": {
        "num_experts_per_tok": (7, 999),
        "n_group": (3, 999),
        "topk_group": (999,),
        "first_k_dense_replace": (-1, 999, "1", 1.5),
        "num_shared_experts": (-1, "1", 1.5, 999),
        "expert_capacity": (4, 0),
        "delete_token_id": (1,),
        "split_token_id": (0,),
        "rotary_dim": (4, 16),
        "norm_topk_prob": (False,),
        "use_qk_norm": (False,),
        "score_function": ("softmax",),
    },
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
MORE |= {
    "a2d_qwen3": {"layer_types": (["sliding_attention"] * 3,), "qk_norm": (False,)},
    "a2d_llama": {"head_dim": (17,)},
    "illada": {"head_dim": (8, 32), "hidden_act": ("gelu",)},
    "dreamreasoner": {"block_size": (999,), "block_length": (16,)},
    "diffcoder": {"block_size": (999,), "layer_norm_eps": (1e-5,)},
    "sdar_moe": {"num_experts_per_tok": (9, 999), "mlp_only_layers": (["0"], [-1], 1), "decoder_sparse_step": (0, "1")},
    "rnd1": {"num_experts_per_tok": (9,), "mlp_only_layers": ([0],), "decoder_sparse_step": (2,), "is_causal": (True,)},
    "fastdllm_v2": {"bd_size": (999,)},
    "nemotron": {
        "dlm_paradigm": ("block_diff", "autoregressive"),
        "sliding_window": (4096,),
        "block_size": (10**9,),
        "rope_parameters": (
            *(
                {**_YARN, key: value}
                for key, value in {
                    "rope_type": "linear",
                    "factor": 0,
                    "mscale": 0.5,
                    "truncate": "no",
                    "attention_factor": 1.2,
                    "original_max_position_embeddings": "x",
                    "llama_4_scaling_beta": -1,
                    "new_scale": 1,
                }.items()
            ),
            {},
        ),
    },
    "efficient_dlm": {
        "dlm_type": ("other",),
        "dlm_paradigm": ("block_diff",),
        "num_ar_layers": (1,),
        "num_diffusion_layers": (2,),
        "dlm_arch": ("decoder",),
    },
}

TOKEN = (5, 4.5, True, [], {"content": 5}, {}, ["<x>"])
TOKENS = (5, "abc", [5], {"a": 5}, [None], True, [{"content": 5}])
SETTINGS: dict[str, dict[str, tuple[Any, ...]]] = {
    "tokenizer_config.json": {
        "eos_token": TOKEN,
        "mask_token": TOKEN,
        "bos_token": TOKEN,
        "additional_special_tokens": TOKENS,
        "extra_special_tokens": TOKENS,
        "added_tokens_decoder": (
            5,
            [],
            "x",
            {"x": {"content": "a"}},
            {"300": 5},
            {"300": {"content": 5}},
            {"300": {}},
            {"-1": {"content": "a"}},
            {"²": {"content": "a"}},
            {"300": {"content": "a", "special": "yes"}},
        ),
        "chat_template": (5, {}, [5], [{"name": "default"}], [{"name": 5, "template": "x"}], "{% for %}", "{{ '", True),
    },
    "special_tokens_map.json": {"eos_token": TOKEN, "additional_special_tokens": TOKENS},
    "generation_config.json": {"eos_token_id": ("x", "257", 4.5, -1, HUGE, True, {}, ["257"], [257, None], [HUGE])},
    "added_tokens.json": {"<new>": ("x", -1, 4.5, None, True, [], {}, HUGE)},
}
