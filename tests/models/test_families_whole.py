"""Every family: its memory as ``task=check`` tells it, its quantised weights, and what is like it and is not."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from model_folders import DATA, copy_of, edit_config, published, wide_folder
from safetensors import safe_open

from dllm import UserError, load
from dllm.parts import (
    DIFFUSION_GEMMA,
    FAMILIES,
    NEXT_TOKEN_FAMILIES,
    ModelConfig,
    fact_rows,
    inspect_checkpoint,
    plain_folder,
)
from tests.support.family_folders import make_family

# DiffusionGemma's file is of another form (``test_diffusion_gemma.py``), and next tokens are in ``test_next_token.py``.
FOLDERS = sorted(folder.name for folder in DATA.iterdir() if not folder.name.startswith("dg_"))
ONE_OF_EACH = {published(name)["architectures"][0]: name for name in FOLDERS if not name.startswith("tiny")}


def test_a_folder_of_every_family_is_here() -> None:
    assert {*ONE_OF_EACH, DIFFUSION_GEMMA, *NEXT_TOKEN_FAMILIES} == FAMILIES.keys()


def counted(folder: Path) -> int:
    """Numbers of all tensors in the file. Left out are a tied head that it holds all the same, and tables of angles."""
    config = json.loads((folder / "config.json").read_text())
    tied = config.get("weight_tying", config.get("tie_word_embeddings", False))
    shapes: dict[str, list[int]] = {}
    for shard in plain_folder(folder).glob("model*.safetensors"):
        with safe_open(shard, "pt") as file:
            shapes |= {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    head = {"lm_head.weight", "model.transformer.ff_out.weight"} if tied else set()
    left_out = {name for name in shapes if name.endswith("inv_freq")}
    return sum(prod(shape) for name, shape in shapes.items() if name not in head | left_out)


@pytest.mark.parametrize("name", FOLDERS)
def test_memory_is_that_of_the_files(name: str) -> None:
    """Weights by the tensors' headers, a cache by the file's own keys: two numbers a layer and key feature."""
    config, report = published(name), inspect_checkpoint(DATA / name, mask_id=60)
    heads = next(config[key] for key in ("n_heads", "num_attention_heads") if key in config)
    kv = next((config[key] for key in ("n_kv_heads", "num_key_value_heads") if config.get(key)), heads)
    width, layers = (
        config[one] if one in config else config[two]
        for one, two in (("d_model", "hidden_size"), ("n_layers", "num_hidden_layers"))
    )
    features = config.get("head_dim") or width // heads
    assert report.parameters == counted(DATA / name)
    for dtype, size in (("bfloat16", 2), ("float32", 4)):
        assert report.weight_bytes(dtype) == size * report.parameters
        assert report.kv_bytes(dtype) == size * 2 * layers * kv * features
    rows = dict(fact_rows(report))
    assert rows["memory bfloat16"].endswith("fits here")
    gib = 1024 * report.kv_bytes("float32") / 2**30
    assert rows["cache float32"].startswith(f"keys and values of 1,024 tokens: {gib:.3g} GiB")


@pytest.mark.daily(10)
@pytest.mark.parametrize("name", sorted(ONE_OF_EACH.values()))
@pytest.mark.parametrize(("kind", "error"), [("int8", 0.15), ("int4", 0.8)])
def test_quantised_weights_of_a_family_stay_close(name: str, kind: str, error: float, tmp_path: Path) -> None:
    """A wrong place of a scale shows errors above 1."""
    wide_folder(name, tmp_path)
    whole, narrow = (load(tmp_path, dtype="bfloat16", mask_id=60, quantize=way).transformer for way in (None, kind))
    tokens = torch.arange(24)[None] % 60
    masked = torch.arange(24)[None] >= 16
    with torch.inference_mode():
        expected, found = (one.logits(one.encode(tokens, None, masked, 8)) for one in (whole, narrow))
    assert 0 < float((expected - found).abs().mean() / expected.abs().mean()) < error


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        load(folder, **options)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize(
    ("architecture", "parts"),
    [
        ("VLMModel", ("Nemotron-Labs-Diffusion with a tower", "NemotronLabsDiffusionModel")),
        ("NemotronHTwoTowerForCausalLM", ("TwoTower", "Take Nemotron-Labs-Diffusion")),
        ("LlavaLLaDAModelLM", ("LLaDA-V", "GSAI-ML/LLaDA-8B-Instruct")),
        ("MMadaModelLM", ("MMaDA", "GSAI-ML")),
        ("Qwen3MoeForCausalLM", ("predicts the next token", "RND1", "RND1LM")),
    ],
)
def test_an_architecture_that_is_not_ours_is_refused_with_the_nearest(
    architecture: str, parts: tuple[str, ...], tmp_path: Path
) -> None:
    folder = copy_of("nemotron", tmp_path)
    edit_config(folder, architectures=[architecture])
    sentence = refusal(folder)
    assert all(part in sentence for part in (architecture, *parts)), sentence


@pytest.mark.parametrize("name", ["nemotron", "illada", "dream_gqa", "efficient_dlm"])
def test_towers_beside_a_known_family_are_named(name: str, tmp_path: Path) -> None:
    folder = copy_of(name, tmp_path)
    edit_config(folder, vision_config={"depth": 2})
    sentence = refusal(folder)
    assert "towers for images or sound" in sentence and "Take the family's text model" in sentence
    assert published(name)["architectures"][0] in sentence


def without_mask(name: str, folder: Path) -> Path:
    """The family's folder, whose config and tokenizer name no mask."""
    make_family(name, folder)
    for file in ("config.json", "tokenizer_config.json", "tokenizer.json"):
        text = (folder / file).read_text().replace("<|mdm_mask|>", "<|hole|>")
        content = json.loads(text)
        content.pop("mask_token_id", None), content.pop("mask_token", None)
        (folder / file).write_text(json.dumps(content))
    return folder


def test_a_mask_text_that_the_tokenizer_lacks_is_told(tmp_path: Path) -> None:
    """Id 5 is iLLaDA's usual mask, and here an ordinary word."""
    folder = without_mask("illada", tmp_path / "illada")
    sentence = refusal(folder)
    assert "the mask of ILLaDAForCausalLM is usually id 5" in sentence and "5 is its 'w5'. Set mask_id=ID" in sentence
    assert load(folder, mask_id=60).ids.mask == 60
    sentence = refusal(without_mask("a2d", tmp_path / "a2d"))
    assert "neither config.json (mask_token_id) nor the tokenizer names a mask token" in sentence


@pytest.mark.parametrize(
    ("name", "block", "sentence"),
    [
        ("a2d-bd3lm", -1, "attention_block=-1 must be from 0 to the model's 512 positions."),
        ("a2d-bd3lm", 999, "attention_block=999 must be from 0 to the model's 512 positions."),
        ("fastdllm_v2", 1, "attention_block=1, but config.json says bd_size=8. Set attention_block=None."),
        ("nemotron", 4, "attention_block=4, but config.json says block_size=8. Set attention_block=None."),
        ("diffcoder", 0, "attention_block=0 must be from 1 to the model's 512 positions."),
        (
            "rnd1",
            8,
            "attention_block=8: the attention of RND1LM is full, which has no blocks. Set attention_block=None.",
        ),
    ],
)
def test_a_block_that_the_attention_cannot_have_is_told(name: str, block: int, sentence: str, tmp_path: Path) -> None:
    assert refusal(make_family(name, tmp_path / name), attention_block=block) == sentence


def test_an_autoregressive_class_of_an_unknown_body_gets_the_list() -> None:
    with pytest.raises(UserError, match="known architectures are A2DLlamaLMHeadModel"):
        ModelConfig.from_published({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"})


@pytest.mark.parametrize("name", ["nemotron", "efficient_dlm"])
def test_a_head_that_is_never_tied_may_not_be_said_to_be(name: str) -> None:
    published = json.loads((DATA / name / "config.json").read_text())
    assert ModelConfig.from_published(published)
    with pytest.raises(UserError, match="the head is never tied"):
        ModelConfig.from_published({**published, "tie_word_embeddings": True})
