"""The defaults of the published classes, written down from their files, against what is computed without the key."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from model_folders import PARITY, published

from dllm.parts import ModelConfig, UserError

# configuration_*.py of each published checkpoint: the default of every key that a file may leave out.
_QWEN: dict[str, Any] = {
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "num_key_value_heads": 32,
}
_LLAMA: dict[str, Any] = {
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "num_key_value_heads": None,
    "head_dim": None,
    "attention_bias": False,
    "mlp_bias": False,
    "pretraining_tp": 1,
}
CLASSES: dict[str, dict[str, Any]] = {
    # of transformers 4.57: Qwen3Config, Qwen2Config, LlamaConfig, Qwen3MoeConfig; 5.23: Ministral3Config
    "a2d_qwen3": {**_QWEN, "head_dim": 128, "attention_bias": False, "layer_types": None, "sliding_window": None},
    "a2d_qwen2": {**_QWEN, "head_dim": None, "layer_types": None},
    "a2d_llama": _LLAMA,
    "diffcoder": _LLAMA,
    "fastdllm_v2": {**_QWEN, "bd_size": 32, "head_dim": None},
    "sdar_moe": {"decoder_sparse_step": 1, "mlp_only_layers": None, "attention_bias": False, "rms_norm_eps": 1e-6,
                 "max_position_embeddings": 32768, "tie_word_embeddings": False},
    "nemotron": {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262144, "rms_norm_eps": 1e-5,
                 "hidden_act": "silu", "tie_word_embeddings": False, "sliding_window": None},
    "llada_mha_untied": {
        "n_kv_heads": None, "mlp_ratio": 4, "mlp_hidden_size": None, "activation_type": "swiglu", "alibi": False,
        "block_type": "sequential", "block_group_size": 1, "rope": False, "rope_full_precision": True,
        "multi_query_attention": None, "attention_layer_norm": False, "input_emb_norm": False,
        "layer_norm_type": "default", "layer_norm_with_affine": True, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "max_sequence_length": 1024, "include_qkv_bias": False, "include_bias": False, "bias_for_layer_norm": None,
        "scale_logits": False, "embedding_size": 50304, "weight_tying": True,
    },
    "dream_gqa": _QWEN,
    "sdar_b4": {**_QWEN, "head_dim": 128, "attention_bias": False},
    "wedlm_qknorm": {**_QWEN, "head_dim": None},
    "nbdiff_gqa": {
        **_QWEN, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 16000000.0, "bias": True,
    },
    "llada_moe": {
        **_QWEN, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "num_key_value_heads": None, "rope_theta": -1,
        "partial_rotary_factor": -1, "attention_bias": False, "clip_qkv": None, "norm_topk_prob": None,
        "qk_layernorm": None, "moe_layer_freq": [], "moe_router_enable_expert_bias": None,
        "moe_router_score_function": None, "routed_scaling_factor": 1, "router_num_group": -2, "router_topk_group": -2,
    },
    "llada2_moe": {
        **_QWEN, "max_position_embeddings": 16384, "rms_norm_eps": 1e-5, "num_key_value_heads": 0, "head_dim": None,
        "use_qkv_bias": False, "use_qk_norm": True, "use_bias": True, "norm_head": False, "num_shared_experts": 0,
        "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, "first_k_dense_replace": 0,
        "partial_rotary_factor": 0.5, "rotary_dim": None,
    },
}  # fmt: skip
CASES = [(name, key) for name, defaults in CLASSES.items() for key in defaults]


def outcome(config: dict[str, Any], key: str) -> ModelConfig | str:
    """What is read, or that it is refused by the key's name."""
    try:
        return ModelConfig.from_published(config)
    except UserError as error:
        assert key in str(error) and "config.json" in str(error)
        return "refused"


@pytest.mark.parametrize(("name", "key"), CASES, ids=[f"{name}-{key}" for name, key in CASES])
def test_a_key_that_a_file_lacks_has_the_published_default(name: str, key: str) -> None:
    config = published(name, rotary_dim=None)
    config.pop(key, None)
    assert outcome(config, key) == outcome({**config, key: CLASSES[name][key]}, key)


def test_defaults_of_a_published_size_are_the_published_ones() -> None:
    """Where the tiny models are refused with a default, such as 32 key-value heads: with sizes that fit them."""
    wide = {"num_attention_heads": 64, "head_dim": 2}
    for name, heads in {"dream_gqa": 32, "sdar_b4": 32, "wedlm_qknorm": 32, "nbdiff_gqa": 8, "llada_moe": 64}.items():
        config = published(name, **wide)
        del config["num_key_value_heads"]
        assert ModelConfig.from_published(config).kv_heads == heads, name
    sdar = published("sdar_b4")
    del sdar["head_dim"]
    assert ModelConfig.from_published(sdar).head_dim == 128
    experts = published("llada2_moe", num_experts=64)
    for key in ("n_group", "topk_group", "routed_scaling_factor"):
        del experts[key]
    moe = ModelConfig.from_published(experts).moe
    assert moe is not None and (moe.groups, moe.top_groups, moe.scale) == (8, 4, 2.5)


def test_null_is_false_as_in_python() -> None:
    assert not ModelConfig.from_published(published("llada2_moe", use_bias=None)).output_bias
    assert not ModelConfig.from_published(published("llada_mha_untied", weight_tying=None)).tied
    assert not ModelConfig.from_published(published("llada_mha_untied", rope_full_precision=None)).rope_float32


# transformers 5 cannot read RND1's "rope_scaling": false.
@pytest.mark.parametrize("name", [folder.name for folder in PARITY if folder.name != "rnd1"])
def test_a_file_that_transformers_saves_again_means_the_same(name: str) -> None:
    """transformers 5 copies rotary keys into ``rope_parameters`` where its class has ``rope_scaling``, and drops them
    at the top where the class has them there alone. It leaves out what its base class has as default."""
    transformers = pytest.importorskip("transformers")

    class Published(transformers.PretrainedConfig):  # type: ignore[misc, name-defined]
        def __init__(self, **keys: Any) -> None:
            """As published classes do: rotary keys are attributes before the base class sees the rest."""
            for key in ("rope_theta", "rope_scaling", "partial_rotary_factor"):
                if key in keys:
                    setattr(self, key, keys.pop(key))
            super().__init__(**keys)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of ``rope_scaling``
        written = Published(**published(name)).to_diff_dict()
    rotary = written.get("rope_parameters") or {}
    assert ("rope_theta" in rotary) == bool({"rope_scaling", "rope_parameters"} & published(name).keys())
    moved = {key: value for key, value in written.items() if key not in rotary}
    again = {**moved, "model_type": published(name)["model_type"]}
    assert ModelConfig.from_published(again) == ModelConfig.from_published(published(name))
    assert not ModelConfig.from_published(again).unread


def test_attention_blocks_have_two_spellings() -> None:
    for name in ("sdar_b4", "llada2_moe", "nbdiff_gqa"):
        for key in ("block_size", "block_length"):
            config = published(name)
            config.pop("block_size", None)
            assert ModelConfig.from_published({**config, key: 8}).attention.block == 8
        with pytest.raises(UserError, match="block_size=4, block_length=8: they contradict"):
            ModelConfig.from_published(published(name, block_size=4, block_length=8))


def test_a_file_without_a_block_says_so_where_files_of_its_family_differ() -> None:
    config = published("sdar_b4")
    assert ModelConfig.from_published(config).warnings == ()
    del config["block_size"]
    found = ModelConfig.from_published(config)
    assert found.attention.block == 4
    assert (
        len(found.warnings) == 1 and "names no block_size" in found.warnings[0] and "blocks of 4" in found.warnings[0]
    )
    assert ModelConfig.from_published(published("llada2_moe")).warnings == ()
