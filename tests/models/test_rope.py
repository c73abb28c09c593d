"""Rotary keys in every spelling that files have: read the same, or refused with the places that contradict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from model_folders import copy_of, logits, published

from dllm.errors import UserError
from dllm.models.config import ModelConfig
from dllm.models.rope import yarn_of
from dllm.models.weights import load_model
from tests.parity import compare

TOKENS = torch.arange(40)[None]
REFERENCE: dict[str, Any] = {"rope_theta": 600000, "partial_rotary_factor": 0.5, "rotary_dim": 8}
UNSCALED = {"rope_type": "default", "rope_theta": 600000, "partial_rotary_factor": 0.5}
SPELLINGS: dict[str, dict[str, Any]] = {
    "neither": {"rope_theta": 600000},
    "rotary_dim": {"rope_theta": 600000, "rotary_dim": 8},
    "rope_parameters": {"rope_parameters": UNSCALED},
    "rope_scaling": {"rope_scaling": UNSCALED},
    "by-layer": {"rope_parameters": {"full_attention": UNSCALED}},
    "by-layer-null": {"rope_parameters": {"full_attention": UNSCALED, "sliding_attention": None}},
    "everywhere": {**REFERENCE, "rope_parameters": {**UNSCALED, "factor": 1.0}, "rope_scaling": None},
}
CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({**REFERENCE, "rotary_dim": 16}, "rotary_dim=16, partial_rotary_factor=0.5, head_dim=16: they contradict"),
    ({"rope_theta": 600000, "rotary_dim": 16}, "rotary_dim=16, partial_rotary_factor=0.5"),
    ({**REFERENCE, "rope_parameters": {"partial_rotary_factor": 1.0}},
     "partial_rotary_factor=0.5, rope_parameters.partial_rotary_factor=1.0: they contradict"),
    ({**REFERENCE, "rope_parameters": {"rope_theta": 5.0}}, "rope_theta=600000, rope_parameters.rope_theta=5.0"),
    ({**REFERENCE, "rope_parameters": {"full_attention": {"rope_theta": 5.0}}},
     "rope_parameters.full_attention.rope_theta=5.0"),
    ({"rope_parameters": {"full_attention": UNSCALED, "sliding_attention": {**UNSCALED, "rope_theta": 5.0}}},
     "rope_parameters.sliding_attention.rope_theta=5.0"),
    ({"rope_parameters": {"rope_theta": 5.0}, "rope_scaling": {"rope_theta": 6.0}}, "rope_scaling.rope_theta=6.0"),
]  # fmt: skip
SCALED: list[tuple[dict[str, Any], str]] = [
    ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters.rope_type='yarn'"),
    ({"rope_parameters": {"full_attention": {"rope_type": "llama3"}}}, "rope_parameters.full_attention.rope_type"),
    ({"rope_scaling": {"type": "linear", "rope_type": "default"}}, "rope_scaling.type='linear'"),
    ({"rope_scaling": {"factor": 2.0}}, "rope_scaling.factor=2.0"),
    ({"rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]}}, "rope_parameters.mrope_section"),
    ({"rope_parameters": {"rope_theta": "x"}}, "rope_parameters.rope_theta='x', which must be a number"),
    ({"rope_parameters": {"partial_rotary_factor": 1.5}}, "rope_parameters.partial_rotary_factor=1.5"),
    ({"rope_parameters": {"a": {"b": {"rope_theta": 5.0}}}}, "rope_parameters.a.b="),
    ({"rope_parameters": [1]}, "rope_parameters"), ({"rope_scaling": False}, "rope_scaling=false"),
]  # fmt: skip


def config_of(name: str, keys: dict[str, Any]) -> dict[str, Any]:
    """A published file with these rotary keys alone."""
    gone = ("rope_theta", "partial_rotary_factor", "rotary_dim", "rope_scaling")
    return {key: value for key, value in published(name).items() if key not in gone} | keys


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_half_a_head_rotates_in_every_spelling(spelling: str) -> None:
    found = ModelConfig.from_published(config_of("llada2_moe", SPELLINGS[spelling]))
    assert (found.rotary_dim, found.theta) == (8, 600000)
    assert found == ModelConfig.from_published(published("llada2_moe"))


def test_a_file_that_transformers_5_wrote_computes_the_published_logits(tmp_path: Path) -> None:
    folder = copy_of("llada2_moe", tmp_path)
    reference = logits(load_model(folder), TOKENS)
    for number in ("rope_parameters", "by-layer", "rotary_dim"):
        config = ModelConfig.from_published(config_of("llada2_moe", SPELLINGS[number]))
        assert torch.equal(logits(load_model(folder, config=config), TOKENS), reference)
    whole = ModelConfig.from_published(config_of("llada2_moe", {"rope_theta": 600000, "partial_rotary_factor": 1.0}))
    assert not torch.allclose(logits(load_model(folder, config=whole), TOKENS), reference)
    assert all(one.passed for one in compare(folder))


@pytest.mark.parametrize(("keys", "sentence"), CONTRADICTIONS + SCALED, ids=[str(one[0]) for one in
                                                                             CONTRADICTIONS + SCALED])  # fmt: skip
def test_what_contradicts_itself_or_is_scaled_is_refused_by_its_place(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        ModelConfig.from_published(config_of("llada2_moe", keys))
    assert "config.json" in str(caught.value) and sentence in str(caught.value)


@pytest.mark.parametrize("name", ["dream_gqa", "sdar_b4", "wedlm_qknorm", "nbdiff_gqa", "llada_moe", "llada_gqa_tied"])
def test_where_whole_heads_rotate_no_spelling_may_say_otherwise(name: str) -> None:
    whole = {"rope_theta": 5e5, "partial_rotary_factor": 1}
    found = ModelConfig.from_published(config_of(name, whole))
    assert found.rotary_dim == found.head_dim
    assert found == ModelConfig.from_published(config_of(name, whole | {"rotary_dim": found.head_dim}))
    for keys in ({"rotary_dim": found.head_dim // 2}, {"partial_rotary_factor": 0.5},
                 {"rope_parameters": {"partial_rotary_factor": 0.5}}):  # fmt: skip
        with pytest.raises(UserError, match=next(iter(keys)) if "rotary_dim" in keys else "partial_rotary_factor"):
            ModelConfig.from_published(config_of(name, whole | keys))


def test_theta_is_read_wherever_it_stands() -> None:
    for keys in ({"rope_theta": 5e5}, {"rope_parameters": {"rope_theta": 5e5}}, {"rope_scaling": {"rope_theta": 5e5}}):
        assert ModelConfig.from_published(config_of("dream_gqa", keys)).theta == 5e5
    assert ModelConfig.from_published(config_of("dream_gqa", {})).theta == 1e4
    assert ModelConfig.from_published(config_of("nbdiff_gqa", {})).theta == 1.6e7


@pytest.mark.parametrize("truncate", [True, False, None])
@pytest.mark.parametrize("beta", [32.0, 7.5])
def test_yarn_has_the_frequencies_of_transformers(truncate: bool | None, beta: float) -> None:
    """With the ramp at whole features and between them."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 512,
              "beta_fast": beta, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}  # fmt: skip
    scaled |= {} if truncate is None else {"truncate": truncate}
    config = LlamaConfig(hidden_size=256, num_attention_heads=4, max_position_embeddings=2048, rope_parameters=scaled)
    expected, _ = ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    found = yarn_of({"rope_parameters": {**scaled, "llama_4_scaling_beta": 0.0}}, "config.json")
    plain = 1e4 ** -(torch.arange(0, 64, 2).float() / 64)
    torch.testing.assert_close(found.frequencies(plain, 1e4), expected, rtol=1e-5, atol=1e-9)
    other = replace(found, truncate=not found.truncate).frequencies(plain, 1e4)
    assert not torch.allclose(other, expected, rtol=1e-3), "the two are told apart"
