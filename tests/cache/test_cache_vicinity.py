"""Options of the caches by blocks that make dInfer's vicinity refresh: a warm-up, a wider window, more refreshes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import forward_of, model, requests
from replay import MODELS, Record, decode, differences, model_of
from replay_parts import CaseParts
from test_caches import canvases

from dllm import UserError
from dllm.blocks.fixed import Fixed
from dllm.cache.dual import Dual
from dllm.cache.none import NoCache
from dllm.cache.prefix import Prefix
from dllm.compose.fitted import Parts
from dllm.contract.canvas import Canvas
from dllm.contract.setting import Sampling
from dllm.eos.fill_after_block import FillAfterBlock
from dllm.eos.none import FullLength
from dllm.loop.denoise import denoise
from dllm.samplers.confidence import Confidence
from dllm.samplers.static import Static

CASES = json.loads((Path(__file__).parents[1] / "data/goldens/vicinity.json").read_text())["cases"]
PLAIN = [at for at, case in enumerate(CASES)
         if case["untested_forwards"] == 0 and case["params"]["maximum_unroll"] == 1]  # fmt: skip


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
        ({"warmup": -1}, "cache.warmup=-1 must be at least 0"), ({"refresh_interval": 0}, "null is none"),
        ({"prefix_look": -1}, "prefix_look=-1"), ({"after_look": -2}, "after_look=-2 must be at least 0"),
    ],
)  # fmt: skip
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Dual(**options)
