"""Which tensors of a folder count: the single file, the index's shard, names with a prefix, and what is left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from model_folders import DATA, copy_of, edit_weights, llada_tokenizer, logits, random_folder, shard
from model_folders import published as file_of
from safetensors.torch import load_file, save_file
from torch import Tensor

from dllm.parts import SettingWarning, UserError, describe, inspect_checkpoint, load_model, warn_once

TOKENS = torch.arange(90).view(2, 45)
ONE, TWO, INDEX = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:aaaa\nsize 12\n"


@pytest.fixture(autouse=True)
def fresh() -> None:
    warn_once.cache_clear()


def sharded(tmp_path: Path) -> tuple[Path, list[str]]:
    folder = copy_of("dream_gqa", tmp_path)
    return folder, shard(folder)


def renamed(folder: Path, prefix: str, gone: str = "") -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({prefix + name.removeprefix(gone): one for name, one in tensors.items()}, folder / "model.safetensors")


def original() -> Tensor:
    return logits(load_model(DATA / "dream_gqa"), TOKENS)


@pytest.mark.parametrize("there", [False, True], ids=["shards gone", "shards there"])
def test_the_single_file_counts_beside_an_index_of_an_earlier_save(there: bool, tmp_path: Path) -> None:
    """As transformers 5 reads both. It makes such a folder itself: sharded first, then saved once more in one file."""
    folder, _ = sharded(tmp_path)
    for name in (ONE, TWO):
        old = load_file(folder / name)
        save_file({key: torch.full_like(one, 0.01) for key, one in old.items()}, folder / name)
        if not there:
            (folder / name).unlink()
    new = load_file(DATA / "dream_gqa" / "model.safetensors")
    save_file(new, folder / "model.safetensors")
    with pytest.warns(SettingWarning, match="index.json is not read"):
        assert torch.equal(logits(load_model(folder), TOKENS), original())
    report = inspect_checkpoint(folder, mask_id=130)
    assert report.usable and report.shards == 1 and any("index.json is not read" in note for note in report.notes)


def test_of_two_copies_the_one_that_the_index_names_counts(tmp_path: Path) -> None:
    folder, second = sharded(tmp_path)
    first = load_file(folder / ONE)
    for other in (torch.zeros_like(first["lm_head.weight"]), first["lm_head.weight"].clone()):
        save_file({**load_file(folder / TWO), "lm_head.weight": other}, folder / TWO)
        assert torch.equal(logits(load_model(folder), TOKENS), original())
    weight_map = json.loads((folder / INDEX).read_text())["weight_map"] | {"lm_head.weight": TWO}
    save_file({**load_file(folder / TWO), "lm_head.weight": torch.zeros_like(first["lm_head.weight"])}, folder / TWO)
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    assert not logits(load_model(folder), TOKENS).any()


def test_a_tensor_that_the_index_does_not_name_is_left_out_with_a_line(tmp_path: Path) -> None:
    folder, _ = sharded(tmp_path)
    save_file({**load_file(folder / TWO), "model.layers.0.extra": torch.ones(2)}, folder / TWO)
    with pytest.warns(SettingWarning, match="left out: model.layers.0.extra, which the index does not name"):
        assert torch.equal(logits(load_model(folder), TOKENS), original())
    assert any("model.layers.0.extra" in note for note in inspect_checkpoint(folder, mask_id=130).notes)


def test_a_tensor_that_the_index_forgets_or_misplaces_is_found_in_its_only_shard(tmp_path: Path) -> None:
    folder, second = sharded(tmp_path)
    weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
    for edited in ({key: file for key, file in weight_map.items() if key != second[0]}, {**weight_map, second[0]: ONE}):
        (folder / INDEX).write_text(json.dumps({"weight_map": edited}))
        assert torch.equal(logits(load_model(folder), TOKENS), original())


def test_a_head_of_another_task_is_left_out_with_a_line(tmp_path: Path) -> None:
    """A value head, as dLLM-RL saves one. What lies inside the network is refused: it would change the answer."""
    folder = copy_of("dream_gqa", tmp_path)
    edit_weights(folder, value_head__weight=torch.ones(1, 64))
    with pytest.warns(SettingWarning, match="left out: value_head.weight, which this model does not use"):
        assert torch.equal(logits(load_model(folder), TOKENS), original())
    edit_weights(folder, model__layers__0__self_attn__q_norm__weight=torch.ones(16))
    with pytest.raises(UserError, match="q_norm.weight is not part of this architecture"):
        load_model(folder)


def test_a_file_without_the_base_prefix_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    random_folder(tmp_path, file_of("llada_gqa_tied"))
    expected = logits(load_model(tmp_path), TOKENS)
    renamed(tmp_path, "", "model.")
    assert torch.equal(logits(load_model(tmp_path), TOKENS), expected)
    folder = copy_of("dream_gqa", tmp_path / "dream")
    renamed(folder, "", "model.")
    assert torch.equal(logits(load_model(folder), TOKENS), original())
    edit_weights(folder, lm_head__weight=None)
    with pytest.raises(UserError, match=r"tensor lm_head.weight is missing\.$"):
        load_model(folder)


@pytest.mark.parametrize("prefix", ["module.", "base_model.model.", "model.", "_orig_mod.", "module.base_model.model."])
def test_a_prefix_of_a_wrapper_is_shown_beside_the_missing_name(prefix: str, tmp_path: Path) -> None:
    folder = copy_of("dream_gqa", tmp_path)
    renamed(folder, prefix)
    (problem,) = inspect_checkpoint(folder, mask_id=130).problems
    assert f"tensor lm_head.weight is missing, and the file has {prefix}lm_head.weight" in problem
    assert f"begin with {prefix!r}" in problem and ("merge_and_unload" in problem) == ("base_model" in prefix)


def test_names_of_another_layout_are_shown_beside_the_missing_ones(tmp_path: Path) -> None:
    folder = copy_of("dream_gqa", tmp_path)
    renamed(folder, "model.text.", "model.")
    place = "layers.0.self_attn.q_proj.weight"
    problems = inspect_checkpoint(folder, mask_id=130).problems
    assert f"tensor model.{place} is missing, and the file has model.text.{place}." in problems
    tensors = load_file(DATA / "dream_gqa" / "model.safetensors")
    peft = {f"base_model.model.{name.replace('q_proj.', 'q_proj.base_layer.')}": one for name, one in tensors.items()}
    save_file(peft, folder / "model.safetensors")
    assert "merge_and_unload" in inspect_checkpoint(folder, mask_id=130).verdict


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", INDEX])
def test_a_pointer_of_git_lfs_is_called_one(name: str, tmp_path: Path) -> None:
    folder = copy_of("llada_mha_untied", tmp_path)
    llada_tokenizer(folder)
    if name == INDEX:
        (folder / "model.safetensors").unlink()
    (folder / name).write_text(POINTER)
    problems = inspect_checkpoint(folder).problems  # another one: the tokenizer has more ids than the tiny model rows
    (problem,) = [one for one in problems if "Git LFS" in one]
    assert f"{name} is a Git LFS pointer" in problem and "git lfs pull" in problem


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt"])
def test_a_pointer_in_the_place_of_a_vocabulary_is_called_one(name: str, tmp_path: Path) -> None:
    folder = copy_of("dream_gqa", tmp_path)
    for file in ("vocab.json", "merges.txt"):
        (folder / file).write_text(POINTER if file == name else "{}")
    with pytest.raises(UserError, match=f"{name} is a Git LFS pointer"):
        describe(folder)


def test_other_weights_than_expected_are_listed(tmp_path: Path) -> None:
    folder = copy_of("dream_gqa", tmp_path)
    (folder / "model.safetensors").rename(folder / ONE)
    with pytest.raises(UserError, match=rf"neither model.safetensors nor {INDEX} \(it has {ONE}\)"):
        load_model(folder)
