"""Caches: refreshing everything is no cache at all, what a forward computes is what it reports, candidates share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product, starmap
from typing import Any

import pytest
import torch
from harness import (
    Combination,
    Decoded,
    allowed,
    choices,
    decode,
    drawn,
    forward_of,
    full,
    model,
    parts_of,
    requests,
    turns,
)
from law import law
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dllm.parts import (
    DKV,
    Blocks,
    Blockwise,
    Cache,
    CacheView,
    Canvas,
    Confidence,
    ConstrainedBatch,
    DKVGreedy,
    Dual,
    Elastic,
    Fixed,
    ForwardPlan,
    FullLength,
    ModelConfig,
    NoCache,
    NoCacheSession,
    Order,
    Parts,
    Prefix,
    Recap,
    Request,
    Rows,
    Sampler,
    Sampling,
    Session,
    Shadow,
    Shapes,
    SideBySide,
    Whole,
    Window,
    denoise,
    neighbours,
)

POLICIES = ["prefix", "dual"]
BOTH = ["tiny-llada", "tiny-dream"]


def everything(self: Blockwise, view: CacheView, begin: Tensor) -> Tensor:
    return ~view.canvas.no_positions


@pytest.fixture
def refreshing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every forward computes every column."""

    for policy in (Prefix, Dual):
        monkeypatch.setattr(policy, "part", everything)
    yield


def canvases(name: str, sampler: Sampler, blocks: Blocks, cache: Cache, sampling: Sampling | None = None) -> list[Any]:
    """What every turn of a ragged batch leaves."""
    network = model(name)
    forward = forward_of(network, Parts(sampler, blocks, cache, FullLength()), sampling or Sampling())
    with torch.inference_mode():
        loop = denoise(Canvas.of(requests(), 61), forward, Parts(sampler, blocks, cache, FullLength()))
        return [turn.candidates.tokens.tolist() for turn in loop]


@pytest.mark.daily(4)
@pytest.mark.usefixtures("refreshing")
@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    "sampler",
    ["confidence", "freedave", "wino", *(["static", "localleap", "ete", "saber", "joint_threshold"] if full() else [])],
)
@pytest.mark.parametrize("cache", POLICIES)
def test_refreshing_everything_is_no_cache(cache: str, sampler: str, name: str) -> None:
    if not allowed(Combination(sampler, "fixed", model=name)):
        pytest.skip("refused by the sampler, whatever the cache")
    cached = decode(Combination(sampler, "fixed", cache, model=name), requests())
    plain = decode(Combination(sampler, "fixed", model=name), requests())
    assert [one.canvases for one in cached] == [one.canvases for one in plain]


class Windowed(NoCache):
    """No cache, but only the leftmost masks may be committed: the open set of Elastic-Cache."""

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> Session:
        session = super().start(canvas, config, shrinks)
        whole = session.plan

        def plan(*given: Any) -> ForwardPlan:
            canvas, blocks, *_ = given
            masks = canvas.undecided & blocks.in_open
            return replace(whole(*given), committable=masks & (masks.cumsum(1) <= 5))

        session.plan = plan  # type: ignore[method-assign]
        return session


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("block_caching", [True, False])
@pytest.mark.parametrize("trigger", ["same_step", "next_step"] if full() else ["next_step"])
def test_elastic_that_starts_at_layer_0_is_no_cache(trigger: str, block_caching: bool, name: str) -> None:
    forced = Elastic(5, gamma=7.0, first_layer=0, trigger=trigger, block_caching=block_caching)
    for blocks in (Whole(), Fixed(8)):
        expected = canvases(name, Confidence(), blocks, Windowed())
        assert canvases(name, Confidence(), blocks, forced) == expected


@pytest.mark.daily(4)
@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    "cache",
    [
        DKV(1),
        Recap(local_steps=0),
        Recap(start_fraction=1.0),
        Window(4, 9, 1, "masks", "all", "all"),
        Window(4, 9, 1, "range", "all", "all"),
    ],
    ids=["dkv", "recap", "recap-late", "window", "window-range"],
)
def test_a_refresh_at_every_forward_is_no_cache(cache: Cache, name: str) -> None:
    for blocks in (Whole(), Fixed(8)):
        assert canvases(name, Confidence(), blocks, cache) == canvases(name, Confidence(), blocks, NoCache())


def test_greedy_that_refreshes_at_every_forward_is_no_cache() -> None:
    for blocks in (Whole(), Fixed(8)):
        assert canvases("tiny-llada", Order(), blocks, DKVGreedy(1)) == canvases(
            "tiny-llada", Order(), blocks, NoCache()
        )


EXACT = [
    "sdar_b4",
    "llada2_moe",
    "tiny-wedlm",
    "tiny-nbdiff",
    "tiny-a2d-bd3lm",
    "tiny-diffcoder",
    "tiny-fastdllm-v2",
    "tiny-nemotron",
    "efficient_dlm",
    "sdar_moe",
]


def finished() -> Iterator[Combination]:
    names = drawn(choices("sampler"), choices("blocks"), ["finished"], ["none"], EXACT)
    return filter(allowed, starmap(Combination, names))


@law(finished, daily=5, least=80)
def test_finished_blocks_are_exact(combination: Combination) -> None:
    cached, plain = (decode(one, requests()) for one in (combination, replace(combination, cache="none")))
    assert [one.canvases for one in cached] == [one.canvases for one in plain]
    fixed = combination.blocks in ("fixed", "lengths")
    if combination.model != "llada2_moe" and fixed:  # whose attention blocks are as long as these canvases
        assert total_queries(cached) < total_queries(plain)


def total_queries(decoded: list[Decoded]) -> int:
    return sum(one.result.query_tokens for one in decoded if one.result is not None)


@pytest.mark.parametrize("cache", POLICIES)
def test_query_counts_are_the_policy_in_closed_form(cache: str) -> None:
    """A full forward when a block of 8 opens, then from the block on (prefix) or the block (dual)."""
    request = requests()[0]
    for turn in turns(Combination("static", "fixed", cache), [request]):
        span, length = turn.view.blocks, len(request.tokens)
        reuse = length - int(span.begin) if cache == "prefix" else int(span.end - span.begin)
        assert int(turn.cost.queries) == (length if int(span.forwards) == 1 else reuse)
        assert int(turn.cost.refreshed) == (length if int(span.forwards) == 1 else 0)


def test_dkv_computes_what_was_masked_a_turn_ago() -> None:
    before = None
    for turn in turns(Combination("static", "whole", "dkv"), requests()[:1]):
        step = int(turn.view.blocks.forwards) - 1
        if before is not None and step >= 2 and step % 4:
            assert int(turn.cost.queries) == before
        before = int(turn.canvas.masked.sum())


def test_greedy_computes_the_last_the_next_and_their_neighbours() -> None:
    """One token per step, a window of 4, refreshes every second forward: 1 + 1 + 4 rows in between, fewer at the end of
    a block's masks."""
    counts = [int(turn.cost.queries) for turn in turns(Combination("order", "whole", "dkv_greedy"), requests()[:1])]
    assert counts[::2] == [35] * 12
    assert counts[1:-4:2] == [6] * 10


def test_neighbours_alternate_left_and_right_and_skip_what_is_taken() -> None:
    masked = torch.tensor([False, True, True, True, True, True, True, True])
    next_positions = torch.tensor([0, 0, 0, 1, 0, 0, 2, 0])
    chosen = neighbours(next_positions, next_positions > 0, masked, 3)
    # Position 3 takes 2, 4 and 1; then 6 finds 5 and 7, and nothing else is left.
    assert chosen.nonzero()[:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert neighbours(next_positions, next_positions > 0, masked, 1).nonzero()[:, 0].tolist() == [2, 3, 5, 6]


def test_window_computes_its_active_masks_and_what_the_phase_committed() -> None:
    """W_in 4, W_ex 9, phases of 4, one token per step on 11 + 24 columns: the far field is never computed."""
    counts = [int(turn.cost.queries) for turn in turns(Combination("static", "whole", "window"), requests()[:1])]
    assert counts[:8] == [11 + 9, 5, 6, 7, 15 + 9, 5, 6, 7]


def test_prefix_and_dual_agree_with_none_on_the_forward_that_opens_a_block() -> None:
    for cache in POLICIES:
        first = next(iter(turns(Combination("confidence", "fixed", cache), requests())))
        plain = next(iter(turns(Combination("confidence", "fixed"), requests())))
        assert torch.equal(first.view.scores.token, plain.view.scores.token)
        assert torch.allclose(first.view.scores.confidence, plain.view.scores.confidence, atol=1e-12)


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("sampler", "cache", "name"),
    [("freedave", "prefix", "tiny-dream"), ("ete", "finished", "tiny-a2d-bd3lm"), ("lopa", "dual", "tiny-llada")],
)
def test_candidates_are_attended_to_in_parts(
    sampler: str, cache: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks of a few queries at a time, over the keys alone that these may see, give the same tokens."""
    combination = Combination(sampler, "fixed", cache, model=name)
    whole = decode(combination, requests())
    monkeypatch.setattr("dllm.models.network.attention.QUERIES_OF_A_MASK", 5)
    assert [one.canvases for one in decode(combination, requests())] == [one.canvases for one in whole]


def test_candidates_side_by_side_see_what_is_kept_and_themselves() -> None:
    """Written out query by query, and keys outside ``ranges`` are seen by none of their queries."""
    dice = torch.Generator().manual_seed(0)
    kept, real = (torch.rand(size, generator=dice) < 0.5 for size in ((2, 3, 6), (2, 12)))
    parts = SideBySide(kept, real)
    for row, query, key in product(range(2), range(12), range(18)):
        candidate, beside = query // 4, key - 6
        expected = kept[row, candidate, key] if beside < 0 else beside // 4 == candidate and real[row, beside]
        assert bool(parts.mask(query, query + 1)[row, 0, key]) == bool(expected)
    for first, last in combinations(range(13), 2):
        outside = torch.ones(18, dtype=torch.bool)
        for begin, end in parts.ranges(first, last):
            outside[begin:end] = False
        assert torch.equal(parts.mask(first, last), parts.mask(0, 12)[:, first:last])
        assert not bool(parts.mask(first, last)[..., outside].any())


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    "cache",
    [
        "prefix",
        "dkv",
        "elastic",
        "recap",
        "d2cache",
        *(["none", "dual", "window", "streaming", "dllm_cache", "entropy", "flash_dllm"] if full() else []),
    ],
)
def test_guidance_keeps_rows_of_its_own_under_every_policy(cache: str, name: str) -> None:
    """Alone and in a batch alike, and with everything refreshed as without a cache."""
    combination = Combination("confidence", "fixed", cache, model=name)
    guided = Sampling(guidance=0.7)
    together = decode(combination, requests(), guided)
    assert [one.canvases for one in together] == [decode(combination, [row], guided)[0].canvases for row in requests()]
    assert [one.canvases for one in together] != [one.canvases for one in decode(combination, requests())]


@pytest.mark.parametrize("sampler", ["confidence", "freedave"])
@pytest.mark.usefixtures("refreshing")
def test_guidance_with_everything_refreshed_is_guidance_without_a_cache(sampler: str) -> None:
    guided = Sampling(guidance=0.7)
    cached, plain = (decode(Combination(sampler, "fixed", cache), requests(), guided) for cache in ("dual", "none"))
    assert [one.canvases for one in cached] == [one.canvases for one in plain]


def test_shadow_rows_see_all_but_their_own_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a forward that opens a block, wino's shadows under a cache are wino's shadows without one."""
    scores = {
        cache: [turn.view.scores.of(Shadow()) for turn in turns(Combination("wino", "whole", cache), requests())]
        for cache in ("none", "dual")
    }
    assert len(scores["dual"]) > 1
    monkeypatch.setattr(Dual, "part", everything)
    again = [turn.view.scores.of(Shadow()) for turn in turns(Combination("wino", "whole", "dual"), requests())]
    for left, right in zip(scores["none"], again, strict=True):
        assert torch.allclose(left, right, atol=1e-12)


class LargestNew(TorchDispatchMode):
    """Elements of the largest tensor that an operator allocates while ``watching``."""

    watching, largest = False, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.watching:
            known = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
            for made in tree_leaves(out):
                fresh = isinstance(made, Tensor) and made.untyped_storage().data_ptr() not in known
                if fresh and made.is_floating_point():
                    self.largest = max(self.largest, made.numel())
        return out


@pytest.mark.daily(4)
@pytest.mark.parametrize("cache", ["prefix", "dual", "dkv", "recap", "elastic", "window", "freedave", "flash_dllm"])
def test_no_reuse_forward_copies_a_buffer(cache: str) -> None:
    """A long prompt, a short answer: whatever a reuse forward allocates is smaller than one layer's keys. Candidates
    need scratch slots, for which the buffer grows once: their first reuse forward is not looked at."""
    sampler, cache = ("freedave", "dual") if cache == "freedave" else ("confidence", cache)
    network, name = model("tiny-llada"), "whole" if cache in ("elastic", "flash_dllm", "window") else "fixed"
    parts = parts_of(Combination(sampler, name, cache))
    forward = forward_of(network, parts, Sampling())
    canvas = Canvas.of([Request.answer([3 + at % 30 for at in range(600)], 8, 60)], 61)
    buffer = network.config.kv_width * len(canvas.columns)
    reused, grows = 0, sampler == "freedave"
    with torch.inference_mode(), LargestNew() as watch:
        for turn in denoise(canvas, forward, parts):
            if watch.watching and not bool(turn.cost.refreshed.any()):
                assert grows or watch.largest < buffer
                reused, grows = reused + (not grows), False
            watch.watching, watch.largest = True, 0
    assert reused


def test_the_sessions_do_not_outlive_their_rows() -> None:
    """``select`` keeps exactly the rows named, in every tensor of a session."""
    for cache in ("dual", "dkv", "elastic", "window", "recap", "dllm_cache", "d2cache", "entropy", "flash_dllm"):
        combination = Combination("confidence", "fixed", cache)
        parts = parts_of(combination)
        forward = forward_of(model("tiny-llada"), parts, Sampling())
        with torch.inference_mode():
            canvas, session, carried = forward.start(Canvas.of(requests(), 61))
            free = ConstrainedBatch.none(len(canvas.row_id))
            rows = Rows.start(canvas, session, parts, Shapes(), free, carried)
            forward(rows)
            left = rows.select([0, 2])
        chosen = left.session
        assert not isinstance(chosen, NoCacheSession)
        stored = [tensor for tensor in left.cache_state.values() if tensor.dim() == 2]
        assert all(store is None or len(store[0]) == 2 for store in chosen.stores)  # type: ignore[attr-defined]
        assert stored and all(len(tensor) == 2 for tensor in stored)
