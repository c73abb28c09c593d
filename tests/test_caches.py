"""Caches: refreshing everything is no cache at all, and what a forward computes is what it reports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from harness import Combination, decode, forward_of, model, requests, turns
from torch import Tensor

from dllm import UserError
from dllm.blocks.fixed import Fixed
from dllm.cache.base import Cache
from dllm.cache.blockwise import Blockwise
from dllm.cache.dkv import DKV
from dllm.cache.dual import BlockOnly
from dllm.cache.none import NoCache
from dllm.cache.prefix import FromBlockOn
from dllm.canvas import Canvas
from dllm.denoise import denoise
from dllm.eos.base import Keep
from dllm.samplers.confidence import Confidence
from dllm.scores import Sampling

POLICIES = ["prefix", "dual"]


@pytest.fixture
def refreshing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every forward computes every column."""

    def everything(self: Blockwise, canvas, span, begin: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        return torch.ones_like(canvas.masked)

    for session in (FromBlockOn, BlockOnly):
        monkeypatch.setattr(session, "part", everything)
    yield


@pytest.mark.usefixtures("refreshing")
@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
@pytest.mark.parametrize("sampler", ["confidence", "static", "localleap", "freedave"])
@pytest.mark.parametrize("cache", POLICIES)
def test_refreshing_everything_is_no_cache(cache: str, sampler: str, name: str) -> None:
    cached = decode(Combination(sampler, "fixed", cache, model=name), requests())
    plain = decode(Combination(sampler, "fixed", model=name), requests())
    assert [one.canvases for one in cached] == [one.canvases for one in plain]


@pytest.mark.parametrize("cache", POLICIES)
def test_query_counts_are_the_policy_in_closed_form(cache: str) -> None:
    """A full forward when a block of 8 opens, then from the block on (prefix) or the block (dual)."""
    request = requests()[0]
    for turn in turns(Combination("static", "fixed", cache), [request]):
        span, length = turn.view.blocks, len(request.tokens)
        reuse = length - int(span.begin) if cache == "prefix" else int(span.end - span.begin)
        assert int(turn.work.queries) == (length if int(span.forwards) == 1 else reuse)


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
def test_dkv_that_refreshes_at_every_forward_is_no_cache(name: str) -> None:
    network, blocks = model(name), Fixed(8)

    def canvases(cache: Cache) -> list[list[int]]:
        forward = forward_of(network, (Confidence(), blocks, cache, Keep()), Sampling())
        canvas = Canvas.of(requests(), 61)
        with torch.inference_mode():
            return [turn.candidates.tokens.tolist() for turn in denoise(canvas, forward, Confidence(), blocks, Keep())]

    assert canvases(DKV(refresh_interval=1)) == canvases(NoCache())


def test_dkv_computes_what_was_masked_a_turn_ago() -> None:
    before = None
    for turn in turns(Combination("static", "whole", "dkv"), requests()[:1]):
        step = int(turn.view.blocks.forwards) - 1
        if before is not None and step >= 2 and step % 4:
            assert int(turn.work.queries) == before
        before = int(turn.canvas.masked.sum())


def test_prefix_and_dual_agree_with_none_on_the_forward_that_opens_a_block() -> None:
    for cache in POLICIES:
        first = next(iter(turns(Combination("confidence", "fixed", cache), requests())))
        plain = next(iter(turns(Combination("confidence", "fixed"), requests())))
        assert torch.equal(first.view.scores.token, plain.view.scores.token)
        assert torch.allclose(first.view.scores.confidence, plain.view.scores.confidence, atol=1e-12)


@pytest.mark.parametrize(
    ("combination", "way_out"),
    [
        (Combination("prophet", "fixed", "dual"), "cache=prefix"),
        (Combination("freedave", "fixed", "dkv"), "cache=dual"),
        (Combination("saber", "fixed", "dkv"), "cache=dual"),
        (Combination("confidence", "fixed", "dkv_pd"), "cache=dkv"),
        (Combination("wino", "fixed", "elastic"), "cache=dual"),
        (Combination("confidence", "fixed", "dkv_greedy"), "sampler=order"),
        (Combination("order", "fixed", "dkv_greedy", model="tiny-dream"), "cache=dual"),
        (Combination("freedave", "fixed", "finished", model="sdar_b4"), "cache=none"),
        (Combination("confidence", "fixed", "finished"), "cache=dual"),
        (Combination("confidence", "fixed", "dual", "eotp"), "eos.scope=block"),
        (Combination("confidence", "fixed", "dual", model="sdar_b4"), "cache=finished"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_with_the_way_out(combination: Combination, way_out: str) -> None:
    with pytest.raises(UserError, match=way_out):
        list(turns(combination, requests()[:1]))
