"""Law 15 for GPTQ and AWQ: a folder computes the numbers that its packer meant, or is refused in a sentence.

The packer here draws steps, zeros and scales, writes them as their formats say, and says so in every spelling there is.
What it meant is the plain float copy: w = s (q - z). Whether a case must compute or be refused is decided from how it
was drawn, not from what it says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import drawn
from model_folders import published
from safetensors.torch import load_file, save_file

from dllm.parts import SettingWarning, UserError, inspect_checkpoint, load_model, read_model_config, save_model
from tests.support.packed_weights import AWQ_ORDER, words

SIZE, VOCAB = 64, 64  # all of the layer's sizes, and rows of embedding and head
PARTS = ("q_proj", "k_proj", "v_proj", "attn_out", "ff_proj", "up_proj", "ff_out")
CONFIG = published(
    "llada_mha_untied",
    d_model=SIZE,
    n_layers=1,
    n_heads=4,
    n_kv_heads=4,
    mlp_hidden_size=SIZE,
    vocab_size=VOCAB,
    embedding_size=VOCAB,
    mask_token_id=60,
    eos_token_id=61,
    pad_token_id=61,
)
UNKNOWN = ("missing", "zero")  # indices that say no order


@dataclass(frozen=True)
class Drawn:
    """How a folder is packed, and what it says of that."""

    method: str = "gptq"
    bits: int = 4
    group: int = 32  # columns
    middle: bool = False  # all zeros are the middle step
    sym: bool | None = False  # as said; None: not at all
    second: bool = False  # zeros as the second format has them
    spelling: str = "checkpoint_format"  # of the format
    truthful: bool = True  # the format that is said is the one that was written
    desc_act: bool | None = False
    index: str = "plain"
    bias: str = "none"
    where: str = "config"

    @property
    def groups(self) -> int:
        return 1 if self.group == -1 else SIZE // self.group

    @property
    def refused(self) -> bool:
        """Whether nobody can know what was meant, or what is said contradicts itself."""
        if self.bias == "some" or self.where == "contradiction":
            return True
        if self.method == "awq":
            return bool(self.desc_act)
        unknown = self.index in UNKNOWN and bool(self.desc_act)
        return self.groups > 1 and (unknown or self.index == "lopsided") or bool(self.sym and not self.middle)

    @property
    def told(self) -> bool:
        """Whether its numbers can be known: a wrong format of drawn zeros, or a format that is not said, cannot."""
        if self.method == "awq":
            return self.bits == 4
        right = self.truthful if self.spelling != "none" else not self.second
        return right or (self.middle and self.sym is not False)


def order(case: Drawn, draw: np.random.Generator) -> np.ndarray[Any, Any]:
    """The group of each column."""
    plain = np.arange(SIZE) // (SIZE // case.groups)
    return draw.permutation(plain) if case.index == "permuted" and case.method == "gptq" else plain


def written_index(case: Drawn, groups: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    lopsided = np.minimum(np.arange(SIZE) // 8, case.groups - 1)
    return {"missing": None, "zero": 0 * groups, "lopsided": lopsided}.get(case.index, groups)


def matrix(case: Drawn, draw: np.random.Generator) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    top, bits = 2**case.bits, case.bits
    steps, groups = draw.integers(0, top, (SIZE, SIZE)), order(case, draw)
    zeros = np.full((case.groups, SIZE), top // 2) if case.middle else draw.integers(0, top, (case.groups, SIZE))
    scales = draw.uniform(0.005, 0.05, zeros.shape).astype(np.float16)
    plain = scales.astype(np.float32)[groups].T * (steps - zeros[groups].T)
    parts = {"scales": torch.from_numpy(scales)}
    if case.method == "awq":
        parts |= {"qweight": words(steps.T, 4, 1, AWQ_ORDER), "qzeros": words(zeros, 4, 1, AWQ_ORDER)}
    else:
        whole = words(zeros, bits, 1).numpy().view(np.uint32)
        ones = np.uint32(sum(1 << place for place in range(0, 32, bits)))
        stored = whole if case.second else whole - ones  # borrows from the next number where a zero is 0
        parts |= {"qweight": words(steps.T, bits, 0), "qzeros": torch.from_numpy(stored.view(np.int32).copy())}
        index = written_index(case, groups)
        parts |= {} if index is None else {"g_idx": torch.from_numpy(index.astype(np.int32))}
    if case.bias != "none":
        parts["bias"] = torch.zeros(SIZE, dtype=torch.float16) + (case.bias == "some") / 8
    return parts, torch.from_numpy(plain.astype(np.float32))


def said(case: Drawn) -> dict[str, Any]:
    """The quantisation of a config, in one of the ways in which programs write it."""
    out: dict[str, Any] = {"quant_method": case.method, "bits": case.bits, "group_size": case.group}
    out |= {key: value for key, value in (("sym", case.sym), ("desc_act", case.desc_act)) if value is not None}
    format_said = ("gptq_v2" if case.second == case.truthful else "gptq") if case.method == "gptq" else "gemm"
    older = "checkpoint_format" if case.method == "gptq" else "version"
    spelt: dict[str, dict[str, Any]] = {
        "none": {},
        "checkpoint_format": {older: format_said},
        "format": {older: None, "format": format_said},
        "both": {older: format_said, "format": format_said},
        "capitals": {older: format_said.upper()},
    }
    return out | spelt[case.spelling]


def texts(case: Drawn) -> Mapping[str, dict[str, Any]]:
    """The JSON files of a folder."""
    about, beside = said(case), "quantize_config.json" if case.method == "gptq" else "quant_config.json"
    if case.where == "config":
        return {"config.json": {**CONFIG, "quantization_config": about}}
    older = {key: value for key, value in about.items() if key not in ("quant_method", "bits", "group_size")}
    older |= {"w_bit": case.bits, "q_group_size": case.group, "true_sequential": True}
    if case.where == "beside":
        return {"config.json": CONFIG, beside: older}
    wrong = {"w_bit": 12 - case.bits if case.method == "gptq" else 4, "q_group_size": 64 if case.group == 32 else 32}
    return {
        "config.json": {**CONFIG, "quantization_config": about},
        beside: older | (wrong if case.where == "contradiction" else {}),
    }


def write(folder: Path, case: Drawn, seed: int = 0) -> dict[str, torch.Tensor]:
    """Write the folder, and return the plain tensors that it stands for."""
    draw, name = np.random.default_rng(seed), "model.transformer.{}".format
    rows = {
        name(end): torch.from_numpy(draw.normal(0, 1, (VOCAB, SIZE)).astype(np.float32))
        for end in ("wte.weight", "ff_out.weight")
    }
    norms = ("ln_f", "blocks.0.attn_norm", "blocks.0.ff_norm")
    plain = rows | {name(f"{norm}.weight"): torch.ones(SIZE) for norm in norms}
    small = dict(plain)
    for part in PARTS:
        stem = name(f"blocks.0.{part}")
        parts, plain[f"{stem}.weight"] = matrix(case, draw)
        small |= {f"{stem}.{leaf}": one for leaf, one in parts.items()}
    folder.mkdir()
    save_file(small, folder / "model.safetensors")
    for file, content in texts(case).items():
        (folder / file).write_text(json.dumps(content))
    return plain


def holds(case: Drawn, folder: Path) -> None:
    """The law for one case."""
    plain = write(folder, case)
    try:
        found = load_model(folder, fuse=False)
    except UserError as error:
        assert case.refused, f"{case}: {error}"
        assert "\n" not in str(error) and len(str(error)) < 600 and str(error).endswith(".")
        assert not inspect_checkpoint(folder).usable, "check and load agree"
        return
    assert not case.refused, f"{case} loads"
    assert inspect_checkpoint(folder).usable, "check and load agree"
    named = {
        "q_proj": "attn.q",
        "k_proj": "attn.k",
        "v_proj": "attn.v",
        "attn_out": "attn.o",
        "ff_proj": "mlp.gate",
        "up_proj": "mlp.up",
        "ff_out": "mlp.down",
    }
    for part, ours in named.items():
        weight = found.get_parameter(f"layers.0.{ours}.weight")
        assert torch.equal(weight, plain[f"model.transformer.blocks.0.{part}.weight"]), (case, part)


def cases() -> list[Drawn]:
    """Combinations whose numbers can be known, in an order that LAWS_SEED decides."""
    every = drawn(
        ("gptq", "gptq", "awq"),
        (4, 8),
        (32, -1),
        (False, True),
        (True, False, None),
        (False, True),
        ("checkpoint_format", "format", "both", "capitals", "none"),
        (True, True, False),
        (False, True, None),
        ("plain", "permuted", "missing", "zero", "lopsided"),
        ("none", "none", "zero", "some"),
        ("config", "beside", "both", "contradiction"),
    )
    return list(islice((case for one in every if (case := Drawn(*one)).told), 600))


@pytest.mark.daily(16)
@pytest.mark.parametrize("case", cases(), ids=str)
def test_a_packed_folder_computes_what_was_meant_or_is_refused(case: Drawn, tmp_path: Path) -> None:
    holds(case, tmp_path / "case")


MET = {
    "zeros of the second format under the name of the first": Drawn(middle=True, sym=True, second=True, truthful=False),
    "the same in eight bits, without a name": Drawn(bits=8, middle=True, sym=None, second=True, spelling="none"),
    "zeros of the first format under the name of the second": Drawn(middle=True, sym=True, truthful=False),
    "the second format by its newer key alone": Drawn(second=True, spelling="format"),
    "an index of zeros": Drawn(index="zero"),
    "columns in an order that nothing tells": Drawn(desc_act=True, index="missing"),
    "the same, in an index of zeros": Drawn(desc_act=True, index="zero"),
    "one group has no order": Drawn(desc_act=True, group=-1, index="missing"),
    "too many columns in a group": Drawn(index="lopsided"),
    "symmetric by its word, not by its zeros": Drawn(sym=True),
    "biases of zeros": Drawn(bias="zero"),
    "biases that add something": Drawn(bias="some"),
    "settings in AutoGPTQ's own file": Drawn(where="beside", spelling="none"),
    "settings in AutoAWQ's own file": Drawn(method="awq", sym=None, where="beside"),
    "AWQ by its newer key, with the defaults of transformers": Drawn(method="awq", sym=True, spelling="format"),
    "two files that contradict each other": Drawn(where="contradiction"),
}


@pytest.mark.parametrize("name", MET)
def test_what_folders_on_the_hub_have(name: str, tmp_path: Path) -> None:
    assert MET[name].told
    holds(MET[name], tmp_path / "case")


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"format": "gptq_v2"}, r"checkpoint_format='gptq', format='gptq_v2' in quantization_config: they contradict"),
        ({"w_bit": 8}, r"bits=4, w_bit=8 in quantization_config: they contradict each other"),
        ({"sym": "yes"}, "sym='yes' in quantization_config, which must be true or false"),
        ({"desc_act": 1}, "desc_act=1 in quantization_config, which must be true or false"),
        ({"data_type": "mx_fp"}, "data_type='mx_fp'"),
        ({"rotation": "hadamard"}, "rotation='hadamard'"),
        ({"act_bits": 8}, "act_bits=8"),
        ({"extra_config": {"a.b": {"bits": 8}}}, "extra_config=.*leave modules out"),
        ({"format": "bitblas"}, "checkpoint_format='gptq', format='bitblas'"),
    ],
)
def test_a_key_that_would_change_the_numbers_is_refused(more: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    write(tmp_path / "case", Drawn())
    about = {**CONFIG, "quantization_config": {**said(Drawn()), **more}}
    (tmp_path / "case" / "config.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match=sentence):
        load_model(tmp_path / "case")


def test_keys_of_packers_that_are_not_read_are_named_by_the_check_alone(tmp_path: Path) -> None:
    write(tmp_path / "case", Drawn())
    told = {
        "damp_percent": 0.01,
        "meta": {"quantizer": ["x"]},
        "dynamic": {"-:.*head": {}},
        "new_rule": 3,
        "extra_config": {"lm_head": {"bits": 16}},
        "rotation": None,
    }
    about = {**CONFIG, "quantization_config": {**said(Drawn()), **told}}
    (tmp_path / "case" / "config.json").write_text(json.dumps(about))
    said_so = "quantization_config has keys that change nothing here, or are not known: damp_percent, meta, new_rule."
    assert said_so in inspect_checkpoint(tmp_path / "case").notes
    assert read_model_config(tmp_path / "case").warnings == ()


def test_a_plain_weight_beside_a_packed_one_is_refused(tmp_path: Path) -> None:
    plain = write(tmp_path / "case", Drawn())
    name = "model.transformer.blocks.0.q_proj.weight"
    held = load_file(tmp_path / "case" / "model.safetensors")
    save_file(held | {name: plain[name]}, tmp_path / "case" / "model.safetensors")
    with pytest.raises(UserError, match=r"q_proj\.weight is beside .*q_proj\.qweight: which one counts is not kn"):
        load_model(tmp_path / "case")


def test_the_format_that_is_overruled_is_told_and_plain_weights_under_the_word_are_too(tmp_path: Path) -> None:
    write(tmp_path / "case", replace(MET["zeros of the second format under the name of the first"]))
    with pytest.warns(SettingWarning, match="checkpoint_format is gptq, and .* have the zeros of gptq_v2"):
        model = load_model(tmp_path / "case")
    save_model(model, tmp_path / "plain")
    assert read_model_config(tmp_path / "plain").packed is None, "what is plain says so"
    (tmp_path / "plain" / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 32}))
    with pytest.warns(SettingWarning, match="says GPTQ 4-bit, and no tensor is packed"):
        again = load_model(tmp_path / "plain")
    assert all(torch.equal(one, again.state_dict()[key]) for key, one in model.state_dict().items())
