"""Static shapes: a turn asks the device for nothing. That it decides what the exact one decides is a law
(``tests/laws/test_law_runtimes.py``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from harness import BLOCKS, Combination, allowed, build, forward_of, late, model, parts_of, requests, results
from host_copies import Trap
from torch import Tensor

from dllm import Decoder, UserError, load, part
from dllm.common import debug
from dllm.parts import (
    DKV,
    Cache,
    Canvas,
    DKVPrefill,
    Elastic,
    FullLength,
    HostView,
    Parts,
    Runtime,
    Sampling,
    Static,
    Turn,
    Window,
    choices,
    denoise,
    say_once,
)

ASKING = ("dkv_greedy", "flash_verify", "linear_spec")  # the caches that eager alone runs
BOUNDED = [name for name in choices("cache") if build("cache", name).traits.bounded_shapes]
CACHES = ("none", "prefix", "dual", "window")
READS = ("read", "select")  # a report that has arrived; which candidates leave
ONCE = {"elastic": {"answer"}}  # by cache: what asks once in a forward, after all layers


def turns(combination: Combination, lag: int | None, dtype: torch.dtype = torch.float64) -> Iterator[Turn]:
    network, parts = model(combination.model, dtype), parts_of(combination)
    forward = forward_of(network, parts, Sampling(tempered=parts.sampler.traits.tempered))
    canvas = Canvas.of(requests(), network.config.pad_id or 0)
    with torch.inference_mode():
        yield from denoise(canvas, forward, parts, lag)


def combinations() -> list[Combination]:
    return [
        case
        for cache in BOUNDED
        for name in ("tiny-llada", "tiny-dream")
        for sampler, eos in (("confidence", "fill_after_block"), ("credit", "none"))
        if allowed(case := Combination(sampler, BLOCKS.get(cache, "fixed"), cache, eos, name))
    ] + [Combination("dream", "fixed", "none", "none", "tiny-dream")]


@pytest.mark.daily(8)
@pytest.mark.parametrize("combination", combinations(), ids=str)
def test_no_copy_to_the_host_inside_a_turn(combination: Combination, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debug, "ON", False)  # its assertions ask
    trap, seen = Trap(), 0

    def listed(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            trap.note()
            return original(*args, **kwargs)

        return call

    for name in ("tolist", "cpu", "numpy"):
        monkeypatch.setattr(Tensor, name, listed(getattr(Tensor, name)))
    running = turns(combination, late(combination.cache))
    next(running)
    trap.asked.clear()
    with trap:
        for turn in running:
            once = ONCE.get(combination.cache, set())
            assert set(trap.asked) <= {*READS, *once} and all(trap.asked.count(one) <= 1 for one in ("read", *once))
            if not turn.finished and seen:
                assert set(trap.asked) <= {"read", *once}
            trap.asked.clear()
            seen += 1
    assert seen > 4


ALL_AT_ONCE: dict[str, Any] = {"refresh_scope": "all", "refresh_candidates": "all", "recent_includes_refresh": False}
COUNTING = [
    DKV(3),
    DKV(3, "un"),
    Window(4, 14, 5, **ALL_AT_ONCE),
    Window(4, 12, 6),
    Elastic(4, 0.96, 2),
    Elastic(4, 0.96, block_caching=False),
]


@pytest.mark.daily(3)
@pytest.mark.parametrize("lag", [1, 2])
@pytest.mark.parametrize("cache", COUNTING, ids=lambda cache: str(vars(cache)))
@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
def test_old_counts_bound_what_is_computed(name: str, cache: Cache, lag: int) -> None:
    """Rules that commit one position or many; rows wait where a block opens. ``packed`` asserts the bounds."""
    network, sampling = model(name), Sampling()
    for rule, blocks in ((part("sampler", "confidence", threshold=0.5), "fixed"), (Static(), "whole")):
        parts = Parts(rule, part("blocks", blocks), cache, FullLength(), sampling)
        exact, late = (results(network, parts, requests(), sampling, lag=one) for one in (None, lag))
        assert [(one.tokens, one.turns) for one in late] == [(one.tokens, one.turns) for one in exact]


def test_bounds_are_no_wider_than_the_counts_say() -> None:
    """A wider bound computes the same tokens at a higher price, which no decode shows."""
    pairs = DKVPrefill(decode=True, refresh_interval=4), DKVPrefill(refresh_interval=4)
    rows = [HostView(forwards=turn - 1, staleness=1, counts=(3, turn - 1, 9)) for turn in range(6)]
    late, whole = (cache.max_queries(rows, 20, 8, model("tiny-llada").config) for cache in pairs)
    assert (late, whole) == ((20, 3, 3, 3, 9, 3), (20, 9, 9, 9, 9, 9))


def test_the_trap_sees_what_the_exact_turn_asks() -> None:
    running, trap = turns(Combination("confidence", "fixed", "dual"), None), Trap()
    next(running)
    with trap:
        next(running)
    assert {"all", "any", "last_column"} <= set(trap.asked)


def test_every_runtime_gives_the_same_answer() -> None:
    network = load("mini-llada")
    prompts: list[Any] = ['Sort the list:\n["Kai", "Emma", "Hugo"]', 'Copy the list:\n["Ann"]']
    expected = [result.tokens for result in Decoder(network, gen_length=32, batch_size=2)(prompts)]
    static = Decoder(network, gen_length=32, batch_size=2, cache="none", runtime=Runtime("static", 1))
    assert [result.tokens for result in static(prompts)] == expected


@pytest.mark.parametrize("name", ["mini-llada", "mini-dream"])
def test_a_window_computes_all_it_needs_however_much_a_turn_commits(name: str) -> None:
    """Eight active tokens commit up to eight a turn: with a bound for one a turn, rows were dropped, and 16 forwards
    became 66 (mini-llada)."""
    prompt, network = 'Sort the list:\n["Kai", "Emma", "Hugo"]', load(name)
    window = part("cache", "window", active_tokens=8, window_tokens=40)
    eager, static = (
        Decoder(network, "confidence", "whole", window, gen_length=128, runtime=runtime)(prompt)[0]
        for runtime in (Runtime(), Runtime("static"))
    )
    assert (static.tokens, static.nfe, static.turns) == (eager.tokens, eager.nfe, eager.turns)


def test_columns_beside_a_block_are_within_the_bound() -> None:
    """With a bound for the block alone, the columns after it were dropped."""
    prompt, network = 'Sort the list:\n["Kai", "Emma", "Hugo"]', load("mini-llada")
    beside = part("cache", "dual", prefix_look=4, after_look=4, warmup=0)
    eager, static = (
        Decoder(network, "static", part("blocks", "fixed", block_length=8), beside, gen_length=32, runtime=runtime)(
            prompt
        )[0]
        for runtime in (Runtime(), Runtime("static", 1))
    )
    assert (static.tokens, static.turns, static.query_tokens) == (eager.tokens, eager.turns, eager.query_tokens)


@pytest.mark.parametrize("name", ["static", "compile", "cudagraph"])
@pytest.mark.parametrize("cache", ASKING)
def test_a_cache_that_asks_is_refused(cache: str, name: str) -> None:
    parts = Parts(part("sampler", "confidence"), part("blocks", "fixed"), part("cache", cache), part("eos", "none"))
    where = model("tiny-llada").config, torch.device("cuda")
    reason = rf"^runtime={name} asks the device for nothing within a turn, and cache={cache} .*Use runtime=eager\.$"
    with pytest.raises(UserError, match=reason):
        Runtime(name, 2).check(parts, *where)
    Runtime("eager").check(parts, *where)


def test_what_runs_under_static_shapes() -> None:
    """All caches but these, whose rules are loops of the host."""
    assert {*choices("cache")} - {*BOUNDED} == {*ASKING}
    parts = Parts(part("sampler", "confidence"), part("blocks", "fixed"), part("cache", "recap"), part("eos", "none"))
    where = model("tiny-llada").config, torch.device("cuda")
    with pytest.raises(UserError, match=r"^lag=1 reads late .* cache=recap computes .*Use lag=0\.$"):
        Runtime("static", 1).check(parts, *where)
    assert Runtime("static").resolved(parts, *where).lag == 0
    assert Runtime("static").resolved(replace(parts, cache=part("cache", "dual")), *where).lag == 1
    counting = replace(parts, cache=part("cache", "dkv"))
    assert Runtime("static").resolved(counting, *where).lag == 1
    for group, name in (("sampler", "wino"), ("blocks", "tccf"), ("eos", "fill_at_once")):  # masks come back, or go
        assert Runtime("static").resolved(replace(counting, **{group: part(group, name)}), *where).lag == 0
    watching = replace(parts, cache=part("cache", "flash_dllm"))
    for name, runs in (("compile", "compiled layers"), ("compile_cudagraph", "compiled layers")):
        with pytest.raises(UserError, match=f"^runtime={name} runs {runs} and cache=flash_dllm acts between layers"):
            Runtime(name).check(watching, *where)
    Runtime("cudagraph").check(watching, *where)
    watching.eos.traits = watching.eos.traits.but(syncs=True)
    with pytest.raises(UserError, match=r"^runtime=cudagraph .* a part asks .* cache=flash_dllm acts .*=static\.$"):
        Runtime("cudagraph").check(watching, *where)


def test_auto_says_once_why_it_is_eager(capsys: pytest.CaptureFixture[str]) -> None:
    parts = Parts(
        part("sampler", "confidence"), part("blocks", "fixed"), part("cache", "dkv_greedy"), part("eos", "none")
    )
    say_once.cache_clear()
    for _ in range(2):
        assert Runtime().resolved(parts, model("tiny-llada").config, torch.device("cuda")) == Runtime("eager")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "runtime=auto decodes under eager: runtime=static asks the device for nothing within a turn, "
    )
    assert line.endswith("cache=dkv_greedy asks it there what to compute.")
    for name in ("eager", "static"):
        decoder = Decoder(load("mini-llada"), cache="dkv", gen_length=8, runtime=name)
        result = decoder("Copy: a", trace=True)[0]
        assert result.runtime == name and result.trace is not None
        assert result.trace.origin["config"]["runtime"] == name


def test_runtimes_that_cannot_be() -> None:
    with pytest.raises(UserError, match="runtime='statik' must be one of auto, eager, static, .*Did you mean 'static'"):
        Runtime("statik")
    with pytest.raises(UserError, match=r"lag=-1 must lie in \[0, 8\]"):
        Runtime("static", -1)
    with pytest.raises(UserError, match="lag=2 needs turns that wait for nothing"):
        Runtime("eager", 2)


@pytest.mark.parametrize("cache", CACHES)
def test_shapes_repeat_between_openings(cache: str) -> None:
    """The network sees the whole canvas, or one other number of rows that does not change while no block opens."""
    combination, seen = Combination("static", "whole" if cache == "window" else "fixed", cache), []
    network = model(combination.model)
    handle = network.layers[0].register_forward_pre_hook(lambda layer, args: seen.append(args[0].shape[1]))
    try:
        for _ in turns(combination, late(cache)):
            pass
    finally:
        handle.remove()
    assert len(set(seen)) <= {"prefix": 4, "window": 3}.get(cache, 2)
