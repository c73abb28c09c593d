"""Published files to parameters: what is missing, misshapen, split, tied, pickled or broken."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from model_folders import DATA, PARITY, copy_of, edit_config, edit_weights, logits, published, random_folder, shard
from safetensors.torch import load_file, save_file

from dllm.parts import (
    ModelConfig,
    Transformer,
    UserError,
    apart,
    load_model,
    locate,
    parameter_sources,
    read_contents,
    save_model,
)
from tests.support.adapters import stored

TOKENS = torch.arange(90).view(2, 45)


@pytest.mark.parametrize("name", [folder.name for folder in PARITY])
def test_a_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    folder = copy_of(name, tmp_path)
    gone = sorted(load_file(folder / "model.safetensors"))[3]
    edit_weights(folder, **{gone: None})
    with pytest.raises(UserError, match=f"tensor {gone} is missing"):
        load_model(folder)


@pytest.mark.parametrize("name", [folder.name for folder in PARITY])
def test_a_misshapen_tensor_is_named(name: str, tmp_path: Path) -> None:
    folder = copy_of(name, tmp_path)
    bent = sorted(load_file(folder / "model.safetensors"))[3]
    edit_weights(folder, **{bent: torch.zeros(5, 7)})
    with pytest.raises(UserError, match=rf"tensor {bent} has shape \[5, 7\]"):
        load_model(folder)


def test_an_extra_tensor_is_named(tmp_path: Path) -> None:
    folder = copy_of("llada_mha_untied", tmp_path)
    edit_weights(folder, model__transformer__wpe__weight=torch.zeros(2))
    with pytest.raises(UserError, match=r"model\.transformer\.wpe\.weight is not part"):
        load_model(folder)


def test_rotary_frequencies_of_old_files_are_ignored(tmp_path: Path) -> None:
    folder = copy_of("dream_gqa", tmp_path)
    edit_weights(folder, model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(8))
    assert torch.equal(logits(load_model(folder), TOKENS), logits(load_model(DATA / "dream_gqa"), TOKENS))


def test_a_tied_head_may_be_absent_or_equal_but_not_different(tmp_path: Path) -> None:
    folder = copy_of("llada_gqa_tied", tmp_path)
    embedding = load_file(folder / "model.safetensors")["model.transformer.wte.weight"]
    model = load_model(folder)
    assert model.lm_head.weight is model.embed.weight
    edit_weights(folder, model__transformer__ff_out__weight=embedding.clone())
    assert torch.equal(logits(load_model(folder), TOKENS), logits(model, TOKENS))
    edit_weights(folder, model__transformer__ff_out__weight=embedding + 1)
    with pytest.raises(UserError, match=r"model\.transformer\.ff_out\.weight differs"):
        load_model(folder)


def test_the_head_and_the_down_projection_share_a_name_but_not_a_place(tmp_path: Path) -> None:
    folder = copy_of("llada_mha_untied", tmp_path)
    edit_weights(folder, model__transformer__ff_out__weight=None)
    with pytest.raises(UserError, match=r"tensor model\.transformer\.ff_out\.weight is missing"):
        load_model(folder)


@pytest.mark.parametrize("name", ["llada_mha_untied", "llada2_moe"])
def test_two_shards_load_like_one_file(name: str, tmp_path: Path) -> None:
    folder = copy_of(name, tmp_path)
    shard(folder)
    assert len({tensor.file for tensor in read_contents(folder).tensors.values()}) == 2
    assert torch.equal(logits(load_model(folder), TOKENS), logits(load_model(DATA / name), TOKENS))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = copy_of("llada_mha_untied", tmp_path)
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(UserError, match=r"lacks model-00002-of-00002\.safetensors"):
        load_model(folder)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": {}}'])
def test_a_broken_index_is_refused(text: str, tmp_path: Path) -> None:
    folder = copy_of("llada_mha_untied", tmp_path)
    shard(folder)
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(UserError, match=r"index\.json"):
        load_model(folder)


def test_a_bfloat16_file_loads_in_any_dtype(tmp_path: Path) -> None:
    folder = copy_of("llada2_moe", tmp_path)
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors")
    for dtype in (torch.float32, torch.bfloat16):
        model = load_model(folder, dtype=dtype)
        kinds = {name.rsplit(".", 1)[-1]: parameter.dtype for name, parameter in apart(model)}
        assert kinds == {"weight": dtype, "expert_bias": torch.float32}
    expected = tensors["model.word_embeddings.weight"].float()
    assert torch.equal(load_model(folder).embed.weight, expected)


def test_grouped_layers_have_names_of_their_own(tmp_path: Path) -> None:
    config = published("llada_mha_untied", n_layers=4, block_group_size=2)
    model = random_folder(tmp_path, config)
    names = load_file(tmp_path / "model.safetensors")
    assert "model.transformer.block_groups.1.0.q_proj.weight" in names
    assert torch.equal(names["model.transformer.block_groups.1.0.q_proj.weight"], model.layers[2].attn.q.weight)
    assert torch.equal(logits(load_model(tmp_path), TOKENS), logits(model, TOKENS))


def weights(names: Iterable[str], tied: bool) -> set[str]:
    """Those that belong to the model: openPangu's files hold the tables of its rotation, too, which theta implies, and
    some of A2D's a tied head."""
    return {name for name in names if not name.endswith("rotary_emb.inv_freq")} - (
        {"lm_head.weight"} if tied else set()
    )


@pytest.mark.parametrize("folder", PARITY, ids=lambda folder: folder.name)
def test_saving_and_loading_changes_no_bit(folder: Path, tmp_path: Path) -> None:
    model = load_model(folder)
    save_model(model, tmp_path)
    before, after = stored(folder), load_file(tmp_path / "model.safetensors")
    assert weights(before, model.config.tied) == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in after)
    assert torch.equal(logits(load_model(tmp_path), TOKENS), logits(model, TOKENS))


@pytest.mark.parametrize("folder", PARITY, ids=lambda folder: folder.name)
def test_a_meta_model_knows_every_published_name(folder: Path) -> None:
    with torch.device("meta"):
        model = Transformer(ModelConfig.from_published(published(folder.name)))
    assert all(parameter.is_meta for parameter in model.parameters())
    assert {source.name for source in parameter_sources(model).values()} == weights(
        read_contents(folder).tensors, model.config.tied
    )


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    folder = copy_of("llada_mha_untied", tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model\.bin, a pickle"):
        load_model(folder)


def test_a_folder_without_weights_says_so(tmp_path: Path) -> None:
    folder = copy_of("llada_mha_untied", tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"holds neither model\.safetensors nor"):
        load_model(folder)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    folder = copy_of("llada_mha_untied", tmp_path)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"model\.safetensors is not a readable"):
        load_model(folder)


def test_a_folder_without_config_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no config\.json"):
        load_model(tmp_path)


@pytest.mark.parametrize("content", [b'{"architectures":', b"[1]", b"\xff\xfe"], ids=["cut", "list", "binary"])
def test_a_broken_config_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UserError, match=r"config\.json"):
        load_model(tmp_path)


def test_config_and_weights_must_agree(tmp_path: Path) -> None:
    folder = copy_of("llada_mha_untied", tmp_path)
    edit_config(folder, mlp_hidden_size=95)
    with pytest.raises(UserError, match=r"ff_proj\.weight has shape \[96, 64\], config.json implies \[95, 64\]"):
        load_model(folder)


def test_a_path_that_is_nothing_is_refused_without_the_network(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a folder or a hub id"):
        locate(tmp_path / "nothing" / "here")


def test_auto_uses_the_cpu_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    model = load_model(DATA / "llada_gqa_tied", device="auto")
    assert model.device.type == "cpu"
    assert torch.equal(logits(model, TOKENS), logits(load_model(DATA / "llada_gqa_tied"), TOKENS))


@pytest.mark.parametrize("name", ["llada_mha_untied", "llada_gqa_tied", "llada2_moe"])
def test_a_dispatched_model_gives_the_same_logits(name: str, tmp_path: Path) -> None:
    """Layers behind accelerate's hooks: some at home, one kept on disk and fetched for each forward."""
    from accelerate import dispatch_model

    model = load_model(DATA / name)
    expected = logits(model, TOKENS)
    parts = ["embed", "norm", "lm_head", *(f"layers.{i}" for i in range(model.config.layers))]
    placement = {part: "disk" if part == "layers.1" else "cpu" for part in parts}
    spread = dispatch_model(model, placement, main_device="cpu", offload_dir=str(tmp_path), force_hooks=True)
    assert spread.layers[1].attn.qkv.weight.is_meta
    assert torch.equal(logits(spread, TOKENS), expected)


def test_an_index_without_the_tensor_it_promises_is_refused(tmp_path: Path) -> None:
    folder = copy_of("llada_mha_untied", tmp_path)
    second = shard(folder)
    file = folder / "model-00002-of-00002.safetensors"
    tensors = load_file(file)
    del tensors[second[0]]
    save_file(tensors, file)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert second[0] in index["weight_map"]
    with pytest.raises(UserError, match=f"{second[0]} is missing"):
        load_model(folder)
