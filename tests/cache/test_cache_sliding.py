"""DSB's cache: what it computes while its window slides, and when it computes everything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from harness import Combination, forward_of, model, requests, turns
from test_caches import canvases

from dllm import UserError
from dllm.parts import Canvas, Confidence, FullLength, NoCache, Parts, Sampling, Sliding, SlidingCache, Static, denoise

BOTH = ["tiny-llada", "tiny-dream"]


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("policy", [SlidingCache(refresh_interval=1), SlidingCache(99, 99)], ids=["always", "wide"])
def test_everything_in_every_forward_is_no_cache(policy: SlidingCache, name: str) -> None:
    for blocks in (Sliding(8), Sliding(6, 9)):
        expected = canvases(name, Confidence(), blocks, NoCache())
        assert canvases(name, Confidence(), blocks, policy) == expected
        assert canvases(name, Confidence(), blocks, SlidingCache(0, refresh_interval=99)) != expected


@pytest.mark.parametrize(("name", "shift"), [("tiny-llada", 0), ("tiny-dream", 1)])
@pytest.mark.parametrize(("before", "behind", "interval"), [(0, 0, None), (3, 2, 4), (1, 0, 7)])
def test_the_window_and_what_it_passed_are_computed(
    before: int, behind: int, interval: int | None, name: str, shift: int
) -> None:
    """11 + 24 columns, two tokens a forward, 6 masks open."""
    parts = Parts(Static(per_step=2), Sliding(6), SlidingCache(before, behind, interval), FullLength())
    forward, commits, last, passed = forward_of(model(name), parts, Sampling()), 0, 11, 0
    for turn, one in enumerate(denoise(Canvas.of(requests()[:1], 61), forward, replace(parts, eos=FullLength()))):
        begin, end = int(one.view.blocks.begin), int(one.view.blocks.end)
        left, passed = max(begin - last, before, shift), passed + begin - last
        full = turn == 0 or commits >= (interval or 6)
        assert int(one.cost.queries) == (35 if full else min(end + behind, 35) - begin + left)
        commits, last = (0 if full else commits) + int(one.step.commit.sum()), begin
    assert passed > 0


def test_dreams_published_full_forward_commits_the_leftmost_mask() -> None:
    parts = Parts(Confidence(0.1), Sliding(6), SlidingCache(0, as_published=True), FullLength())
    forward = forward_of(model("tiny-dream"), parts, Sampling())
    found = list(denoise(Canvas.of(requests()[:1], 61), forward, replace(parts, eos=FullLength())))
    full = [one for one in found if int(one.cost.refreshed)]
    assert len(full) > 1 and len(full) < len(found)
    for one in full:
        assert one.step.commit[0].nonzero()[:, 0].tolist() == one.view.blocks.begin.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefix_window": -1}, "prefix_window=-1"),
        ({"suffix_window": -1}, "suffix_window=-1"),
        ({"refresh_interval": 0}, "1 is cache=none"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SlidingCache(**options)


def test_blocks_that_do_not_slide_are_refused() -> None:
    with pytest.raises(UserError, match="cache=sliding follows a window, but blocks=fixed opens .* Use blocks=sliding"):
        list(turns(Combination("confidence", "fixed", "sliding"), requests()[:1]))
