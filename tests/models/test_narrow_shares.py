"""Quantised folders read by several ranks: the whole's own steps, no byte of the rest, the whole's logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from model_folders import DATA, wide_folder
from rank_threads import threads, together
from torch import Tensor, nn

from dllm import UserError
from dllm.models.weights import narrow_folder
from dllm.parts import (
    ALONE,
    NarrowLinear,
    Ranks,
    Sampling,
    Transformer,
    check_cut,
    describe,
    load_model,
    load_narrow,
    out_of_blocks,
    quantize_folder,
    read_model_config,
    stored,
    stored_columns,
    stored_rows,
    tensors_of,
    unwatched,
)
from tests.support.harness import Combination, parts_of, requests, results

CASES = [
    (name, kind, size, ep)
    for name in ("llada_mha_untied", "llada_gqa_tied", "wedlm_bias", "llada2_moe", "sdar_moe")
    for kind in ("int8", "int4")
    for size in (2, 4)
    for ep in ((False, True) if name.endswith("moe") else (False,))
]


def quantized(name: str, kind: str, folder: Path) -> tuple[Path, Path]:
    """A checkpoint of random weights, and what task=quantize makes of it."""
    source = wide_folder(name, folder / "source")
    quantize_folder(source, folder / "narrow", describe(source, 60).config, kind, None, unwatched)
    return source, folder / "narrow"


def read(folder: Path, ranks: Ranks = ALONE, ep: bool = False) -> Transformer:
    return load_narrow(folder, read_model_config(folder), "cpu", False, unwatched, ranks, ep)


def each(ranks: Sequence[Ranks], load: Any) -> list[Transformer]:
    return together(ranks, lambda rank: load(ranks[rank]))


def widened_everywhere(model: Transformer) -> Transformer:
    """The same model in float64, its narrow products as the plain ones that they stand for."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, NarrowLinear):
                plain = nn.Linear(1, 1, bias=False)
                eye = torch.eye(child_width(child), dtype=torch.bfloat16)
                plain.weight = nn.Parameter(steps_of(child, eye))
                plain.bias = child.bias
                setattr(module, name, plain)
    return model.double()


def child_width(child: NarrowLinear) -> int:
    return child.narrow.shape[1] * (1 if child.bits == 8 else 2)


def steps_of(child: NarrowLinear, eye: Tensor) -> Tensor:
    """The weights that a product stands for: its scales times its steps, as the operator multiplies them."""
    if child.bits == 8:
        return child.narrow.double() * child.scale.double()[:, None]
    return torch.ops.aten._weight_int4pack_mm_for_cpu(eye, child.narrow, 32, child.scale).t().double()


@pytest.mark.daily(4)
@pytest.mark.parametrize(("name", "kind", "size", "ep"), CASES)
def test_a_rank_reads_what_it_would_narrow_itself(name: str, kind: str, size: int, ep: bool, tmp_path: Path) -> None:
    source, narrow = quantized(name, kind, tmp_path)
    ranks = threads(size)
    more: dict[str, Any] = {"dtype": torch.bfloat16, "quantize": kind, "ep": ep}
    expected = each(ranks, lambda one: load_model(source, ranks=one, **more))
    for made, found in zip(expected, each(ranks, lambda one: read(narrow, one, ep)), strict=True):
        wanted, there = tensors_of(made), tensors_of(found)
        assert wanted.keys() == there.keys()
        for key, tensor in wanted.items():
            assert torch.equal(tensor, there[key]), key


@pytest.mark.daily(2)
@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("name", ["llada_gqa_tied", "wedlm_bias"])
def test_shares_have_the_logits_and_decodes_of_the_whole(name: str, kind: str, tmp_path: Path) -> None:
    """In float64, where only the order of sums differs: bfloat16 rounds each rank's products before they are added."""
    _, narrow = quantized(name, kind, tmp_path)
    ranks, tokens = threads(2), torch.arange(22).view(2, 11)
    whole = widened_everywhere(read(narrow))
    models = [widened_everywhere(one) for one in each(ranks, lambda one: read(narrow, one))]
    with torch.inference_mode():
        expected = whole.head(whole.encode(tokens))
        for found in together(ranks, lambda rank: models[rank].head(models[rank].encode(tokens))):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    parts = parts_of(Combination("confidence", "fixed", "dual"))

    def decoded(network: Transformer) -> list[Any]:
        return [(one.canvas, one.turns, one.flops) for one in results(network, parts, requests(), Sampling())]

    assert together(ranks, lambda rank: decoded(models[rank])) == [decoded(whole)] * 2


@pytest.mark.parametrize(
    ("count", "width", "spans"),
    [(192, 96, [(64, 128)]), (176, 64, [(160, 176)]), (176, 64, [(16, 80), (128, 176)]), (64, 32, [(0, 64)])],
)
def test_outputs_and_inputs_are_cut_without_rounding(count: int, width: int, spans: list[tuple[int, int]]) -> None:
    weight = torch.randn(count, width, generator=torch.Generator().manual_seed(count)).to(torch.bfloat16)
    (four, sizes), (eight, scale) = stored(weight, 4), stored(weight, 8)
    steps = out_of_blocks(four)
    narrow, own = stored_rows(four, sizes, spans)
    assert torch.equal(out_of_blocks(narrow), torch.cat([steps[begin:end] for begin, end in spans]))
    assert torch.equal(own, torch.cat([sizes[:, begin:end] for begin, end in spans], 1))
    narrow, own = stored_rows(eight, scale, spans)
    assert torch.equal(narrow, torch.cat([eight[begin:end] for begin, end in spans])) and len(own) == len(narrow)
    narrow, own = stored_columns(four, sizes, 0, 32)
    assert torch.equal(out_of_blocks(narrow), steps[:, :32]) and torch.equal(own, sizes[:1])
    narrow, own = stored_columns(eight, scale, 16, 32)
    assert torch.equal(narrow, eight[:, 16:32]) and torch.equal(own, scale)


def test_no_byte_of_the_rest_is_copied(tmp_path: Path) -> None:
    """Pages of a mapped file are read where they are touched: what a rank keeps is what it touches."""
    _, narrow = quantized("llada_mha_untied", "int4", tmp_path)
    told = list[int]()
    with patch.object(narrow_folder, "refuse_mapped", told.append):
        whole, models = read(narrow), each(threads(2), lambda one: read(narrow, one))
    sizes = [sum(one.nbytes for one in tensors_of(model).values()) for model in (whole, *models)]
    assert told == sizes
    everywhere = sum(one.nbytes for key, one in tensors_of(whole).items() if "norm" in key or key.startswith("embed"))
    assert sizes[1] - everywhere == (sizes[0] - everywhere) // 2


def test_a_group_that_a_cut_would_split_is_refused(tmp_path: Path) -> None:
    _, narrow = quantized("llada_mha_untied", "int4", tmp_path)
    with pytest.raises(UserError, match=r"tp=8 must divide the model's attention heads, and 4 is not"):
        check_cut(read_model_config(narrow), 8, False, "int4")
    config = read_model_config(DATA / "llada2_moe")
    assert config.moe is not None
    wide = replace(config, heads=4, head_dim=32, kv_heads=2, mlp_width=256, moe=replace(config.moe, width=96))
    with pytest.raises(UserError, match=r"expert width, and 96 is not a multiple of 2 times 32. Set tp=1"):
        check_cut(wide, 2, False, "int4")
