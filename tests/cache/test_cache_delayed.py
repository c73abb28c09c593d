"""delayed: what is kept when, against the published walk over blocks; and no cache where nothing is ever kept."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from harness import forward_of, model, requests
from replay import MODELS, Record, decode, differences, model_of
from replay_parts import CaseParts
from test_caches import canvases

from dllm import UserError
from dllm.parts import (
    D3LLM,
    Ahead,
    Canvas,
    Confidence,
    Delayed,
    Dual,
    FillAfterBlock,
    Fixed,
    FullLength,
    NoCache,
    Parts,
    Prefix,
    Sampling,
    Static,
    denoise,
)


@dataclass
class Walk:
    """The published bookkeeping of one row, block by block: d3llm_llada_generate_util.py and its Dream twin, by the
    words of their comments."""

    prompt: int
    length: int
    block: int
    delay: int
    refresh: int
    each: bool
    kept: int = 0
    found: dict[int, int] = field(default_factory=dict)

    def columns(self, number: int, masked: list[bool]) -> list[int]:
        """The columns of forward ``number``, from 1."""
        ends = [self.prompt, *range(self.prompt + self.block, self.prompt + self.length, self.block)]
        ends.append(self.prompt + self.length)
        begins, before = [0, *ends[:-1]], self.kept
        for begin, end in zip(begins, ends, strict=True):
            if end <= self.kept:
                continue
            if any(masked[begin:end]):
                break
            self.found.setdefault(begin, number if begin else 0)
            if number - self.found[begin] >= self.delay:
                self.kept = end
            elif not self.each:
                break
        waits = any(begin >= self.kept and begin in self.found for begin in begins)
        grows = self.kept > before
        everything = before == 0 or (not grows and (waits or number % self.refresh == 0))
        return list(range(0 if everything else before, self.prompt + self.length))


@pytest.mark.parametrize("wait", ["in_turn", "each"])
@pytest.mark.parametrize(("delay", "refresh"), [(0, 1000), (1, 3), (2, 4), (3, 1000)])
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_each_forward_computes_what_the_published_walk_says(wait: str, delay: int, refresh: int, share: float) -> None:
    network, (request, *_) = model("tiny-llada"), requests()
    parts = Parts(D3LLM(0.4), Ahead(4, share), Delayed(delay, refresh, wait), FullLength())
    canvas = Canvas.of([request], 61)
    start = request.answer_start
    walk = Walk(start, len(request.tokens) - start, 4, delay, refresh, wait == "each")
    forward = forward_of(network, parts, Sampling())
    for number, turn in enumerate(denoise(canvas, forward, replace(parts, eos=FullLength()))):
        expected = walk.columns(number + 1, turn.canvas.masked[0].tolist())
        assert int(turn.cost.queries[0, 0]) == len(expected)
    assert walk.kept > 0


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
def test_with_a_delay_that_never_ends_it_is_no_cache(name: str) -> None:
    expected = canvases(name, D3LLM(), Ahead(5, 0.4), NoCache())
    assert canvases(name, D3LLM(), Ahead(5, 0.4), Delayed(10_000)) == expected


CASES = json.loads((Path(__file__).parents[1] / "data/goldens/vicinity.json").read_text())["cases"]
PLAIN = [
    at for at, case in enumerate(CASES) if case["untested_forwards"] == 0 and case["params"]["maximum_unroll"] == 1
]


@pytest.mark.parametrize("number", PLAIN[::3])
def test_the_plain_rule_is_the_published_one_where_no_test_comes_late(number: int) -> None:
    """Seven of the twelve recorded cases; ``replay_parts`` replays all of them, with the loop's late tests."""
    case = CASES[number]
    params, record = case["params"], Record(case["params"]["gen_length"], fills=False)
    policy = Dual(prefix_look=params["prefix_look"], after_look=params["after_look"], warmup=params["warmup_steps"])
    parts = CaseParts(Confidence(params["threshold"]), Fixed(params["block_length"]), policy, FillAfterBlock("any"))
    assert not differences(case, decode(model_of(MODELS / case["model"]), case["prompt"], parts, record))


@pytest.mark.parametrize(
    ("name", "policy", "window"),
    [
        ("tiny-llada", Dual(prefix_look=3, after_look=2, warmup=2, refresh_interval=5), (3, 2)),
        ("tiny-dream", Dual(after_look=2, warmup=2, refresh_interval=5), (1, 2)),
        ("tiny-dream", Dual(query_left=False, prefix_look=3, after_look=2, warmup=2, refresh_interval=5), (3, 2)),
        ("tiny-llada", Prefix(warmup=2, refresh_interval=5), (0, 99)),
    ],
    ids=["dual", "query-left", "look-left", "prefix"],
)
def test_forwards_are_full_when_the_options_say_so(name: str, policy: Dual | Prefix, window: tuple[int, int]) -> None:
    """11 + 24 columns, blocks of 8, one token a forward: 0 and 1 keep nothing, so 2 is full, too; 8 and 16 open a
    block; 10, 15 and 20 are multiples of 5 behind the first block."""
    parts, (request, *_) = Parts(Static(), Fixed(8), policy, FullLength()), requests()
    forward, full = forward_of(model(name), parts, Sampling()), {0, 1, 2, 8, 10, 15, 16, 20}
    for turn, one in enumerate(denoise(Canvas.of([request], 61), forward, replace(parts, eos=FullLength()))):
        begin = 11 + turn // 8 * 8
        width = min(35, begin + 8 + window[1]) - (begin - window[0])
        assert int(one.cost.queries) == (35 if turn in full else width)
        assert int(one.cost.refreshed) == (35 if turn in full else 0)


def test_two_full_forwards_never_follow_upon_each_other_by_the_interval() -> None:
    """An interval of 1: every other forward, behind the first block."""
    parts = Parts(Static(), Fixed(8), Dual(refresh_interval=1), FullLength())
    forward = forward_of(model("tiny-llada"), parts, Sampling())
    loop = denoise(Canvas.of(requests()[:1], 61), forward, replace(parts, eos=FullLength()))
    assert [turn for turn, one in enumerate(loop) if int(one.cost.queries) == 35] == [0, *range(8, 24, 2)]


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
@pytest.mark.parametrize("policy", [Dual(warmup=99), Dual(prefix_look=99, after_look=99)], ids=["warm", "wide"])
def test_a_warm_up_or_a_window_as_long_as_the_row_is_no_cache(policy: Dual, name: str) -> None:
    expected = canvases(name, Confidence(), Fixed(8), NoCache())
    assert canvases(name, Confidence(), Fixed(8), policy) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warmup": -1}, "cache.warmup=-1 must be at least 0"),
        ({"refresh_interval": 0}, "None is none"),
        ({"prefix_look": -1}, "prefix_look=-1"),
        ({"after_look": -2}, "after_look=-2 must be at least 0"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Dual(**options)
