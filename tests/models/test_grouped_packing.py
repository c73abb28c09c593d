"""GPTQ and AWQ: the numbers that other programs' packers wrote, and sentences for what is not read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from model_folders import DATA, edit_config, edit_weights, logits, wide_folder
from safetensors.torch import load_file

from dllm import UserError, load
from dllm.kernels.narrow_product import reference
from dllm.parts import (
    ModelConfig,
    SettingWarning,
    Source,
    SteppedLinear,
    TensorReader,
    contents_of,
    fact_rows,
    four_bit_steps,
    inspect_checkpoint,
    load_model,
    load_narrow,
    out_of_blocks,
    packs_by_64,
    placed,
    quantize_folder,
    read_json,
    read_model_config,
    unwatched,
)
from tests.support.packed_weights import packed_folder

FORMS: dict[str, dict[str, Any]] = {
    "gptq-32": {},
    "gptq-64-sym": {"group": 64, "symmetric": True},
    "gptq-whole": {"group": -1},
    "gptq-v2-128": {"group": 128, "first_format": False},
    "gptq-ordered": {"ordered": True},
    "gptq-8-bits": {"bits": 8, "group": 64},
    "awq-32": {"method": "awq"},
    "awq-128": {"method": "awq", "group": 128},
}
TOKENS = torch.arange(5, 18)[None]


def folders(name: str, where: Path, **how: Any) -> tuple[Path, Path]:
    """A packed checkpoint, and the plain one of the same numbers."""
    packed_folder(wide_folder(name, where / "source"), where / "packed", where / "wide", **how)
    return where / "packed", where / "wide"


@pytest.mark.parametrize(
    ("name", "form"),
    [*(("llada_mha_untied", form) for form in FORMS), ("llada2_moe", "gptq-ordered"), ("llada2_moe", "awq-32")],
)
def test_widened_it_computes_what_its_float32_copy_does(name: str, form: str, tmp_path: Path) -> None:
    """Bit for bit, q, k and v of LLaDA2 in one tensor included."""
    small, wide = folders(name, tmp_path, **FORMS[form])
    expected, found = load_model(wide), load_model(small)
    for key, tensor in expected.state_dict().items():
        assert torch.equal(found.state_dict()[key], tensor), key
    assert torch.equal(logits(found, TOKENS), logits(expected, TOKENS))


def test_few_rows_at_a_time_are_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, wide = folders("llada2_moe", tmp_path, method="awq")
    plain = load_file(wide / "model.safetensors")
    monkeypatch.setattr("dllm.models.weights.tensor_reader.UNPACKED", 1)
    with TensorReader(contents_of(small, read_model_config(small)).tensors) as reader:
        for name, tensor in plain.items():
            assert torch.equal(reader.read(Source(name), torch.float32), tensor.float())
            if len(tensor) > 20:
                assert torch.equal(reader.read(Source(name, (3, 19)), torch.float32), tensor[3:19].float())


def held_weights(module: Any) -> torch.Tensor:
    """The weights [N, D] that a product of this CPU in four bits stands for."""
    steps = out_of_blocks(module.narrow).float().view(len(module.narrow), -1, 32)
    sizes = module.scale.transpose(0, 1).float()
    return (steps * sizes[..., :1] + sizes[..., 1:]).flatten(1)


KEPT = {key: FORMS[key] for key in ("gptq-32", "gptq-64-sym", "gptq-whole", "gptq-v2-128", "awq-128")}


@pytest.mark.skipif(not packs_by_64(), reason="this processor's operator has another layout")
@pytest.mark.parametrize("how", KEPT.values(), ids=KEPT)
def test_int4_keeps_the_steps_of_the_file(how: dict[str, Any], tmp_path: Path) -> None:
    """Every weight to within a 16th of a step, where rounding anew would move it by up to half of one."""
    small, wide = folders("llada_mha_untied", tmp_path, **how)
    with pytest.warns(SettingWarning, match=r"21 matrices as (GPTQ|AWQ) 4-bit: 21 keep their steps, with scales in bf"):
        model = load_model(small, dtype=torch.bfloat16, quantize="int4")
    plain = load_model(wide, fuse=False)
    for layer, there in zip(model.layers, plain.layers, strict=True):
        for found, parts in ((layer.attn.qkv, "qkv"), (layer.attn.o, "o")):
            expected = torch.cat([there.attn.get_submodule(part).weight for part in parts])
            step = found.scale.transpose(0, 1)[..., 0].float().repeat_interleave(32, 1)
            assert ((held_weights(found) - expected).abs() <= step / 16).all()
        expected = there.mlp.down.weight
        step = layer.mlp.down.scale.transpose(0, 1)[..., 0].float().repeat_interleave(32, 1)
        assert ((held_weights(layer.mlp.down) - expected).abs() <= step / 16).all()


def test_our_kernel_reads_the_same_steps() -> None:
    draw = torch.Generator().manual_seed(0)
    steps = torch.randint(-8, 8, (192, 256), generator=draw).to(torch.int8)
    linear = SteppedLinear(steps, torch.randn(192, 8, 2, generator=draw), None)
    narrow, scale = linear.form(True, False)
    assert torch.equal(four_bit_steps(narrow, 256), steps) and torch.equal(scale, linear.sizes)
    for found, expected in zip(placed(*linear.form(False, True), True), (narrow, scale), strict=True):
        assert torch.equal(found, expected)
    rows = torch.randn(5, 256, generator=draw).to(torch.bfloat16)
    product = linear.narrow(False, False)(rows).float()
    torch.testing.assert_close(product, reference(rows, narrow, scale).float(), rtol=0.02, atol=0.5)


@pytest.mark.parametrize("name", ["llada_mha_untied", "wedlm_bias", "llada2_moe"])
def test_int4_answers_as_the_widened_weights_do(name: str, tmp_path: Path) -> None:
    """Dense, with biases, and with routed experts; four bits that are rounded anew are several times as far off."""
    small, wide = folders(name, tmp_path)
    exact = logits(load_model(wide), TOKENS)
    errors = {
        kept: (logits(load_model(folder, dtype=torch.bfloat16, quantize="int4"), TOKENS).float() - exact).norm()
        for kept, folder in ((True, small), (False, folders(name, tmp_path / "8", bits=8)[0]))
    }
    wide_error = (logits(load_model(wide, dtype=torch.bfloat16), TOKENS).float() - exact).norm()
    assert errors[True] < 2 * wide_error and errors[True] < errors[False] / 3


@pytest.mark.parametrize("name", ["llada_mha_untied", "llada2_moe"])
def test_what_is_no_sixteen_steps_in_groups_of_32_is_rounded_anew(name: str, tmp_path: Path) -> None:
    for number, how in enumerate(({"ordered": True}, {"bits": 8})):
        small, wide = folders(name, tmp_path / str(number), **how)
        found = load_model(small, dtype=torch.bfloat16, quantize="int4").state_dict()
        expected = load_model(wide, dtype=torch.bfloat16, quantize="int4").state_dict()
        assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("how", [{}, {"method": "awq"}], ids=str)
def test_quantised_once_it_is_what_memory_would_hold(how: dict[str, Any], tmp_path: Path) -> None:
    small, _ = folders("llada2_moe", tmp_path, **how)
    config = read_model_config(small)
    quantize_folder(small, tmp_path / "once", config, "int4", None, unwatched)
    again = read_model_config(tmp_path / "once")
    assert again.packed is None and again.stored_kind == "int4"
    for triton in (False, True):
        found = load_narrow(tmp_path / "once", again, "cpu", triton, unwatched).state_dict()
        expected = load_model(small, dtype=torch.bfloat16, quantize="int4", triton=triton).state_dict()
        assert expected.keys() == found.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_check_tells_the_packing(tmp_path: Path) -> None:
    small, _ = folders("llada_mha_untied", tmp_path)
    report = inspect_checkpoint(small)
    rows = dict(fact_rows(report))
    assert report.usable and "21 tensors GPTQ 4-bit" in rows["stored"] and "memory int4" in rows


@pytest.mark.parametrize(("method", "said", "sentence"), [
    ("gptq", {"bits": 3}, r"gptq weights with bits=3 in quantization_config, which must be 4 or 8 to be read\. Take"),
    ("gptq", {"bits": 2}, "bits=2"), ("gptq", {"bits": None}, "bits=null"), ("gptq", {"group_size": 0}, "group_size=0"),
    ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format='marlin'"), ("gptq", {"pack_dtype": "int16"}, "int16"),
    ("gptq", {"dynamic": {"+:.*down.*": {"bits": 8}}}, "dynamic=.*rules that leave modules out"),
    ("awq", {"bits": 8}, "bits=8"), ("awq", {"version": "gemv"}, "version='gemv'"),
    ("awq", {"zero_point": False}, "zero_point=false"),
    ("gptq", {"group_size": 64}, r"qzeros has shape \[4, 16\], GPTQ 4-bit in groups of 64 implies \[2, 16\]"),
])  # fmt: skip
def test_another_layout_is_refused(method: str, said: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    small, _ = folders("llada_mha_untied", tmp_path, method=method)
    edit_config(small, quantization_config={**read_json(small / "config.json")["quantization_config"], **said})
    with pytest.raises(UserError, match=sentence):
        load(small)
    assert not inspect_checkpoint(small).usable


QUERY = "model__transformer__blocks__1__q_proj"


@pytest.mark.parametrize(("changes", "sentence"), [
    ({f"{QUERY}__scales": None}, r"blocks\.1\.q_proj\.qweight is there without its qzeros and scales"),
    ({f"{QUERY}__qweight": None}, r"blocks\.1\.q_proj\.g_idx is of quantised weights"),
    ({f"{QUERY}__qzeros": torch.zeros(4, 15, dtype=torch.int32)}, r"q_proj\.qzeros has shape \[4, 15\]"),
    ({f"{QUERY}__scales": torch.zeros(4, 128, dtype=torch.int32)}, r"q_proj\.scales is stored as I32"),
    ({f"{QUERY}__g_idx": torch.full((128,), 9, dtype=torch.int32)}, r"q_proj\.g_idx names groups that are not 0 to 3"),
    ({f"{QUERY}__qweight": torch.zeros(16, 120, dtype=torch.int32), f"{QUERY}__scales": torch.zeros(4, 120),
      f"{QUERY}__qzeros": torch.zeros(4, 15, dtype=torch.int32)}, r"q_proj\.weight has shape \[120, 128\], config"),
    ({f"{QUERY}__qweight": torch.zeros(16, dtype=torch.int32)}, r"q_proj\.qweight has shape \[16\], not two sizes"),
])  # fmt: skip
def test_tensors_that_do_not_fit_each_other_are_refused(
    changes: dict[str, torch.Tensor | None], sentence: str, tmp_path: Path
) -> None:
    small, _ = folders("llada_mha_untied", tmp_path)
    edit_weights(small, **changes)
    with pytest.raises(UserError, match=sentence):
        load(small)


def test_a_config_without_packed_weights_names_none() -> None:
    assert ModelConfig.from_published(read_json(DATA / "llada_mha_untied" / "config.json")).packed is None
