"""A small model inside a larger network: the same logits, texts and commit turns, and hardly a zero weight."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from dllm import Decoder, load, part
from dllm.parts import Model
from dllm.tasks.mini import tasks
from experiments.support.inflate import Spread, inflated, shares

SIZES = {
    "width": 512,
    "layers": 5,
    "heads": 8,
    "kv_heads": 8,
    "head_dim": 64,
    "rotary_dim": 64,
    "mlp_width": 1152,
    "vocab": 5600,
}
CPU = torch.device("cpu")


@cache
def models() -> tuple[Model, Model]:
    """Three copies of every dim and unit, which do not halve evenly."""
    small = load("mini-llada", pack=False)
    shape = replace(small.config, **SIZES, theta=5e5, mask_id=None)  # ids and theta are the small one's
    return small, inflated(small, shape, CPU, torch.float32)


def test_logits_are_those_of_the_small_model() -> None:
    """Ids that it does not have are out of reach. A layer that is not the small one's has no zero."""
    small, large = models()
    ids = torch.randint(3, 5000, (2, 37), generator=torch.Generator().manual_seed(3))
    wanted, found = (one.transformer.logits(one.transformer.encode(ids)) for one in (small, large))
    torch.testing.assert_close(found[..., : small.config.vocab], wanted, rtol=1e-4, atol=2e-4)
    assert found[..., small.config.vocab :].max() < -100
    assert large.config.mask_id == small.config.mask_id and large.config.vocab == 5600
    assert all(bool((one != 0).all()) for one in large.transformer.layers[2].parameters())


def equal_decodes(cache_name: str, count: int) -> tuple[int, int]:
    """How many texts, and how many turns of all commits, are those of the small model, of one prompt from each task."""
    prompts = [one.messages for task in tasks.SHORT_ANSWERS for one in tasks.generate(task, 3, 3)][:count]
    blocks = part("blocks", "fixed", block_length=16)
    found = [
        Decoder(one, "confidence", blocks, cache_name, "fill_after_block", gen_length=32, batch_size=1)(prompts)
        for one in models()
    ]
    pairs = list(zip(*found, strict=True))
    return sum(one.tokens == other.tokens for one, other in pairs), sum(
        one.turns == other.turns for one, other in pairs
    )


def test_a_text_is_decoded_as_by_the_small_model() -> None:
    assert equal_decodes("dual", 1) == (1, 1)


@pytest.mark.program
@pytest.mark.parametrize("cache_name", ["none", "dual"])
def test_thirty_texts_and_their_turns_are_equal(cache_name: str) -> None:
    assert equal_decodes(cache_name, 30) == (30, 30)


@pytest.mark.parametrize("count", range(1, 40))
def test_shares_are_exact(count: int) -> None:
    found = shares(count)
    assert len(found) == count and sum(found) == 1.0
    assert all(torch.tensor(one).bfloat16().frexp().mantissa == 0.5 for one in found)


def test_an_8b_shape_takes_every_copy_exactly() -> None:
    """LLaDA-8B's sizes divide by powers of two, and the layers are spread from the first to the last."""
    small = models()[0].config
    shape = replace(small, width=4096, layers=32, heads=32, kv_heads=32, head_dim=128, mlp_width=12288, vocab=126464)
    spread = Spread(small, shape, CPU, 0)
    assert (spread.copies, list(spread.layers)) == (31, [0, 10, 21, 31])
    assert spread.config.eps == pytest.approx(31 / 32 * small.eps - spread.constant**2 / 32) and spread.config.eps > 0


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"width": 200}, "width=200 must be a multiple of 128"),
        ({"kv_heads": 2}, "Heads with shared keys"),
        ({"layers": 3}, "as many layers"),
    ],
)
def test_sizes_that_do_not_fit_are_named(sizes: dict[str, int], said: str) -> None:
    small = models()[0]
    with pytest.raises(ValueError, match=said):
        inflated(small, replace(small.config, **(SIZES | sizes)), CPU, torch.float32)
