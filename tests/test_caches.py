"""Caches: refreshing everything is no cache at all, and what a forward computes is what it reports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from harness import Combination, decode, requests, turns
from torch import Tensor

from dllm import UserError
from dllm.cache.blockwise import Blockwise
from dllm.cache.dual import BlockOnly
from dllm.cache.prefix import FromBlockOn

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
        assert int(turn.queries) == (length if int(span.forwards) == 1 else reuse)


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
        (Combination("wino", "fixed", "prefix"), "cache=none"),
        (Combination("confidence", "fixed", "dual", "eotp"), "eos.scope=block"),
        (Combination("confidence", "fixed", "dual", model="sdar_b4"), "cache=none"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_with_the_way_out(combination: Combination, way_out: str) -> None:
    with pytest.raises(UserError, match=way_out):
        list(turns(combination, requests()[:1]))
