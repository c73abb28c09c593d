"""Loading a whole model: where it is looked for, which ids it gets, what is refused before weights are read."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from model_folders import DATA, copy_of, llada_tokenizer, published, random_folder, sdar_tokenizer

from dllm.models.weights import shipped
from dllm.parts import (
    CHECKPOINTS,
    FAMILIES,
    SettingWarning,
    UserError,
    choices,
    composed,
    describe,
    load,
    read_model_config,
    shipped_models,
    warn_of_mismatch,
    warn_once,
)


def with_tokenizer(folder: Path, **changes: Any) -> Path:
    """A random LLaDA of 264 columns beside the LLaDA-shaped tokenizer of 262 ids (mask 258, eos 257)."""
    ids = {"mask_token_id": 258, "eos_token_id": 257, "pad_token_id": 257}
    random_folder(folder, published("llada_mha_untied", vocab_size=264, embedding_size=264, **{**ids, **changes}))
    llada_tokenizer(folder)
    return folder


def test_a_folder_loads_with_its_ids(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = load(with_tokenizer(tmp_path / "mine"))
    assert (model.name, model.path) == ("mine", tmp_path / "mine")
    assert dataclasses.astuple(model.ids) == (258, 257, (257, 261), False)
    assert (model.config.mask_id, model.config.eos_id, model.config.pad_id) == (258, 257, 257)
    assert model.transformer.config is model.config
    assert model.tokenizer is not None
    assert not model.transformer.training


def test_every_model_of_the_configuration_names_the_architecture_that_it_expects() -> None:
    """The shipped ones have a file to compare with; none is named for the model that runs where none is chosen, nor for
    those that run through their own class."""
    for name in sorted({*choices("model")} - {"endpoint"}):
        given = composed([f"model={name}"])["model"]["expects"]
        assert given in FAMILIES or (name in ("mini-llada", "transformers") and given is None)
        if name in shipped_models() and given is not None:
            assert read_model_config(CHECKPOINTS / name).architecture == given


def test_a_folder_of_another_architecture_than_the_model_named_gets_a_line() -> None:
    dream = read_model_config(DATA / "dream_gqa")
    model = {"name": "llada-8b-instruct", "path": "my/dream", "expects": "LLaDAModelLM"}
    warn_once.cache_clear()
    with pytest.warns(
        SettingWarning, match="my/dream holds a checkpoint of DreamModel, and model=llada-8b-instruct names"
    ):
        warn_of_mismatch(model, dream)
    warn_once.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_mismatch({**model, "expects": "DreamModel"}, dream)
        warn_of_mismatch({**model, "expects": None}, dream)


def test_describe_needs_no_weights(tmp_path: Path) -> None:
    folder = with_tokenizer(tmp_path)
    (folder / "model.safetensors").unlink()
    where, config, tokenizer, ids, _ = describe(folder)
    assert (where, config.mask_id, ids.mask) == (folder, 258, 258)
    assert tokenizer is not None


def test_argument_beats_config_beats_tokenizer(tmp_path: Path) -> None:
    assert describe(with_tokenizer(tmp_path / "a", mask_token_id=65))[3].mask == 65
    assert describe(tmp_path / "a", mask_id=66)[3].mask == 66
    ids = describe(with_tokenizer(tmp_path / "b", mask_token_id=None, eos_token_id=None, pad_token_id=None))[3]
    assert dataclasses.astuple(ids) == (258, 257, (257, 261), False)


def test_pad_falls_back_to_eos_and_eos_to_pad() -> None:
    assert describe(DATA / "sdar_b4")[1].pad_id == 127
    assert describe(DATA / "llada2_moe", mask_id=130)[3].eos == 127


def test_a_folder_without_tokenizer_has_none() -> None:
    model = load(DATA / "tiny-dream")
    assert model.tokenizer is None
    assert dataclasses.astuple(model.ids) == (60, 61, (61,), False)


def test_an_unknown_mask_id_asks_for_one() -> None:
    with pytest.raises(UserError, match=r"mask_id=None.*Set mask_id=ID"):
        describe(DATA / "llada2_moe")


@pytest.mark.parametrize(
    ("mask", "rule"),
    [
        (500, "outside the embedding's ids, 0 to 263"),
        (-1, "outside"),
        (257, "also the pad id"),
        (263, "not a token of the tokenizer, which has 262 tokens. Its own mask token has id 258"),
    ],
)
def test_an_impossible_mask_id_is_refused(mask: int, rule: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"mask_id={mask} .*{rule}"):
        describe(with_tokenizer(tmp_path), mask_id=mask)


@pytest.mark.parametrize("mask", ["abc", 1.5, True, [3]])
def test_a_mask_id_of_another_type_is_refused(mask: Any) -> None:
    with pytest.raises(UserError, match="mask_id=.* must be an integer"):
        describe(DATA / "tiny-llada", mask_id=mask)


def test_ids_beyond_the_embedding_are_refused_by_their_source(tmp_path: Path) -> None:
    for key in ("eos_token_id", "pad_token_id", "mask_token_id"):
        with pytest.raises(UserError, match=f"config.json: {key}=264 lies outside the embedding's ids, 0 to 263"):
            describe(with_tokenizer(tmp_path / key, **{key: 264}))
    assert describe(tmp_path / "mask_token_id", mask_id=258)[3].mask == 258  # the argument helps over it


def test_loading_refuses_a_tokenizer_larger_than_the_logits(tmp_path: Path) -> None:
    folder = copy_of("llada_mha_untied", tmp_path)
    llada_tokenizer(folder)
    with pytest.raises(UserError, match="the tokenizer has 262 ids, the model's logits only 128 columns"):
        load(folder)


def test_a_missing_eos_is_refused(tmp_path: Path) -> None:
    random_folder(tmp_path, published("sdar_b4", eos_token_id=None))
    with pytest.raises(UserError, match="eos_token_id=null.*Add eos_token_id"):
        describe(tmp_path)


def test_bad_ids_are_refused_before_weights_are_read(tmp_path: Path) -> None:
    folder = copy_of("tiny-llada", tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="mask_id=61"):
        load(folder, mask_id=61)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", torch.bfloat16])
def test_dtypes_go_by_name_or_object(dtype: str | torch.dtype) -> None:
    model = load(DATA / "tiny-llada", dtype=dtype)
    assert str(model.transformer.dtype).endswith(str(dtype).removeprefix("torch."))


@pytest.mark.parametrize("dtype", ["bf16", "int8", "float8_e4m3fn", "", torch.int64])
def test_other_dtypes_are_refused(dtype: str | torch.dtype) -> None:
    with pytest.raises(UserError, match="must be one of float32, float64, bfloat16, float16"):
        load(DATA / "tiny-llada", dtype=dtype)


@pytest.mark.parametrize("device", ["cuda:99", "gpu", "cpuu"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(UserError, match=f"device='{device}'"):
        load(DATA / "tiny-llada", device=device)


def test_auto_finds_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert load(DATA / "tiny-llada", device="auto").transformer.device.type == "cpu"


def test_shipped_models_go_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_of("tiny-llada", tmp_path)
    monkeypatch.setattr(shipped, "CHECKPOINTS", tmp_path)
    assert load("tiny-llada").path == tmp_path / "tiny-llada"
    with pytest.raises(UserError, match="'tiny-lada' is not a shipped model.*Did you mean 'tiny-llada'"):
        load("tiny-lada")


def test_a_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_of("tiny-llada", tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load("~/tiny-llada").name == "tiny-llada"


def test_a_hub_id_is_fetched_without_weights_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def download(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        return str(DATA / "tiny-llada")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert load("owner/tiny-llada-8B").name == "tiny-llada-8B"
    assert ["*.safetensors" in patterns for patterns in asked] == [False, True]
    assert not any(pattern.endswith((".py", ".bin", "*")) for patterns in asked for pattern in patterns)


def test_a_failed_download_tells_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        raise OSError("no route to host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(UserError, match="owner/model.*no route to host.*path=FOLDER"):
        load("owner/model")


def test_sdar_takes_its_mask_from_the_tokenizer(tmp_path: Path) -> None:
    random_folder(tmp_path, published("sdar_b4", vocab_size=272, mask_token_id=None, eos_token_id=256))
    sdar_tokenizer(tmp_path)
    assert dataclasses.astuple(describe(tmp_path)[3]) == (260, 256, (256, 258), False)


def test_a_mini_model_knows_little_and_loading_it_warns_of_nothing(tiny: str) -> None:
    warn_once.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error", SettingWarning)
        mini, other = load("mini-llada"), load(tiny)
    assert mini.knows == "lists, puzzles, sentences and records" and other.knows == ""
