"""dLLM-Cache: all rows due are no cache, it computes the rows that it says, and values alone are the values."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from harness import DATA, Combination, decode, forward_of, model, requests, turns
from test_caches import canvases
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dllm import UserError
from dllm.blocks.fixed import Fixed
from dllm.cache.dllm_cache import DLLMCache, unit
from dllm.cache.none import NoCache
from dllm.compose.fitted import Parts
from dllm.contract.canvas import Canvas
from dllm.contract.setting import Sampling
from dllm.eos.none import FullLength
from dllm.kernels.packed import pack_weights
from dllm.loop.denoise import denoise
from dllm.models.transformer import Layer, Transformer
from dllm.models.weights import load_model
from dllm.record.cost import CostModel
from dllm.samplers.confidence import Confidence
from dllm.samplers.static import Static

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
    far = (unit(a) - unit(b)).square().sum(-1)
    torch.testing.assert_close(far, 2 - 2 * torch.cosine_similarity(a, b, dim=-1))
    assert bool(unit(torch.zeros(1, 4)).eq(0).all())


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
        ({"prompt_interval": 0}, "prompt_interval=0 must be at least 1"), ({"share": 1.5}, r"share=1.5 .* \[0, 1\]"),
        ({"response_interval": 0}, "computes the answer in every forward"),
    ],
)  # fmt: skip
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        DLLMCache(**options)


@pytest.mark.parametrize(
    ("sampler", "name", "message"),
    [("freedave", "tiny-llada", "several candidates"), ("wino", "tiny-llada", "no room for the extra queries"),
     ("confidence", "tiny-wedlm", "full attention")],
)  # fmt: skip
def test_what_cannot_work_is_refused(sampler: str, name: str, message: str) -> None:
    with pytest.raises(UserError, match=f"cache=dllm_cache .*{message}"):
        list(turns(Combination(sampler, "fixed", "dllm_cache", model=name), requests()[:1]))
