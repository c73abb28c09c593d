"""LoRA adapters: what peft writes and merges is what we load, and what does not belong is refused before weights are
read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dllm import UserError, load
from dllm.models.weights import weights
from dllm.parts import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    DIGEST,
    Adapter,
    apart,
    base_digest,
    load_model,
    parameter_source,
    read_contents,
)
from tests.support.adapters import DATA, adapted, stored


def loaded(source: Path, adapter: Path) -> dict[str, tuple[Tensor, tuple[int, int] | None]]:
    """Our parameters by published name, with the rows that they are of it."""
    model = load_model(source, adapter=Adapter.read(adapter))
    found = {}
    for name, tensor in apart(model):
        place = parameter_source(name, model.config)
        found[f"{place.name} {place.rows}"] = (tensor, place.rows)
    return found


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("llada_mha_untied", {}),
        ("dream_gqa", {"use_rslora": True}),
        ("llada_gqa_tied", {"rank_pattern": {"blocks.0.q_proj": 5}, "alpha_pattern": {"q_proj": 2, "ff_out": 11}}),
        ("llada2_moe", {}),  # q, k and v in one matrix; experts
        ("a2d_qwen3", {}),
        ("nemotron", {}),  # names begin with encoder.
        ("efficient_dlm", {}),
        ("a2d_llama", {}),
        ("diffcoder", {}),
        ("dreamreasoner", {}),
        ("fastdllm_v2", {}),
        ("illada", {}),
        ("rnd1", {}),
        ("sdar_moe", {}),
        ("llada_moe", {}),
        ("wedlm_qknorm", {}),
        ("nbdiff_gqa", {}),
    ],
)
def test_merged_weights_are_those_that_peft_merges(source: str, options: dict[str, Any], tmp_path: Path) -> None:
    wanted, plain = adapted(DATA / source, tmp_path, **options), stored(DATA / source)
    changed = 0
    for key, (tensor, rows) in loaded(DATA / source, tmp_path).items():
        name = key.split(" ")[0]
        whole = wanted.get(name, plain[name])
        assert torch.equal(tensor, whole if rows is None else whole[slice(*rows)]), name
        changed += not torch.equal(whole, plain[name].float())
    assert changed >= 7


def test_in_bfloat16_the_sum_is_rounded_once(tmp_path: Path) -> None:
    source = DATA / "dream_gqa"
    wanted = adapted(source, tmp_path)
    model = load_model(source, dtype=torch.bfloat16, adapter=Adapter.read(tmp_path))
    found = {parameter_source(name, model.config).name: tensor for name, tensor in apart(model)}
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor.to(torch.bfloat16)), name


def edited(folder: Path, **changes: Any) -> None:
    content = json.loads((folder / ADAPTER_CONFIG).read_text())
    (folder / ADAPTER_CONFIG).write_text(json.dumps({**content, **changes}))


def test_what_is_no_plain_lora_is_refused_before_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, whole = DATA / "dream_gqa", tmp_path / "whole"
    adapted(source, whole)
    edited(whole, base_model_name_or_path="owner/Dream")
    monkeypatch.setattr(weights, "fill", lambda *_: pytest.fail("weights were read"))
    pair = "base_model.model.model.layers.0.mlp.up_proj.lora_{}.weight"

    def sentence(path: Path = source, **changes: Any) -> str:
        folder = tmp_path / "broken"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        tensors = load_file(folder / ADAPTER_WEIGHTS)
        for name, tensor in changes.pop("tensors", {}).items():
            tensors.pop(name, None)
            if tensor is not None:
                tensors[name] = tensor
        save_file(tensors, folder / ADAPTER_WEIGHTS, changes.pop("metadata", None))
        edited(folder, **changes)
        with pytest.raises(UserError) as error:
            load(path, adapter=folder)
        return str(error.value)

    assert "has use_dora=true, which is more than a plain LoRA. Merge it into its base" in sentence(use_dora=True)
    assert "has init_lora_weights='pissa'" in sentence(init_lora_weights="pissa")
    assert "has peft_type='IA3'" in sentence(peft_type="IA3")
    assert "has bias='all'" in sentence(bias="all")
    assert "r=0, which must be an integer from 1" in sentence(r=0)
    assert "alpha_pattern={'(': 1}, which must be" in sentence(alpha_pattern={"(": 1})
    assert "a regular expression of at most 1000" in sentence(rank_pattern={r"(a)\1": 1})
    assert "without repeats or choices inside a repeat" in sentence(alpha_pattern={"(.+)+x": 1})
    assert "says rank 4 of 'model.layers" in sentence(r=4)
    assert "has no two matrices that fit for 'model.layers.0.mlp.up_proj'" in sentence(tensors={pair.format("A"): None})
    assert "which is not a matrix of a LoRA" in sentence(tensors={"head.weight": torch.zeros(2, 2)})
    # Another base: of another family, of another size, or other weights of the same sizes.
    words = "was made for another base than path="
    other = sentence(DATA / "llada_mha_untied")
    assert words in other and "it adapts 'model.layers.0" in other and "Set path=owner/Dream, or" in other
    wide = {pair.format("A"): torch.zeros(3, 50)}
    assert f"{words}{str(source)!r}: its 'model.layers.0.mlp.up_proj.weight' has shape [" in sentence(tensors=wide)
    assert "are not those it was trained on" in sentence(metadata={DIGEST: "0123456789abcdef"})
    Adapter.read(whole).check_fits({name: pair.shape for name, pair in Adapter.read(whole).pairs.items()}, "you/Dream")
    with pytest.raises(UserError, match="path='owner/LLaDA': its config names owner/Dream. Set path=owner/Dream"):
        Adapter.read(whole).check_fits({}, "owner/LLaDA")
    for folder, told in ((tmp_path, "holds no adapter_config.json"), (tmp_path / "gone", "holds no adapter_config")):
        with pytest.raises(UserError, match=told):
            load(source, adapter=folder)
    (whole / ADAPTER_WEIGHTS).rename(whole / "adapter_model.bin")
    with pytest.raises(UserError, match=r"lacks adapter_model\.safetensors\. A pickle .* is never read"):
        load(source, adapter=whole)


def test_a_digest_tells_models_of_the_same_sizes_apart(tmp_path: Path) -> None:
    source = DATA / "dream_gqa"
    adapted(source, tmp_path / "lora")
    pairs = Adapter.read(tmp_path / "lora").pairs
    one = base_digest(pairs, read_contents(source).tensors)
    other = {**load_file(source / "model.safetensors")}
    name = sorted(pairs)[-1]
    other[name] = other[name] + 1e-3
    save_file(other, tmp_path / "model.safetensors")
    assert one != base_digest(pairs, read_contents(tmp_path).tensors)
    tensors = load_file(tmp_path / "lora" / ADAPTER_WEIGHTS)
    save_file(tensors, tmp_path / "lora" / ADAPTER_WEIGHTS, {DIGEST: one})
    load(source, adapter=tmp_path / "lora")
