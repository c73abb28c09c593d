"""dLLM-Cache: all rows due are no cache, it computes the rows that it says, and values alone are the values."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import DATA, Combination, decode, forward_of, model, requests, turns
from test_caches import canvases
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dllm import UserError
from dllm.parts import (
    ALONE,
    Canvas,
    Confidence,
    CostModel,
    DLLMCache,
    Fixed,
    FullLength,
    Layer,
    NoCache,
    Parts,
    Sampling,
    Static,
    Transformer,
    Visible,
    attend,
    attention_and_weights,
    attention_received,
    attention_similarity,
    denoise,
    load_model,
    pack_weights,
    products,
    unit,
)

BOTH = ["tiny-llada", "tiny-dream"]


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    "policy", [DLLMCache(1, 1), DLLMCache(1, 9, 1.0), DLLMCache(1, 1, 0.0)], ids=["due", "chosen", "no-share"]
)
def test_all_rows_in_every_forward_are_no_cache(policy: DLLMCache, name: str) -> None:
    expected = canvases(name, Confidence(), Fixed(8), NoCache())
    assert canvases(name, Confidence(), Fixed(8), policy) == expected
    assert canvases(name, Confidence(), Fixed(8), DLLMCache(9, 9, 0.1)) != expected


@pytest.mark.parametrize(
    ("name", "left", "share", "chosen"),
    [("tiny-llada", 0, 0.0, 0), ("tiny-llada", 0, 0.3, 7), ("tiny-llada", 0, 0.99, 23), ("tiny-dream", 1, 0.3, 7)],
)
def test_rows_and_flops_are_the_policy_in_closed_form(name: str, left: int, share: float, chosen: int) -> None:
    """11 + 24 columns. Prompts are due in every fifth forward, answers in every third; PyTorch counts the products."""
    network, policy, reported = model(name), DLLMCache(5, 3, share), 0.0
    prompt, answer = 11 - left, 24 + left
    parts, cost = Parts(Static(per_step=2), Fixed(8), policy, FullLength()), CostModel(network.config)
    forward, layers = forward_of(network, parts, Sampling()), network.config.layers
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH), torch.inference_mode():
        for turn, one in enumerate(denoise(Canvas.of(requests()[:1], 61), forward, replace(parts, eos=FullLength()))):
            later = prompt * (turn % 5 == 0) + (answer if turn % 3 == 0 else int(answer * share))
            assert one.cost.queries[0].tolist() == one.cost.computed[0].tolist() == [35] + [later] * (layers - 1)
            verified = answer if turn % 3 and share else 0
            assert isinstance(one.cost.values, torch.Tensor)
            assert one.cost.values[0].tolist() == [0] + [verified] * (layers - 1)
            reported += float(cost.flops(one.cost))
    assert reported == counter.get_total_flops()
    assert int(answer * share) == chosen


def test_a_result_adds_up_the_values_that_its_forwards_computed() -> None:
    combination, batch = Combination("static", "fixed", "dllm_cache"), requests()[:1]
    cost = CostModel(model("tiny-llada").config)
    expected = sum(float(cost.flops(turn.cost)) for turn in turns(combination, batch))
    _, spent = [(turn, cost.spent_flops(turn.ledger)) for turn in turns(combination, batch)][-1]
    assert float(spent) == expected


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("name", [*BOTH, "llada_gqa_tied"])
def test_values_alone_are_the_values_of_a_projection(name: str, fuse: bool, packed: bool) -> None:
    network: Transformer = deepcopy(load_model(DATA / "models" / name, fuse=fuse))
    if packed:
        pack_weights(network)
    layer, x = network.layers[1], torch.randn(2, 5, network.config.width, generator=torch.Generator().manual_seed(0))
    assert isinstance(layer, Layer)
    with torch.inference_mode():
        angles = network.angles(torch.arange(5).expand(2, -1), None)
        expected = layer.attn.project(x, angles).value.flatten(2)
        torch.testing.assert_close(layer.attn.values(x), expected, rtol=1e-5, atol=1e-5)


def test_the_distance_of_unit_vectors_ranks_as_their_cosine() -> None:
    a, b = torch.randn(2, 50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    far = (unit(a, ALONE) - unit(b, ALONE)).square().sum(-1)
    torch.testing.assert_close(far, 2 - 2 * torch.cosine_similarity(a, b, dim=-1))
    assert bool(unit(torch.zeros(1, 4), ALONE).eq(0).all())


@pytest.mark.parametrize("sampler", ["dream", "static"])
def test_rows_that_hardly_moved_do_not_choose_by_rounding(sampler: str) -> None:
    """Dream's time grid has turns that commit nothing. All values then are what they were, but for rounding, which
    differs between batches: ranked by their cosine, rows alone chose others than in a batch."""
    combination = Combination(sampler, "fixed", "dllm_cache", model="tiny-dream")
    together = decode(combination, requests())
    assert [one.canvases for one in together] == [decode(combination, [row])[0].canvases for row in requests()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt_interval": 0}, "prompt_interval=0 must be at least 1"),
        ({"share": 1.5}, r"share=1.5 .* \[0, 1\]"),
        ({"response_interval": 0}, "computes the answer in every forward"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        DLLMCache(**options)


@pytest.mark.parametrize(
    ("sampler", "name", "message"),
    [
        ("freedave", "tiny-llada", "several candidates"),
        ("wino", "tiny-llada", "no room for the extra queries"),
        ("confidence", "tiny-wedlm", "full attention"),
    ],
)
def test_what_cannot_work_is_refused(sampler: str, name: str, message: str) -> None:
    with pytest.raises(UserError, match=f"cache=dllm_cache .*{message}"):
        list(turns(Combination(sampler, "fixed", "dllm_cache", model=name), requests()[:1]))


def weights(*shape: int, seed: int = 0, hidden: slice = slice(0, 0)) -> Tensor:
    """Softmax rows [.., S], 0 at the ``hidden`` keys."""
    scores = 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))
    scores[..., hidden] = -torch.inf
    return scores.softmax(-1)


@pytest.mark.parametrize("axis", ["heads", "keys"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 5, 3, 37), (1, 4, 1, 300), (1, 32, 2, 65), (2, 4, 0, 9)], ids=str)
def test_similarity_is_torchs_cosine_over_visible_keys(shape: tuple[int, ...], axis: str) -> None:
    hidden = slice(3, 5) if shape[-1] > 5 else slice(0, 0)
    old, new = (weights(*shape, seed=seed, hidden=hidden) for seed in (0, 1))
    keys = torch.full((shape[0],), shape[-1] - len(range(shape[-1])[hidden]))
    (found,) = attention_similarity([one[None] for one in products(old, new, axis)], keys, axis)
    seen = [key for key in range(shape[-1]) if not hidden.start <= key < hidden.stop]
    apart = F.cosine_similarity(old[..., seen], new[..., seen], dim=1 if axis == "heads" else 3)
    torch.testing.assert_close(found, apart.mean(-1 if axis == "heads" else 1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", ["heads", "keys"])
def test_the_same_rows_have_similarity_one(axis: str) -> None:
    same, keys = weights(1, 3, 2, 50, hidden=slice(40, 50)), torch.tensor([40])
    (found,) = attention_similarity([one[None] for one in products(same, same, axis)], keys, axis)
    torch.testing.assert_close(found, torch.ones(1, 2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 5, 3, 37), (1, 7, 10, 300), (3, 4, 0, 5)], ids=str)
def test_received_attention_is_a_sum_and_adds_up_to_the_real_rows(shape: tuple[int, ...]) -> None:
    rows, real = weights(*shape), torch.ones(shape[0], shape[2], dtype=torch.bool)
    if shape[2] > 2:
        real[:, 2] = False
    found = attention_received(rows, real)
    expected = torch.einsum("bhms,bm->bs", rows.double(), real.double()).float()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(attention_received(rows[:, :, :2], None), rows[:, :, :2].sum((1, 2)))
    live = shape[1] * int(real[0].sum())
    torch.testing.assert_close(found.sum(1), torch.full((shape[0],), float(live)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kv_heads", [6, 2])
@pytest.mark.parametrize("again", [False, True])
def test_weighed_once_or_twice_attention_is_the_same(again: bool, kv_heads: int) -> None:
    """Against the fused product and a softmax by hand."""
    make = torch.Generator().manual_seed(kv_heads)
    query = torch.randn(2, 4, 6, 8, generator=make)
    keys, values = (torch.randn(2, kv_heads, 30, 8, generator=make) for _ in range(2))
    visible, at = torch.arange(30).expand(2, -1) != 7, torch.tensor([[3, 0, 2], [1, 1, 3]])
    batch = torch.arange(2)[:, None]
    out, weights = attention_and_weights(query, keys, values, Visible(visible), query[batch, at] if again else None)
    torch.testing.assert_close(out, attend(query, keys, values, Visible(visible)))
    wide = keys.repeat_interleave(6 // kv_heads, 1)
    scores = torch.einsum("bihd,bhjd->bhij", query[batch, at], wide) / 8**0.5
    expected = scores.masked_fill(~visible[:, None, None], -torch.inf).softmax(-1)
    torch.testing.assert_close(weights if again else weights[batch, :, at].transpose(1, 2), expected)
