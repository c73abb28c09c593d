"""``kernels=invariant``: a row's numbers, to the last bit, whatever else is computed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path

import pytest
import torch
from harness import DATA, Shown, drawn
from law import law
from torch import Tensor, nn

from dllm import Decoder, load, part
from dllm.parts import (
    KEY_TILE,
    TILE,
    Result,
    Tiled,
    UserError,
    Visible,
    attend,
    check_invariant,
    in_tiles,
    save_model,
    use_triton,
)

NAMES = ("llada_gqa_tied", "tiny-llada", "tiny-dream")
CACHES = ("none", "prefix", "dual", "dkv", "window", "elastic", "d2cache", "flash_dllm", "dllm_cache", "vicinity")


def test_a_product_gets_as_many_rows_in_every_call() -> None:
    sizes: list[int] = []

    def product(rows: Tensor) -> Tensor:
        sizes.append(len(rows))
        return rows * len(rows)  # what depends on the number of rows would show

    for count in (0, 1, TILE - 1, TILE, TILE + 1, 3 * TILE):
        rows = torch.arange(count * 2.0).view(count, 2)
        assert in_tiles(product, rows).tolist() == (rows * TILE).tolist()
    assert set(sizes) == {0, TILE}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_products_and_attention_have_the_same_bits_in_any_number_of_rows_and_keys(dtype: torch.dtype) -> None:
    noise = torch.Generator().manual_seed(0)
    linear, x = Tiled(nn.Linear(96, 130).to(dtype)), torch.randn(130, 96, generator=noise).to(dtype)
    whole = linear(x)
    for begin, end in ((0, 1), (3, 4), (5, 37), (100, 130)):
        assert torch.equal(linear(x[begin:end]), whole[begin:end])
    query, key, value = (torch.randn(1, size, 4, 24, generator=noise).to(dtype) for size in (70, 600, 600))
    key, value, seen = key[:, :, :2].transpose(1, 2), value[:, :, :2].transpose(1, 2), 50
    alone = attend(query[:, 3:4], key[:, :, :seen], value[:, :, :seen], Visible(), tiled=True)
    for width in (seen + 1, KEY_TILE, KEY_TILE + 1, 600):
        visible = Visible(torch.arange(width)[None] < seen)
        wide = attend(query, key[:, :, :width], value[:, :, :width], visible, tiled=True)
        assert torch.equal(wide[:, 3:4], alone)
        plain = attend(query, key[:, :, :width], value[:, :, :width], visible)
        torch.testing.assert_close(wide, plain, rtol=0.02, atol=0.02)


@dataclass(frozen=True)
class Kept(Shown):
    """A model in a narrow or a wide dtype, under a cache."""

    name: str
    dtype: str
    cache: str


def kept() -> Iterator[Kept]:
    """Every model that has a mask's id, in every dtype, under every cache that serves its attention."""
    return starmap(Kept, drawn(NAMES, ("bfloat16", "float16", "float32"), CACHES))


def results(case: Kept, kernels: str) -> list[list[Result]]:
    """Twelve random prompts, alone and in batches of six."""
    dice, model = random.Random(str(case)), load(DATA / "models" / case.name, dtype=case.dtype, kernels=kernels)
    prompts = [[dice.randrange(3, 60) for _ in range(dice.randrange(1, 40))] for _ in range(12)]
    blocks = part("blocks", "fixed", block_length=8)
    return [
        Decoder(model, cache=case.cache, blocks=blocks, gen_length=24, batch_size=size, chat=False)(prompts, trace=True)
        for size in (1, 6)
    ]


@law(kept, daily=2, least=60)
def test_a_row_has_the_same_bits_alone_and_in_a_batch(case: Kept) -> None:
    for alone, together in zip(*results(case, "invariant"), strict=True):
        assert (alone.canvas, alone.turns) == (together.canvas, together.turns)
        assert alone.commit_logprobs == together.commit_logprobs


def test_what_it_does_not_cover_is_refused(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="kernels=invariant needs a CPU, and the model is on cuda"):
        use_triton("invariant", "cuda")
    with pytest.raises(UserError, match="quantize=int8 narrows"):
        check_invariant("invariant", "int8", "eager")
    with pytest.raises(UserError, match="runtime=compile makes others"):
        check_invariant("invariant", None, "compile")
    model = load(tiny, kernels="invariant")
    with pytest.raises(UserError, match="kernels='auto'"):
        Decoder(model, gen_length=8, runtime="compile")
    with pytest.raises(UserError, match="cannot write"):
        save_model(model.transformer, tmp_path / "saved")
