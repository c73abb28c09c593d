"""What a config.json leaves open of attention: the argument, the folder's name, or a refusal."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_folders import copy_of, published

from dllm.app.commands.checkpoint import inspect_checkpoint
from dllm.errors import UserError
from dllm.models.bundle import describe
from dllm.models.config import ModelConfig
from dllm.models.visibility import FULL, AnswerBlocks, BlockCausal, SeededBlocks
from dllm.models.weights import read_model_config


@pytest.mark.parametrize(("place", "given", "kind", "words"), [
    ("a2d", None, FULL, "full attention is taken, as the -mdlm checkpoints have it"),
    ("Qwen3-0.6B-diffusion-bd3lm-v0.1", None, AnswerBlocks(32), "blocks of 32 columns are taken, since the name"),
    ("models--dllm-hub--Qwen3-diffusion-bd3lm-v0.1/snapshots/0a", None, AnswerBlocks(32), "-bd3lm-v0.1 says so"),
    ("bd3lm/mdlm", None, FULL, "since the name mdlm says so"),
    ("bd3lm", 0, FULL, ""), ("mdlm", 16, AnswerBlocks(16), ""),
])  # fmt: skip
def test_an_a2d_folder_does_not_tell_its_attention(
    place: str, given: int | None, kind: object, words: str, tmp_path: Path
) -> None:
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    folder = copy_of("a2d_qwen3", tmp_path).rename(tmp_path / place)
    config = read_model_config(folder, given)
    assert config.attention == kind
    report = inspect_checkpoint(folder, 130, given)
    assert report.usable and any("does not say which attention" in note for note in report.notes) == bool(words)
    assert not words or (words in config.unsaid and "model.attention_block" in config.unsaid)


def config_of(name: str, block: int | None, **changes: object) -> ModelConfig:
    return ModelConfig.from_published(published(name, **changes)).with_attention_block(block)


def test_a_block_that_the_file_leaves_out_is_the_users() -> None:
    assert config_of("sdar_b4", 32, block_size=None).attention == BlockCausal(32)
    assert config_of("sdar_b4", None, block_size=None).unsaid and not config_of("sdar_b4", 32, block_size=None).unsaid
    assert config_of("diffcoder", 8).attention == BlockCausal(8)
    assert config_of("fastdllm_v2", 16, bd_size=None).attention == SeededBlocks(16)
    assert config_of("sdar_b4", 4).attention == BlockCausal(4)


@pytest.mark.parametrize(("name", "block", "words"), [
    ("sdar_b4", 8, "model.attention_block=8, but config.json says block_size=4"),
    ("fastdllm_v2", 4, "model.attention_block=4, but config.json says bd_size=8"),
    ("dream_gqa", 32, "model.attention_block=32: the attention of DreamModel is full, which has no blocks"),
    ("wedlm_bias", 4, "known tokens before masks, which has no blocks"),
    ("a2d_qwen3", -1, "model.attention_block=-1 must be from 0 to the model's 256 positions"),
    ("a2d_qwen3", 257, "must be from 0 to"), ("diffcoder", 0, "must be from 1 to"), ("diffcoder", 999, "from 1 to"),
])  # fmt: skip
def test_a_block_that_cannot_be_is_refused(name: str, block: int, words: str) -> None:
    with pytest.raises(UserError) as caught:
        config_of(name, block)
    assert words in str(caught.value)


def test_a_mask_that_nothing_names_is_asked_for(tmp_path: Path) -> None:
    """151669 is no id of this vocabulary; iLLaDA's 5 is."""
    with pytest.raises(UserError, match="mask_id=None: neither config.json"):
        describe(copy_of("a2d_qwen3", tmp_path))
    assert describe(copy_of("illada", tmp_path))[3].mask == 5


@pytest.mark.parametrize(("config", "words"), [
    ({"architectures": ["VLMModel"]}, "a Nemotron-Labs-Diffusion with a tower for images.*NemotronLabsDiffusionModel"),
    ({"architectures": ["NemotronHTwoTowerForCausalLM"]}, "Nemotron-Labs-TwoTower.*Take Nemotron-Labs-Diffusion"),
    ({"architectures": ["MMadaModelLM"]}, "MMaDA, which reads and draws images"),
    ({"architectures": ["Other"], "vision_config": {}}, "towers beside the text model"),
    ({"architectures": ["LlamaForCausalLM"]}, "predicts the next token, and a mask means nothing to it"),
    ({"architectures": ["NoSuchModel"]}, "known architectures are"),
])  # fmt: skip
def test_other_models_are_refused_by_name(config: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        ModelConfig.from_published(published("diffcoder", **config, auto_map=None))


def test_an_older_diffcoder_is_told_by_its_remote_class() -> None:
    older = {"AutoModel": "modeling_seed_diffcoder.SeedDiffcoderForCausalLM"}
    config = ModelConfig.from_published(published("diffcoder", architectures=["LlamaForCausalLM"], auto_map=older))
    assert config.family == "diffcoder" and config.architecture == "StableDiffcoderForCausalLM"
