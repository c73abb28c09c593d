"""config.json to ModelConfig: dispatch, defaults that only hold where they can, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from model_folders import published, sdar_tokenizer

from dllm.parts import FAMILIES, ContextCausal, ModelConfig, Tokenizer, UserError, resolve_ids


def read(name: str, **changes: Any) -> ModelConfig:
    return ModelConfig.from_published(published(name, **changes))


@pytest.mark.parametrize(
    ("name", "family", "shift", "block"),
    [
        ("llada_mha_untied", "llada", 0, None), ("llada_gqa_tied", "llada", 0, None), ("dream_gqa", "dream", 1, None),
        ("llada_moe", "llada_moe", 0, None), ("llada2_moe", "llada2", 0, 32), ("sdar_b4", "sdar", 0, 4),
        ("wedlm_bias", "wedlm", 0, None), ("nbdiff_gqa", "nbdiff", 1, 32), ("a2d_qwen3", "a2d", 0, None),
        ("a2d_qwen2", "a2d", 0, None), ("a2d_llama", "a2d", 0, None), ("illada", "illada", 0, None),
        ("dreamreasoner", "dream_reasoner", 0, 8), ("diffcoder", "diffcoder", 0, 4), ("sdar_moe", "sdar_moe", 0, 4),
        ("rnd1", "rnd1", 1, None), ("fastdllm_v2", "fast_dllm_v2", 1, 8), ("nemotron", "nemotron", 0, 8),
        ("efficient_dlm", "efficient_dlm", 0, 8),
    ],
)  # fmt: skip
def test_every_family_is_told_by_its_architecture(name: str, family: str, shift: int, block: int | None) -> None:
    config = read(name)
    assert (config.family, config.prediction_shift, config.attention.block) == (family, shift, block)


def test_one_model_type_serves_two_architectures() -> None:
    dense, routed = published("llada_mha_untied"), published("llada_moe")
    assert dense["model_type"] == routed["model_type"]
    assert ModelConfig.from_published(dense).moe is None
    assert ModelConfig.from_published(routed).moe is not None


def test_model_type_decides_only_where_no_architecture_is_given() -> None:
    assert read("dream_gqa", architectures=None).family == "dream"
    reasoner = read("dreamreasoner")  # the same model_type, but blocks and no shift: not the same model
    assert (reasoner.family, reasoner.prediction_shift) == ("dream_reasoner", 0)
    with pytest.raises(UserError, match="block_size=8 under DreamModel: that is DreamReasoner"):
        read("dreamreasoner", architectures=None)


def test_an_unknown_architecture_lists_the_known_ones() -> None:
    with pytest.raises(UserError) as caught:
        read("dream_gqa", architectures=["GPT2LMHeadModel"])
    assert "GPT2LMHeadModel" in str(caught.value)
    assert all(name in str(caught.value) for name in FAMILIES)


def test_unknown_extra_keys_are_ignored() -> None:
    assert read("sdar_b4", torch_dtype="bfloat16", fuse_something=True) == read("sdar_b4")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("llada_mha_untied", "n_heads"),
        ("dream_gqa", "hidden_size"),
        ("llada_moe", "num_hidden_layers"),
        ("llada2_moe", "num_hidden_layers"),
        ("llada2_moe", "hidden_size"),
        ("sdar_b4", "vocab_size"),
    ],
)
def test_a_missing_size_is_named(name: str, key: str) -> None:
    with pytest.raises(UserError, match=key):
        read(name, **{key: None})


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("llada_mha_untied", {"block_type": "sequential"}),
        ("llada_mha_untied", {"activation_type": "swiglu"}),
        ("llada_mha_untied", {"layer_norm_type": "default"}),
        ("llada_mha_untied", {"rope": False}),
        ("llada_mha_untied", {"attention_layer_norm": True}),
        ("dream_gqa", {"use_sliding_window": True}),
        ("dream_gqa", {"rope_scaling": {"rope_type": "ntk", "factor": 4.0}}),
        ("sdar_b4", {"attention_bias": True}),
        ("llada_moe", {"moe_router_enable_expert_bias": True}),
        ("llada2_moe", {"score_function": "softmax"}),
        ("wedlm_bias", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
        ("wedlm_bias", {"use_sliding_window": True}),
        ("wedlm_bias", {"rope_scaling": {"type": "yarn", "factor": 0.5}}),
        ("nbdiff_gqa", {"hidden_act": "gelu"}),
        ("nbdiff_gqa", {"block_length": 512}),
    ],
)
def test_what_no_published_checkpoint_uses_is_refused(name: str, change: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(change))):
        read(name, **change)


def test_key_value_heads_follow_the_published_rules() -> None:
    assert read("llada_mha_untied", n_kv_heads=None).kv_heads == 4
    assert read("llada_mha_untied", n_kv_heads=None, multi_query_attention=True).kv_heads == 1
    with pytest.raises(UserError, match="contradict"):
        read("llada_mha_untied", n_kv_heads=2, multi_query_attention=True)


def test_mlp_width_falls_back_to_the_ratio_only_when_null() -> None:
    assert read("llada_mha_untied").mlp_width == 96
    assert read("llada_mha_untied", mlp_hidden_size=None).mlp_width == 256


def test_logit_columns_are_the_embedding_rows() -> None:
    assert read("llada_gqa_tied").vocab == 128
    assert read("llada_gqa_tied", embedding_size=None).vocab == 125


def test_usual_ids_fill_in_only_within_the_vocabulary() -> None:
    large = read("llada_moe", vocab_size=157184, eos_token_id=None)
    assert (large.mask_id, large.eos_id) == (156895, 156892)
    assert read("llada_moe").mask_id is None
    assert read("sdar_b4", vocab_size=151936, mask_token_id=None).mask_id == 151669
    assert read("sdar_b4", mask_token_id=None).mask_id is None


def test_the_first_of_several_eos_ids_counts() -> None:
    assert read("sdar_b4", eos_token_id=[7, 9]).eos_id == 7
    assert read("sdar_b4", eos_token_id=[]).eos_id is None


def test_theta_is_read_where_transformers_5_writes_it() -> None:
    assert read("dream_gqa", rope_theta=None, rope_parameters={"rope_theta": 5e5}).theta == 5e5


def test_wedlm_has_the_norms_of_its_body() -> None:
    """Qwen3's body has norms of queries and keys and no biases, Qwen2.5's the reverse. The key of the norms decides;
    without it, the biases do, as in the published engine. No class default counts."""
    assert (read("wedlm_qknorm").qk_norm, read("wedlm_qknorm").qkv_bias) == (True, False)
    assert (read("wedlm_bias").qk_norm, read("wedlm_bias").qkv_bias) == (False, True)
    assert read("wedlm_qknorm", qk_norm=None).qk_norm and not read("wedlm_bias", qk_norm=None).qk_norm
    assert not read("wedlm_qknorm", qk_norm=False).qk_norm
    with pytest.raises(UserError, match="lacks attention_bias"):
        read("wedlm_bias", attention_bias=None)


def test_nbdiff_has_biases_on_four_projections_and_none_in_the_mlp() -> None:
    for given in (True, False):
        config = read("nbdiff_gqa", bias=given)
        assert (config.qkv_bias, config.output_bias, config.mlp_bias) == (given, given, False)
    assert read("nbdiff_gqa", block_length=8).attention == ContextCausal(8)
    large = read("nbdiff_gqa", vocab_size=153376, eos_token_id=None)
    assert (large.mask_id, large.eos_id) == (45830, 45892)


def test_wedlm_takes_the_tokenizers_mask_before_the_usual_one(tmp_path: Path) -> None:
    """151665 is hard-coded in the fine-tuning code; a third-party port found 151666 in the tokenizer."""
    large = read("wedlm_bias", vocab_size=151936, mask_token_id=None)
    assert resolve_ids(large, None, None)[1].mask == 151665
    assert resolve_ids(large, None, 9)[1].mask == 9
    sdar_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.mask_id is not None and resolve_ids(large, tokenizer, None)[1].mask == tokenizer.mask_id
    assert resolve_ids(read("wedlm_bias", vocab_size=151936), tokenizer, 8)[1].mask == 8
    with pytest.raises(UserError, match="mask_id=None"):
        resolve_ids(read("wedlm_bias", mask_token_id=None), None, None)
