"""Shares of models: several ranks compute the whole's logits, from their own bytes of the files alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch
from rank_threads import threads, together
from torch import Tensor

from dllm import UserError
from dllm.parts import (
    ALONE,
    MASKED_LM_FAMILY,
    Adapter,
    NarrowLinear,
    Ranks,
    StackedExperts,
    TensorReader,
    Transformer,
    attach_drafts,
    check_cut,
    load_model,
    local_device,
    read_model_config,
    refuse_object,
    widened,
)
from tests.support.adapters import DATA, adapted

FOLDERS = sorted(one.name for one in DATA.iterdir() if (one / "model.safetensors").is_file())
EXPERTS = [name for name in FOLDERS if read_model_config(DATA / name).moe is not None]
CASES = [(name, size, ep) for name in FOLDERS for size in (2, 4) for ep in (False, True) if name in EXPERTS or not ep]


def logits(model: Transformer) -> Tensor:
    tokens = torch.arange(22).view(2, 11) % model.config.vocab
    with torch.inference_mode():
        return model.head(model.encode(tokens))


def shares(folder: Path, ranks: Sequence[Ranks], ep: bool = False, **more: Any) -> list[Transformer]:
    more = {"dtype": torch.float64, **more}
    return together(ranks, lambda rank: load_model(folder, ranks=ranks[rank], ep=ep, **more))


def fits(name: str, size: int, ep: bool) -> bool:
    try:
        check_cut(read_model_config(DATA / name), size, ep, None)
    except UserError:
        return False
    return True


@pytest.mark.daily(4)
@pytest.mark.parametrize(("name", "size", "ep"), [case for case in CASES if fits(*case)])
def test_ranks_have_the_logits_of_the_whole(name: str, size: int, ep: bool) -> None:
    ranks, whole = threads(size), load_model(DATA / name, dtype=torch.float64)
    models = shares(DATA / name, ranks, ep)
    expected = logits(whole)
    for found in together(ranks, lambda rank: logits(models[rank])):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    held = [sum(one.numel() for one in model.parameters()) for model in models]
    assert max(held) < sum(one.numel() for one in whole.parameters())


def test_most_families_are_cut() -> None:
    assert sum(fits(*case) for case in CASES) > 40


@pytest.mark.parametrize(
    ("name", "ep"), [("llada2_moe", False), ("llada2_moe", True), ("dg_dev", False), ("dream_gqa", False)]
)
def test_a_rank_reads_its_own_bytes_alone(name: str, ep: bool) -> None:
    taken = list[int]()
    part = TensorReader.part

    def counted(reader: TensorReader, *asked: Any) -> Tensor:
        found = part(reader, *asked)
        taken.append(found.nbytes)
        return found

    for rank in threads(2):
        taken.clear()
        with patch.object(TensorReader, "part", counted):
            model = load_model(DATA / name, dtype=torch.float32, ranks=rank, ep=ep)
        own = {id(one): one.nbytes for one in model.parameters()}
        if model.config.tied:
            del own[id(model.lm_head.weight)]
        assert sum(taken) == sum(own.values())


@pytest.mark.program  # peft takes seconds to import
@pytest.mark.parametrize("name", ["llada_gqa_tied", "llada2_moe"])
def test_an_adapter_is_merged_into_shares(name: str, tmp_path: Path) -> None:
    adapted(DATA / name, tmp_path)
    lora, ranks = Adapter.read(tmp_path), threads(2)
    expected = logits(load_model(DATA / name, dtype=torch.float64, adapter=lora))
    models = shares(DATA / name, ranks, adapter=lora)
    for found in together(ranks, lambda rank: logits(models[rank])):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.program
def test_what_drafts_add_is_summed_with_the_output(tmp_path: Path) -> None:
    """A by columns, B whole: partial products of ranks add up to the whole's."""
    adapted(DATA / "tiny-nemotron", tmp_path, target_modules=r".*o_proj")
    lora, ranks = Adapter.read(tmp_path), threads(2)
    models = [load_model(DATA / "tiny-nemotron", dtype=torch.float64), *shares(DATA / "tiny-nemotron", ranks)]
    for model in models:
        attach_drafts(model, lora)
    whole, *parts = (cast("Any", model.layers[1]).attn.draft for model in models)
    x = torch.randn(3, whole.a.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = sum(part(piece) for part, piece in zip(parts, x.chunk(2, 1), strict=True))
    torch.testing.assert_close(found, whole(x))


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_narrow_shares_are_slices_of_the_whole_s_narrow_weights(kind: str) -> None:
    """Scales of eight bits are over all columns of an output, also where a rank holds some."""
    more = {"dtype": torch.bfloat16, "quantize": kind, "triton": True}
    whole, ranks = load_model("dllm/models/checkpoints/mini-llada", **more), threads(2)  # type: ignore[arg-type]
    models = shares(Path("dllm/models/checkpoints/mini-llada"), ranks, **more)

    def wide(model: Transformer, name: str) -> Tensor:
        product = model.layers[1].get_submodule(name)
        assert isinstance(product, NarrowLinear)
        return widened(product.narrow, product.scale, torch.float32)

    for name in ("attn.o", "mlp.down"):
        assert torch.equal(torch.cat([wide(model, name) for model in models], 1), wide(whole, name))
    for name, pieces in (("attn.qkv", 3), ("mlp.gate_up", 2)):
        found = torch.cat(
            [torch.cat(part) for part in zip(*(wide(one, name).chunk(pieces) for one in models), strict=True)]
        )
        assert torch.equal(found, wide(whole, name))


@pytest.mark.parametrize(
    ("name", "size", "ep", "kind", "sentence"),
    [
        ("dream_gqa", 3, False, None, "must divide the model's attention heads, and 4 is not a multiple of 3"),
        ("dg_other", 2, False, None, "must divide the model's 3 key heads or be a multiple of them"),
        ("dg_other", 2, True, None, "must divide the model's experts, and 5 is not a multiple of 2. Set tp=1"),
        ("dg_other", 3, True, None, "must divide the model's MLP width, and 20 is not a multiple of 3"),
        ("llada2_moe", 4, False, "int4", "is not a multiple of 4 times 32"),
        ("dream_gqa", 2, True, None, "has no routed experts"),
        ("dream_gqa", 2, False, "float8", "float8 scales each row over its whole width"),
        ("dream_gqa", 0, False, None, "tp=0 must be 1 or more"),
    ],
)
def test_what_cannot_be_shared_is_refused_with_numbers(
    name: str, size: int, ep: bool, kind: str | None, sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        check_cut(read_model_config(DATA / name), size, ep, kind)


def test_what_has_its_weights_or_spreads_them_is_refused() -> None:
    own_class = replace(read_model_config(DATA / "dream_gqa"), family=MASKED_LM_FAMILY)
    with pytest.raises(UserError, match=r"tp=2: a DreamModel is run through its own class.* Set tp=1"):
        check_cut(own_class, 2, False, None)
    with pytest.raises(UserError, match="a model object has its weights already"):
        refuse_object(2)
    with pytest.raises(UserError, match="one cuts layers, the other spreads them"):
        local_device("auto", 2)
    none = patch("torch.cuda.device_count", return_value=0)
    with none, pytest.raises(UserError, match="needs 2 GPUs, and torch finds 0"):
        local_device("cuda", 2)
    assert local_device("cuda:0", 2) == "cuda:0" and local_device("auto", 1) == "auto"


def test_one_process_adds_nothing_up() -> None:
    """No operation of a layer but those that it had."""
    model = load_model(DATA / "llada2_moe", dtype=torch.float64)
    with (
        patch.object(Ranks, "_reduced", side_effect=AssertionError),
        patch.object(Ranks, "gather", side_effect=AssertionError),
    ):
        logits(model)
    assert model.ranks is ALONE


def test_experts_are_read_into_their_stack() -> None:
    """A layer's experts are in memory once: none of them is copied from a matrix of its own."""
    with patch("dllm.models.network.fused.stacked", side_effect=AssertionError):
        found = load_model(DATA / "llada2_moe", dtype=torch.float64)
    apart = load_model(DATA / "llada2_moe", dtype=torch.float64, fuse=False)
    assert any(isinstance(part, StackedExperts) for part in found.modules())
    torch.testing.assert_close(logits(found), logits(apart), rtol=1e-12, atol=1e-12)
