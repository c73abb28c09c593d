"""Law 15 for GGUF: what its metadata say is computed, refused by name, or reported; what changes nothing passes.

Files are written by gguf's own writer. That a factor counts without a type, that type ``none`` switches it off and that
zero stands for one is llama.cpp's loader's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGUFValueType as Type
from model_folders import copy_of, logits, published

from dllm.parts import ModelConfig, UserError, inspect_checkpoint, load_model, locate, read_model_config
from tests.parity import compare

SIZE, VOCAB, LAYERS = 32, 64, 2
NUMBER = {bool: Type.BOOL, int: Type.UINT32, float: Type.FLOAT32, str: Type.STRING}
SIZES = {
    "block_count": LAYERS,
    "context_length": 128,
    "embedding_length": SIZE,
    "feed_forward_length": SIZE,
    "attention.head_count": 2,
    "attention.head_count_kv": 2,
    "rope.freq_base": 1e4,
    "attention.layer_norm_rms_epsilon": 1e-5,
}


def written(
    file: Path,
    more: Mapping[str, Any] = {},
    tensors: Mapping[str, Any] = {},
    name: str = "llada",
    order: gguf.GGUFEndian = gguf.GGUFEndian.LITTLE,
    wide: type = np.float32,
) -> dict[str, np.ndarray[Any, Any]]:
    """A file of random weights, with ``more`` in its metadata; a key that begins with a dot is the architecture's.
    Returns its matrices."""
    draw, writer = np.random.default_rng(3), gguf.GGUFWriter(file, name, endianess=order)
    plain = {f".{key}": value for key, value in SIZES.items()}
    ids = {"tokenizer.ggml.mask_token_id": 60, "tokenizer.ggml.eos_token_id": 61}
    for key, value in (plain | ids | dict(more)).items():
        kind = (
            Type.ARRAY if isinstance(value, list) else Type.STRING if isinstance(value, bytes) else NUMBER[type(value)]
        )
        writer.add_key_value(name + key if key.startswith(".") else key, value, kind)
    shapes = {"token_embd": VOCAB, "output": VOCAB} | {
        f"blk.{layer}.{part}": SIZE
        for layer in range(LAYERS)
        for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    }
    found: dict[str, np.ndarray[Any, Any]] = {
        part: draw.normal(0, 0.5, (rows, SIZE)).astype(wide) for part, rows in shapes.items()
    }
    norms = ["output_norm", *(f"blk.{layer}.{one}_norm" for layer in range(LAYERS) for one in ("attn", "ffn"))]
    if name == "dream":
        tensors = {
            f"blk.{layer}.attn_{one}.bias": np.zeros(SIZE, np.float32) for layer in range(LAYERS) for one in "qkv"
        }
    for part, values in (found | {norm: np.ones(SIZE, np.float32) for norm in norms}).items():
        writer.add_tensor(f"{part}.weight", values)
    for part, values in tensors.items():
        writer.add_tensor(part, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return found


PASSES: dict[str, dict[str, Any]] = {
    "linear by one": {".rope.scaling.type": "linear", ".rope.scaling.factor": 1.0},
    "linear without a factor": {".rope.scaling.type": "linear"},
    "a factor of zero": {".rope.scaling.factor": 0.0},
    "a factor that none switches off": {".rope.scaling.type": "none", ".rope.scaling.factor": 4.0},
    "lengths of pretraining": {".rope.scaling.original_context_length": 64, ".rope.scaling.finetuned": True},
    "one number for each layer": {".attention.head_count_kv": [2, 2], ".feed_forward_length": [SIZE, SIZE]},
    "switched off": {".attention.causal": False, ".attention.sliding_window": 0, ".logit_scale": 1.0},
    "keys of other things": {"other.key": "x", "tokenizer.ggml.odd": 2},
    "where it comes from": {"general.name": "x", "general.tags": ["a"], "quantize.imatrix.file": "y"},
    "a text that is not UTF-8": {"general.description": b"caf\xe9"},
    "unshifted": {"diffusion.shift_logits": False},
}


@pytest.mark.parametrize("name", PASSES)
def test_what_changes_nothing_passes(name: str, tmp_path: Path) -> None:
    written(tmp_path / "plain.gguf")
    written(tmp_path / "more.gguf", PASSES[name])
    expected, found = load_model(tmp_path / "plain.gguf"), load_model(tmp_path / "more.gguf")
    assert found.config == expected.config and not found.config.warnings
    assert all(torch.equal(one, found.state_dict()[key]) for key, one in expected.state_dict().items())


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({".rope.scaling.factor": 4.0}, r"scaled rotary embeddings \(llada\.rope\.scaling\.factor=4\.0\)"),
    ({".rope.scale_linear": 4.0}, r"llada\.rope\.scale_linear=4\.0"),
    ({".rope.scaling.type": "linear", ".rope.scaling.factor": 2.0}, r"llada\.rope\.scaling\.factor=2\.0"),
    ({".rope.scaling.type": "yarn", ".rope.scaling.factor": 1.0}, r"llada\.rope\.scaling\.type='yarn'"),
    ({".rope.scaling.attn_factor": 2.0}, r"rope\.scaling\.attn_factor=2\.0"),
    ({".attention.head_count_kv": [1, 2]}, r"head_count_kv=\[1, 2\]: one number for all 2 layers is supported"),
    ({".attention.head_count_kv": [2]}, r"head_count_kv=\[2\]: one number for all 2 layers"),
    ({".attention.value_length": 8}, r"llada\.attention\.value_length=8, and heads of 16"),
    ({".attention.key_length": 8}, r"llada\.attention\.key_length=8, and heads of 16"),
    ({"diffusion.shift_logits": True}, r"diffusion\.shift_logits=true, and llada is read with false"),
    (
        {".attention.layer_norm_rms_epsilon": 7.0},
        r"rms_norm_eps=7\.0, .* Take another GGUF file, or the checkpoint's s",
    ),
    ({"tokenizer.ggml.pre": b"caf\xe9"}, "not a readable GGUF file"),
]


@pytest.mark.parametrize(("more", "sentence"), REFUSED, ids=str)
def test_what_would_change_the_numbers_is_refused(more: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    written(tmp_path / "m.gguf", more)
    with pytest.raises(UserError, match=sentence):
        load_model(tmp_path / "m.gguf")
    assert not inspect_checkpoint(tmp_path / "m.gguf").usable


def test_dream_is_read_from_the_row_before(tmp_path: Path) -> None:
    for shift, right in ((True, True), (False, False)):
        written(tmp_path / "m.gguf", {"diffusion.shift_logits": shift}, name="dream")
        if right:
            assert read_model_config(tmp_path / "m.gguf").prediction_shift == 1
        else:
            with pytest.raises(UserError, match=r"shift_logits=false, and dream is read with true"):
                read_model_config(tmp_path / "m.gguf")


@pytest.mark.parametrize(("factors", "ones"), [((1, 1), True), ((1, 8), False)])
def test_factors_of_frequencies_pass_where_all_are_one(factors: tuple[int, int], ones: bool, tmp_path: Path) -> None:
    written(tmp_path / "m.gguf", tensors={"rope_freqs.weight": np.repeat(factors, 4).astype(np.float32)})
    if ones:
        assert not load_model(tmp_path / "m.gguf").config.warnings
    else:
        with pytest.raises(UserError, match=r"scaled rotary embeddings \(rope_freqs\.weight\)"):
            load_model(tmp_path / "m.gguf")


def test_keys_of_the_network_that_nothing_reads_are_reported(tmp_path: Path) -> None:
    more = {
        ".attention.sliding_window": 64,
        ".attention.causal": True,
        ".logit_scale": 0.5,
        ".attention.clamp_kqv": 8.0,
        ".new": 1,
        "diffusion.odd": 2,
    }
    written(tmp_path / "m.gguf", more)
    (sentence,) = load_model(tmp_path / "m.gguf").config.warnings
    assert sentence.startswith("m.gguf has keys that are not known here, and so are not read: ")
    assert all(key.removeprefix(".") in sentence for key in more)
    assert sentence in inspect_checkpoint(tmp_path / "m.gguf").notes


def test_f64_is_read_to_its_last_bit(tmp_path: Path) -> None:
    matrices = written(tmp_path / "m.gguf", wide=np.float64)
    found = load_model(tmp_path / "m.gguf", dtype=torch.float64, fuse=False)
    for part, ours in (("token_embd", "embed"), ("blk.1.ffn_up", "layers.1.mlp.up"), ("output", "lm_head")):
        values = torch.from_numpy(matrices[part])
        assert torch.equal(found.get_parameter(f"{ours}.weight"), values)
        assert not torch.equal(values.float().double(), values), "more than float32 holds"


def test_bytes_in_the_other_order_are_named(tmp_path: Path) -> None:
    written(tmp_path / "m.gguf", order=gguf.GGUFEndian.BIG)
    with pytest.raises(UserError, match=r"bytes in the other order \(big-endian\)\. Take the little-endian file"):
        load_model(tmp_path / "m.gguf")


def test_a_file_without_the_suffix_is_known_by_how_it_begins(tmp_path: Path) -> None:
    """Ollama's blobs are called by their hash."""
    written(tmp_path / "sha256-0a1b")
    assert locate(tmp_path / "sha256-0a1b") == tmp_path / "sha256-0a1b"
    assert inspect_checkpoint(tmp_path / "sha256-0a1b").usable
    (tmp_path / "model.bin").write_bytes(b"other")
    with pytest.raises(UserError, match=r"model\.bin' is a file, and no GGUF\. Give the folder"):
        locate(tmp_path / "model.bin")


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
    (
        {**REFERENCE, "rope_parameters": {"partial_rotary_factor": 1.0}},
        "partial_rotary_factor=0.5, rope_parameters.partial_rotary_factor=1.0: they contradict",
    ),
    ({**REFERENCE, "rope_parameters": {"rope_theta": 5.0}}, "rope_theta=600000, rope_parameters.rope_theta=5.0"),
    (
        {**REFERENCE, "rope_parameters": {"full_attention": {"rope_theta": 5.0}}},
        "rope_parameters.full_attention.rope_theta=5.0",
    ),
    (
        {"rope_parameters": {"full_attention": UNSCALED, "sliding_attention": {**UNSCALED, "rope_theta": 5.0}}},
        "rope_parameters.sliding_attention.rope_theta=5.0",
    ),
    ({"rope_parameters": {"rope_theta": 5.0}, "rope_scaling": {"rope_theta": 6.0}}, "rope_scaling.rope_theta=6.0"),
]
SCALED: list[tuple[dict[str, Any], str]] = [
    ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters: neither factor nor"),
    ({"rope_parameters": {"full_attention": {"rope_type": "llama3"}}}, "rope_parameters.full_attention.factor"),
    ({"rope_scaling": {"factor": 2.0}}, "rope_scaling.factor=2.0"),
    ({"rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]}}, "rope_parameters.mrope_section"),
    ({"rope_parameters": {"rope_theta": "x"}}, "rope_parameters.rope_theta='x', which must be a number"),
    ({"rope_parameters": {"partial_rotary_factor": 1.5}}, "rope_parameters.partial_rotary_factor=1.5"),
    ({"rope_parameters": {"a": {"b": {"rope_theta": 5.0}}}}, "rope_parameters.a.b="),
    ({"rope_parameters": [1]}, "rope_parameters"),
    ({"rope_scaling": False}, "rope_scaling=false"),
]


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


@pytest.mark.parametrize(
    ("keys", "sentence"), CONTRADICTIONS + SCALED, ids=[str(one[0]) for one in CONTRADICTIONS + SCALED]
)
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
    for keys in (
        {"rotary_dim": found.head_dim // 2},
        {"partial_rotary_factor": 0.5},
        {"rope_parameters": {"partial_rotary_factor": 0.5}},
    ):
        with pytest.raises(UserError, match=next(iter(keys)) if "rotary_dim" in keys else "partial_rotary_factor"):
            ModelConfig.from_published(config_of(name, whole | keys))


def test_theta_is_read_wherever_it_stands() -> None:
    for keys in ({"rope_theta": 5e5}, {"rope_parameters": {"rope_theta": 5e5}}, {"rope_scaling": {"rope_theta": 5e5}}):
        assert ModelConfig.from_published(config_of("dream_gqa", keys)).theta == 5e5
    assert ModelConfig.from_published(config_of("dream_gqa", {})).theta == 1e4
    assert ModelConfig.from_published(config_of("nbdiff_gqa", {})).theta == 1.6e7
