"""d2Cache and EntropyCache: they compute what their rules choose, which is counted here once more in plain loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from harness import forward_of, model, requests
from replay import watched
from test_caches import canvases

from dllm import UserError
from dllm.parts import (
    Cache,
    Canvas,
    Confidence,
    D2Cache,
    Entropy,
    Fixed,
    ForwardPass,
    FullLength,
    NoCache,
    Parts,
    Request,
    Sampling,
    Static,
    Turn,
    attention_rollout,
    denoise,
    with_gaps,
)

BOTH = ["tiny-llada", "tiny-dream"]


def run(name: str, policy: Cache, request: Request) -> list[tuple[Turn, list[int]]]:
    """Turns of two tokens each, and the columns that their forwards computed."""
    passes: list[ForwardPass] = []
    parts = Parts(Static(per_step=2), Fixed(8), watched(policy, passes), FullLength())
    forward = forward_of(model(name), parts, Sampling())
    with torch.inference_mode():
        found = list(denoise(Canvas.of([request], 61), forward, replace(parts, eos=FullLength())))
    return [(turn, one.queries[0].nonzero()[:, 0].tolist()) for turn, one in zip(found, passes, strict=True)]


@pytest.mark.parametrize("name", BOTH)
def test_a_threshold_below_every_entropy_is_no_cache(name: str) -> None:
    expected = canvases(name, Confidence(), Fixed(8), NoCache())
    assert canvases(name, Confidence(), Fixed(8), Entropy(-1.0)) == expected
    assert canvases(name, Confidence(), Fixed(8), Entropy(20.0, 0)) != expected


@pytest.mark.parametrize(("name", "shift"), [("tiny-llada", 0), ("tiny-dream", 1)])
@pytest.mark.parametrize(("threshold", "recent"), [(20.0, 0), (1.6, 5)])
def test_entropy_computes_masks_and_the_last_commits_or_everything(
    threshold: float, recent: int, name: str, shift: int
) -> None:
    request, full, history, highest = requests()[0], list[bool](), list[list[int]](), 0.0
    everything = list(range(len(request.tokens)))
    for turn, columns in run(name, Entropy(threshold, recent), request):
        blocks, masked = turn.view.blocks, turn.canvas.masked[0].nonzero()[:, 0].tolist()
        inside = [at for at in masked if int(blocks.begin) <= at < int(blocks.end)]
        late = [at for step in history for at in step][::-1][:recent]
        partial = {*inside, *(at - shift for at in inside), *(history[-1] if history else ()), *late}
        full.append(not history or highest > threshold)
        assert columns == (everything if full[-1] else sorted(partial))
        history.append(turn.step.commit[0].nonzero()[:, 0].tolist())
        highest = max(float(turn.view.scores.statistic("entropy")[0, at]) for at in history[-1])
    assert full.count(True) == 1 if threshold == 20.0 else 1 < full.count(True) < len(full)


def test_d2cache_that_draws_everything_is_no_cache() -> None:
    for blocks in (Fixed(8), Fixed(24)):
        expected = canvases("tiny-llada", Confidence(), blocks, NoCache())
        assert canvases("tiny-llada", Confidence(), blocks, D2Cache(99, 1.0)) == expected
    assert canvases("tiny-llada", Confidence(), Fixed(8), D2Cache(4, 0.0)) != expected


@pytest.mark.parametrize("name", BOTH)
def test_d2cache_computes_as_many_columns_as_its_options_say(name: str) -> None:
    """So many masks, what was committed, and the one column that attention draws most from. For Dream some of these are
    the same, and the row that predicts the answer's first position may join."""
    found = run(name, D2Cache(masks=4, rollout=0.0), requests()[0])
    assert len(found[0][1]) == 35
    for turn, columns in found[1:]:
        masks, extra = min(4, int(turn.canvas.masked.sum())), int(name == "tiny-dream")
        assert masks + 3 * (1 - extra) <= len(columns) <= masks + 3 + extra


def dense(weights: list[torch.Tensor], columns: list[int], length: int) -> torch.Tensor:
    """Attention rollout, as the product of whole matrices."""
    product = torch.eye(length, dtype=torch.float64)
    for layer in weights:
        step = torch.eye(length, dtype=torch.float64)
        step[columns] = layer
        step = step + torch.eye(length, dtype=torch.float64)
        product = (step / step.sum(1, keepdim=True)) @ product
    return product.sum(0)


def test_rollout_is_the_product_of_the_layers_attention() -> None:
    noise = torch.Generator().manual_seed(0)
    weights = [torch.rand(2, 4, 9, generator=noise, dtype=torch.float64).softmax(-1) for _ in range(3)]
    columns = torch.tensor([[0, 3, 5, 8], [1, 2, 7, 9]])  # of the second row the last one is padding
    found = attention_rollout(weights, columns, torch.ones(2, 9, dtype=torch.bool))
    torch.testing.assert_close(found[0], dense([one[0] for one in weights], [0, 3, 5, 8], 9))
    torch.testing.assert_close(found[1], dense([one[1, :3] for one in weights], [1, 2, 7], 9))
    whole = [torch.rand(1, 9, 9, generator=noise, dtype=torch.float64).softmax(-1) for _ in range(3)]
    expected = dense([one[0] for one in whole], list(range(9)), 9)
    torch.testing.assert_close(attention_rollout(whole, None, torch.ones(1, 9, dtype=torch.bool))[0], expected)


def test_the_share_that_is_drawn_stays_below_the_option() -> None:
    importance = torch.tensor([[4.0, 1.0, 2.0, 9.0, 2.0, 1.0]], dtype=torch.float64)
    among = torch.tensor([[True, True, True, False, True, True]])
    for rollout, expected in ((0.0, [0]), (0.39, [0]), (0.59, [0]), (0.61, [0, 2]), (0.81, [0, 2, 4])):
        found = D2Cache(rollout=rollout).important(importance, among)
        assert found[0].nonzero()[:, 0].tolist() == expected, rollout
    assert bool(D2Cache(rollout=1.0).important(importance, among).equal(among))
    assert not D2Cache().important(importance, among & False).any()


@pytest.mark.parametrize("most", [0, 1, 2, 4, 30])
def test_gaps_up_to_the_width_are_filled(most: int) -> None:
    columns, chosen = torch.arange(20), torch.rand(30, 20, generator=torch.Generator().manual_seed(1)) < 0.2
    for row, found in zip(chosen, with_gaps(chosen, columns, most), strict=True):
        expected, places = set(row.nonzero()[:, 0].tolist()), row.nonzero()[:, 0].tolist()
        for a, b in zip(places, places[1:], strict=False):
            expected |= set(range(a, b)) if b - a <= most else set()
        assert set(found.nonzero()[:, 0].tolist()) == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: D2Cache(masks=0), "masks=0 must be at least 1"),
        (lambda: D2Cache(rollout=1.1), "rollout=1.1"),
        (lambda: D2Cache(sigma=0.0), "sigma=0.0"),
        (lambda: D2Cache(inflate=-1), "inflate=-1.*0 is off"),
        (lambda: Entropy(threshold=-2.0), "below 0 every forward is full"),
        (lambda: Entropy(recent=-1), "recent=-1"),
    ],
)
def test_options_that_cannot_work_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()
