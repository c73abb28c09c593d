"""Folders of MLX, compressed-tensors, ModelOpt, float8 and bitsandbytes: the numbers that they mean, or a sentence.

What their own packages wrote is in ``tests/data/packed``; the packers here draw codes and scales, and know what they
mean.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_folders import DATA, edit_config, logits, published
from rank_threads import threads, together
from safetensors.torch import load_file, save_file
from test_grouped_packing import held_weights

from dllm import Decoder, UserError, load
from dllm.parts import (
    SettingWarning,
    Source,
    TensorReader,
    contents_of,
    fact_rows,
    inspect_checkpoint,
    load_model,
    packs_by_64,
    read_model_config,
)
from tests.packed import main
from tests.support.scaled_weights import FORMS, write_pair

TOKENS = torch.arange(5, 18)[None]
LLADA = published(
    "llada_mha_untied",
    d_model=128,
    n_layers=1,
    n_heads=4,
    n_kv_heads=4,
    mlp_hidden_size=192,
    vocab_size=64,
    embedding_size=64,
    mask_token_id=60,
    eos_token_id=61,
    pad_token_id=61,
)
LLADA2 = published("llada2_moe", hidden_size=64, moe_intermediate_size=64, intermediate_size=64, num_hidden_layers=2,
                   num_attention_heads=4, num_key_value_heads=2, head_dim=32, rotary_dim=16)  # fmt: skip
GEMMA = {**published("dg_dev"), "text_config": {
    **published("dg_dev")["text_config"], "num_hidden_layers": 2,
    "hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 64, "head_dim": 16,
    "layer_types": ["sliding_attention", "full_attention"],
    "per_layer_config": {"1": {"head_dim": 32, "num_key_value_heads": 1}},
}}  # fmt: skip


def folders(form: str, where: Path, config: Mapping[str, Any] = LLADA, **how: Any) -> tuple[Path, Path]:
    """A packed folder, and the plain one of its numbers."""
    write_pair(FORMS[form], config, where / "packed", where / "wide", **how)
    return where / "packed", where / "wide"


def same(small: Path, wide: Path, **how: Any) -> None:
    """Both load the same numbers, bit for bit."""
    expected, found = load_model(wide, **how).state_dict(), load_model(small, **how).state_dict()
    assert expected.keys() == found.keys()
    for key, tensor in expected.items():
        assert torch.equal(found[key], tensor), key


def test_what_their_own_packages_wrote_is_read_bit_for_bit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(DATA.parent / "packed")]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("matrices equal")


@pytest.mark.program
def test_the_command_runs_from_any_folder(tmp_path: Path) -> None:
    command = [sys.executable, str(DATA.parents[1] / "packed.py"), str(DATA.parent / "packed")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "171 of 171 matrices equal", done.stderr


def test_a_number_that_differs_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    codes, scales = torch.ones(2, 4, dtype=torch.int32).view(torch.uint32), torch.ones(2, 1)
    wide = torch.full((2, 32), 1.0)
    save_file(
        {"a.weight": codes, "a.scales": scales, "a.biases": scales - 1, "a.widened": wide}, tmp_path / "m.safetensors"
    )
    case = {"config": {"group_size": 32, "bits": 4}}
    (tmp_path / "m.json").write_text(json.dumps({"source": "mlx", "cases": {"a": case}}))
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 of 1 matrices equal"
    assert main([str(tmp_path / "none")]) == 2


@pytest.mark.daily(9)
@pytest.mark.parametrize("form", FORMS)
def test_widened_it_computes_what_its_float32_copy_does(form: str, tmp_path: Path) -> None:
    small, wide = folders(form, tmp_path)
    same(small, wide)
    report = inspect_checkpoint(small)
    assert report.usable and f"7 tensors {FORMS[form].called}" in dict(fact_rows(report))["stored"]


@pytest.mark.daily(2)
@pytest.mark.parametrize("form", FORMS)
def test_it_decodes_as_its_float32_copy(form: str, tmp_path: Path) -> None:
    answers = [Decoder(load(one), gen_length=8)([[5, 6, 7]]) for one in folders(form, tmp_path)]
    assert [one.tokens for one in answers[0]] == [one.tokens for one in answers[1]]


@pytest.mark.daily(3)
@pytest.mark.parametrize("form", FORMS)
def test_any_rows_are_those_rows(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, wide = folders(form, tmp_path)
    name = "model.transformer.blocks.0.up_proj.weight"
    plain = load_file(wide / "model.safetensors")[name]
    with TensorReader(contents_of(small, read_model_config(small)).tensors) as reader:
        for first, last in np.random.default_rng(1).integers(0, len(plain), (6, 2)).tolist():
            rows = (min(first, last), max(first, last) + 1)
            assert torch.equal(reader.read(Source(name, rows), torch.float32), plain[slice(*rows)])
        monkeypatch.setattr("dllm.models.weights.tensor_reader.UNPACKED", 1)
        assert torch.equal(reader.read(Source(name), torch.float32), plain)


@pytest.mark.parametrize("form", ["mlx-3-32", "fp8-block", "w3a16", "w4a16", "nf4"])
@pytest.mark.parametrize("quantize", [None, "int4"])
def test_two_ranks_read_their_shares_of_it(form: str, quantize: str | None, tmp_path: Path) -> None:
    small, wide = folders(form, tmp_path)
    how: dict[str, Any] = {"quantize": quantize, "dtype": torch.bfloat16 if quantize else torch.float32}
    if form == "w4a16" and quantize:  # keeps its steps
        wide = small
        whole = logits(load_model(wide, **how), TOKENS)
    ranks = threads(2)
    found = [together(ranks, lambda rank, one=one: load_model(one, ranks=ranks[rank], **how)) for one in (small, wide)]
    for ours, theirs in zip(*found, strict=True):
        for key, tensor in theirs.state_dict().items():
            assert torch.equal(ours.state_dict()[key], tensor), key
    if form == "w4a16" and quantize:
        shares = together(ranks, lambda rank: logits(found[0][rank], TOKENS))
        assert (shares[0] - whole).abs().max() < 0.02 * whole.abs().max()


def each(name: str) -> list[str]:
    """A module for each expert, gate and up apart, as llm-compressor has them."""
    place, _, part = name.rpartition(".")
    kinds = ["gate_proj", "up_proj"] if part == "gate_up_proj" else ["down_proj"]
    return [f"{place}.{number}.{kind}" for number in range(4) for kind in kinds]


def switched(name: str) -> list[str]:
    """Stacks as mlx_lm has them."""
    place, _, part = name.rpartition(".")
    return [
        f"{place}.switch_glu.{kind}" for kind in (["gate_proj", "up_proj"] if part == "gate_up_proj" else ["down_proj"])
    ]


@pytest.mark.parametrize(
    ("form", "modules"),
    [("mlx-4-32", None), ("mlx-mxfp4", switched), ("fp8-channel", each), ("nvfp4", each), ("modelopt-nvfp4", each)],
)
def test_diffusion_gemma_loads_whichever_way_its_experts_are_held(form: str, modules: Any, tmp_path: Path) -> None:
    small, wide = folders(form, tmp_path, GEMMA, modules=modules)
    same(small, wide)
    same(small, wide, dtype=torch.bfloat16, quantize="int8")
    ranks = threads(2)
    shares = [
        together(ranks, lambda rank, one=one: load_model(one, ranks=ranks[rank]).state_dict()) for one in (small, wide)
    ]
    for ours, theirs in zip(*shares, strict=True):
        assert all(torch.equal(ours[key], tensor) for key, tensor in theirs.items())


@pytest.mark.parametrize("form", ["mlx-4-32", "fp8-channel", None])
def test_routed_experts_load_apart_and_stacked(form: str | None, tmp_path: Path) -> None:
    """Stacked as mlx_lm has Qwen3-MoE's kind, packed or plain, with the router of Ling under another name."""
    small, wide = folders(form or "fp8-channel", tmp_path, LLADA2)
    if form != "fp8-channel":
        source = load_file((small if form else wide) / "model.safetensors")
        save_file(stacked(source), small / "model.safetensors")
        edit_config(small, **({} if form else {"quantization_config": None}))
    same(small, wide)


def stacked(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    groups: dict[str, dict[int, torch.Tensor]] = {}
    out = dict[str, torch.Tensor]()
    for name, one in tensors.items():
        before, mark, behind = name.partition(".mlp.experts.")
        if mark:
            number, _, rest = behind.partition(".")
            groups.setdefault(f"{before}.mlp.switch_mlp.{rest}", {})[int(number)] = one
        else:
            name = name.replace(".mlp.gate.weight", ".mlp.gate.gate_proj.weight")
            out[name.replace(".mlp.gate.expert_bias", ".mlp.gate.gate_proj.bias")] = one
    return out | {name: torch.stack([parts[at] for at in sorted(parts)]) for name, parts in groups.items()}


@pytest.mark.skipif(not packs_by_64(), reason="this processor's operator has another layout")
@pytest.mark.parametrize("form", ["mlx-4-64", "w4a16-zeros", "w4a16-short", "w3a16", "nf4"])
def test_int4_keeps_the_steps_of_four_bits(form: str, tmp_path: Path) -> None:
    small, wide = folders(form, tmp_path)
    with pytest.warns(SettingWarning) as told:
        model = load_model(small, dtype=torch.bfloat16, quantize="int4")
    keeps = form in ("mlx-4-64", "w4a16-zeros", "w4a16-short")
    assert ("7 keep their steps" in " ".join(str(one.message) for one in told)) == keeps
    if not keeps:
        expected = load_model(wide, dtype=torch.bfloat16, quantize="int4").state_dict()
        assert all(torch.equal(one, expected[key]) for key, one in model.state_dict().items())
        return
    found, down = model.layers[0].mlp.down, load_model(wide, fuse=False).layers[0].mlp.down.weight
    step = found.scale.transpose(0, 1)[..., 0].float().repeat_interleave(32, 1)
    assert ((held_weights(found) - down).abs() <= step / 16).all()


def test_modelopt_says_it_in_a_file_beside(tmp_path: Path) -> None:
    small, wide = folders("modelopt-nvfp4", tmp_path)
    edit_config(small, quantization_config=None)
    with pytest.raises(UserError, match=r"weight_scale.* is of quantised weights"):
        load_model(small)
    said = {
        "producer": {"name": "modelopt"},
        "quantization": {
            "quant_algo": "NVFP4",
            "group_size": 16,
            "kv_cache_quant_algo": "FP8",
            "exclude_modules": ["lm_head", "*.gate"],
        },
    }
    (small / "hf_quant_config.json").write_text(json.dumps(said))
    with pytest.warns(SettingWarning, match="activations stay in full precision.*keys and values stay|keys and values"):
        same(small, wide)


def test_an_mlx_folder_of_several_forms(tmp_path: Path) -> None:
    """As its mixed recipes and mlx-vlm write them: named ones, and some that only their shapes tell."""
    small, wide = folders("mlx-4-64", tmp_path)
    other, _ = folders("mlx-8-64", tmp_path / "other")
    name = "model.transformer.blocks.0.{}".format
    for file in ("packed", "wide"):
        theirs = load_file(tmp_path / "other" / file / "model.safetensors")
        own = load_file(tmp_path / file / "model.safetensors")
        own |= {key: one for key, one in theirs.items() if key.startswith((name("q_proj"), name("ff_out")))}
        save_file(own, tmp_path / file / "model.safetensors")
    said = {"bits": 4, "group_size": 64, name("q_proj"): {"bits": 8, "group_size": 64}, "lm_head": False}
    edit_config(small, quantization=said, quantization_config=None)
    same(small, wide)
    edit_config(small, quantization=said | {name("k_proj"): {"bits": 8, "group_size": 64}})
    with pytest.raises(UserError, match=r"says MLX 8-bit in groups of 64 of .*k_proj, and its weight \[128, 16\]"):
        load_model(small)
    edit_config(small, quantization=said | {name("k_proj"): False})
    with pytest.raises(UserError, match=r"says no packing of .*k_proj"):
        load_model(small)


def test_groups_of_compressed_tensors_are_told_apart_by_names(tmp_path: Path) -> None:
    small, wide = folders("w4a16", tmp_path)
    folders("fp8-channel", tmp_path / "other")
    for file in ("packed", "wide"):
        theirs = load_file(tmp_path / "other" / file / "model.safetensors")
        own = load_file(tmp_path / file / "model.safetensors")
        own = {key: one for key, one in own.items() if ".ff_out." not in key or "blocks" not in key}
        own |= {key: one for key, one in theirs.items() if "blocks.0.ff_out." in key}
        save_file(own, tmp_path / file / "model.safetensors")
    own_group = {
        "targets": ["re:.*blocks.0.ff_out$"],
        "format": "float-quantized",
        "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
    }
    first = {
        "targets": [r"re:.*(q_proj|k_proj|v_proj|attn_out|ff_proj|up_proj)$"],
        "format": "pack-quantized",
        "weights": {"num_bits": 4, "group_size": 32},
    }
    said = {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": first, "group_1": own_group},
    }
    edit_config(small, quantization_config=said)
    same(small, wide)
    for change, sentence in (
        ({"ignore": ["re:.*up_proj"]}, r"has .*blocks\.0\.up_proj in ignore, and the weights have scales"),
        ({"config_groups": {"a": first}}, r"names no group for .*ff_out"),
        ({"config_groups": {"a": first, "b": {**own_group, "targets": []}}}, r"names no group for .*ff_out"),
    ):
        edit_config(small, quantization_config=said | change)
        with pytest.raises(UserError, match=sentence):
            load_model(small)


def test_an_expression_that_re_would_try_for_ever_is_refused(tmp_path: Path) -> None:
    small, _ = folders("w4a16", tmp_path)
    said = json.loads((small / "config.json").read_text())["quantization_config"]
    edit_config(small, quantization_config={**said, "ignore": ["re:(.+)+x", "lm_head"]})
    with pytest.raises(UserError, match="ignore=.'re:.*, in which re: begins a regular expression"):
        load_model(small)


FF_OUT = "model.transformer.blocks.0.ff_out"


@pytest.mark.parametrize(
    ("many", "own"),
    [
        (["Linear"], ["re:.*blocks.0.ff_out$"]),
        (["Linear"], [FF_OUT]),
        (["re:.*", "Linear"], [FF_OUT]),
        (["re:.*blocks.*"], ["re:.*.ff_out$"]),
        (["ff_out", "Linear"], ["re:.*ff_out$"]),
        (["ff_out", "re:.*[^t]$", "re:.*attn_out$"], ["Linear"]),
    ],
)
@pytest.mark.parametrize("first", ["many", "own"])
def test_a_module_that_several_groups_name_has_the_scheme_of_the_closest(
    many: list[str], own: list[str], first: str, tmp_path: Path
) -> None:
    """The order of compressed-tensors 0.20 (``match_targets``): names, expressions, classes, each by the alphabet. The
    end of a name, which only we know, comes last."""
    small, wide = folders("w4a16", tmp_path)
    folders("int8", tmp_path / "other")
    for file in ("packed", "wide"):
        theirs = load_file(tmp_path / "other" / file / "model.safetensors")
        held = load_file(tmp_path / file / "model.safetensors")
        held = {key: one for key, one in held.items() if not key.startswith(FF_OUT)}
        held |= {key: one for key, one in theirs.items() if key.startswith(FF_OUT)}
        save_file(held, tmp_path / file / "model.safetensors")
    groups = {
        "many": {"targets": many, "format": "pack-quantized", "weights": {"num_bits": 4, "group_size": 32}},
        "own": {"targets": own, "format": "int-quantized", "weights": {"num_bits": 8, "strategy": "channel"}},
    }
    order = [first, *(name for name in groups if name != first)]
    said = {"quant_method": "compressed-tensors", "config_groups": {name: groups[name] for name in order}}
    edit_config(small, quantization_config=said)
    same(small, wide)


def test_the_older_key_and_a_preset_are_read(tmp_path: Path) -> None:
    small, wide = folders("fp8-channel", tmp_path)
    said = {"format": "float-quantized", "config_groups": {"FP8_DYNAMIC": ["Linear"]}, "new": 1}
    edit_config(small, quantization_config=None, compression_config=said)
    with pytest.warns(SettingWarning, match="activations stay in full precision"):
        same(small, wide)
    notes = " ".join(inspect_checkpoint(small).notes)
    assert "compression_config has keys that change nothing here, or are not known: new." in notes


QUERY = "model.transformer.blocks.0.q_proj"


def changed(folder: Path, **leaves: torch.Tensor | None) -> None:
    """Replace, add or (None) delete tensors of one module."""
    tensors = load_file(folder / "model.safetensors") | {f"{QUERY}.{leaf}": one for leaf, one in leaves.items()}
    kept = {name: one for name, one in tensors.items() if one is not None}
    save_file(kept, folder / "model.safetensors")


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("mlx-4-64", {"scales": None}, r"q_proj\.biases is there without its scales"),
    ("mlx-4-64", {"weight": None}, r"q_proj\.scales is there without its weight"),
    ("mlx-4-64", {"biases": None}, r"q_proj\.scales is there without its biases"),
    ("mlx-4-64", {"scales": torch.ones(127, 2), "biases": torch.ones(127, 2)}, r"scales has shape \[127, 2\], MLX"),
    ("mlx-4-64", {"biases": torch.ones(128, 1)}, r"biases has shape \[128, 1\]"),
    ("mlx-4-64", {"scales": torch.ones(128, 2, dtype=torch.int32)}, r"scales is stored as I32"),
    ("mlx-4-64", {"weight": torch.ones(128, 16)}, r"q_proj\.weight is F32 \[128, 16\], and MLX packs words"),
    ("mlx-nvfp4", {"global_scale": torch.ones(1)}, r"q_proj\.global_scale is of a form of nvfp4"),
    ("fp8-channel", {"weight_scale": torch.ones(64, 1)}, r"weight_scale has shape \[64, 1\], FP8 implies \[128, 1\]"),
    ("fp8-channel", {"weight": torch.ones(128, 128, dtype=torch.int8)}, r"q_proj\.weight is stored as I8, FP8 implies"),
    ("fp8-channel", {"weight": None}, r"q_proj is FP8, and its weight is missing"),
    ("fp8-channel", {"weight_g_idx": torch.zeros(128, dtype=torch.int32)}, r"weight_g_idx tells an order of columns"),
    ("w4a16", {"weight_scale": None}, r"q_proj is INT4, and its weight_scale is missing"),
    ("w4a16", {"weight_shape": torch.tensor([128, 120])}, r"weight_shape says \[128, 120\], and .* in 4 bits"),
    ("w4a16-zeros", {"weight_zero_point": torch.ones(16, 3).int()}, r"weight_zero_point has shape \[16, 3\]"),
    ("nvfp4", {"weight_global_scale": torch.ones(2)}, r"weight_global_scale is F32 \[2\], not one number"),
    ("nvfp4", {"weight": torch.ones(128, 128)}, r"q_proj\.weight is beside .*weight_packed: which one counts"),
    ("nf4", {"weight.absmax": None}, r"q_proj\.weight\.absmax is missing beside the others of bitsandbytes"),
    ("nf4", {"weight.absmax": torch.ones(7)}, r"absmax has shape \[7\], its quant_state of .* in blocks of 64"),
    ("nf4", {"weight": torch.zeros(9, 1, dtype=torch.uint8)}, r"q_proj\.weight has shape \[9, 1\]"),
    ("nf4", {"weight.quant_state.bitsandbytes__nf4": torch.zeros(3, dtype=torch.uint8)}, r"is not the JSON of a state"),
    ("bnb-int8", {"weight_format": torch.tensor(1, dtype=torch.uint8)}, r"weight_format tells another layout"),
    ("bnb-int8", {"SCB": torch.ones(5)}, r"SCB has shape \[5\]"),
]


@pytest.mark.parametrize(
    ("form", "changes", "sentence"), WRONG, ids=[f"{one[0]}-{'-'.join(one[1])}-{at}" for at, one in enumerate(WRONG)]
)
def test_tensors_that_do_not_fit_each_other_are_refused_before_they_are_read(
    form: str, changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    small, _ = folders(form, tmp_path)
    changed(small, **changes)
    with pytest.raises(UserError, match=sentence) as caught:
        contents_of(small, read_model_config(small))
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
    assert not inspect_checkpoint(small).usable


@pytest.mark.parametrize(
    ("form", "leaf", "bad"),
    [
        ("mlx-4-64", "scales", float("nan")),
        ("fp8-channel", "weight", 0x7F),
        ("mlx-mxfp4", "scales", 0xFF),
        ("w4a16", "weight_scale", float("inf")),
        ("nf4", "weight.absmax", float("nan")),
        ("bnb-int8", "SCB", float("nan")),
    ],
)
def test_what_is_not_a_number_is_refused(form: str, leaf: str, bad: float, tmp_path: Path) -> None:
    small, _ = folders(form, tmp_path)
    one = load_file(small / "model.safetensors")[f"{QUERY}.{leaf}"]
    plain = one.view(torch.uint8) if one.dtype == torch.float8_e4m3fn else one
    plain.view(-1)[3] = bad  # type: ignore[call-overload]
    changed(small, **{leaf: one})
    for how in ({}, {"dtype": torch.bfloat16, "quantize": "int4"}):
        with pytest.raises(UserError, match=r"q_proj.* what is not a number\. Copy the checkpoint again\."):
            load_model(small, **how)


SAID: list[tuple[str, dict[str, Any], str]] = [
    ("mlx-4-64", {"quantization": {"bits": 1, "group_size": 64}}, r"bits=1 in .* be 2, 3, 4, 5, 6 or 8 in mode"),
    ("mlx-4-64", {"quantization": {"bits": 4, "group_size": 48}}, r"group_size=48"),
    ("mlx-4-64", {"quantization": {"bits": 4, "mode": "mxfp9"}}, r"mode='mxfp9' .* be 'affine', 'mxfp4'"),
    ("mlx-4-64", {"quantization": {"bits": 4, "a.b": 3}}, r"a\.b=3 in quantization, which must be a module's"),
    ("mlx-4-64", {"quantization_config": {"quant_method": "gptq"}}, "gptq"),
    ("w4a16", {"actorder": "group"}, r"actorder='group'"),
    ("w4a16", {"strategy": "block"}, r"block_structure=null"),
    ("w4a16", {"num_bits": 9}, r"num_bits=9 in quantization_config, which must be an integer from 1 to 8"),
    ("w4a16", {"format": "marlin-24"}, r"format='marlin-24', which must be|format='marlin-24' in"),
    ("w4a16", {"config_groups": {}}, r"config_groups=\{\}"),
    ("w4a16", {"transform_config": {"a": 1}}, "transform_config"),
    ("w4a16", {"sparsity_config": {"format": "sparse-bitmask"}}, "sparsity_config="),
    ("w4a16", {"config_groups": {"W9": ["Linear"]}}, r"config_groups\.W9"),
    ("w4a16", {"ignore": [r"re:(a)\1"]}, r"ignore=\['re:\(a\).* in which re: begins a regular expr"),
    ("w4a16", {"config_groups": {"W4A16": ["re:("]}}, r"W4A16\.targets=\['re:\('.*, in which re: begins"),
    ("fp8", {"weight_block_size": [0, 2]}, r"fp8 weights with weight_block_size=\[0, 2\]"),
    ("fp8", {"fmt": "e5m2"}, "e5m2"),
    ("modelopt-nvfp4", {"quant_algo": "W4A8_AWQ"}, r"quant_algo='W4A8_AWQ' .* 'NVFP4' or 'FP8'"),
    ("nf4", {"load_in_4bit": False}, "neither load_in_4bit nor load_in_8bit is true"),
]


@pytest.mark.parametrize(("form", "change", "sentence"), SAID, ids=[f"{one[0]}-{at}" for at, one in enumerate(SAID)])
def test_a_layout_that_is_not_read_is_refused(form: str, change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    said: dict[str, Any] = json.loads(json.dumps(FORMS[form].said))
    own = said["quantization_config"]
    if form.startswith("mlx"):
        said = said | change
    elif own.get("config_groups") and change.keys() & {"actorder", "strategy", "num_bits"}:
        own["config_groups"]["group_0"]["weights"] |= change
    else:
        own |= change
    tmp_path.joinpath("config.json").write_text(json.dumps({**LLADA, **said}))
    with pytest.raises(UserError, match=sentence) as caught:
        read_model_config(tmp_path)
    assert "Take the unquantised checkpoint" in str(caught.value)


@pytest.mark.parametrize("form", ["mlx-4-64", "fp8-channel", "nf4"])
def test_plain_weights_under_the_word_are_told(form: str, tmp_path: Path) -> None:
    small, wide = folders(form, tmp_path)
    (small / "model.safetensors").write_bytes((wide / "model.safetensors").read_bytes())
    with pytest.warns(SettingWarning, match="no tensor is packed: the weights are read as they are"):
        same(small, wide)
