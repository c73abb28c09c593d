"""How many operations a turn takes outside the network: static shapes close blocks and end texts in every turn, which
exact ones do in few, so they may take a few more and no more than that."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from harness import Combination, forward_of, late, model, parts_of, requests
from torch.utils._python_dispatch import TorchDispatchMode

from dllm.parts import (
    Canvas,
    Confidence,
    Fixed,
    FullLength,
    NoCache,
    Parts,
    ReMix,
    Sampling,
    Setting,
    denoise,
    start_rows,
)
from dllm.parts import turns as running

VIEWS = {"view", "expand", "slice", "select", "unsqueeze", "squeeze", "transpose", "permute", "t", "unbind", "split",
         "alias", "detach", "as_strided", "_unsafe_view", "split_with_sizes", "unflatten", "_reshape_alias",
         "lift_fresh", "empty", "empty_strided", "empty_like", "_local_scalar_dense"}  # fmt: skip
# Operations of a static turn beyond those of an exact one: 29 for dual and prefix, whose exact turns need no mask; 85
# before the turn was made lean.
MORE = 30


class Count(TorchDispatchMode):
    """Operations by the function of ours that takes them: all but views, and those of the network."""

    def __init__(self) -> None:
        super().__init__()
        self.found, self.inside = Counter[str](), 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if not self.inside and function.overloadpacket.__name__ not in VIEWS:
            frame: Any = sys._getframe(1)
            while "/dllm/" not in frame.f_code.co_filename:
                frame = frame.f_back
            self.found[frame.f_code.co_name] += 1
        return function(*args, **(kwargs or {}))


def turns(cache: str, lag: int | None) -> Iterator[Counter[str]]:
    """What each turn takes."""
    parts = parts_of(Combination("confidence", "whole" if cache == "window" else "fixed", cache, "fill_after_block"))
    network, count = model("tiny-llada"), Count()

    def counted(*given: Any) -> Any:
        count.inside += 1
        try:
            return network(*given)
        finally:
            count.inside -= 1

    forward = replace(forward_of(network, parts, Sampling()), network=counted)
    with torch.inference_mode(), count:
        for _ in denoise(Canvas.of(requests(), 61), forward, parts, lag):
            yield count.found
            count.found = Counter()


def least(cache: str, lag: int | None) -> Counter[str]:
    """Of the turns in which no block opens and no row ends, which are most."""
    return min(list(turns(cache, lag))[3:9], key=Counter.total)


# What a rule of mixtures adds to a turn, by file and function.
OF_MIXTURES = {
    ("mixed_inputs.py", ""),
    ("conditioning.py", ""),
    ("self_conditioning.py", "at_queries"),
    ("rows.py", "handed_on"),
    ("step.py", "stands"),
    ("turns.py", "mixtures_of"),
}


def calls_of_mixtures(sampler: Any) -> int:
    """Calls into ``OF_MIXTURES`` while the turns of a decode run."""
    network, blocks, found = model("tiny-llada"), Fixed(8), 0
    rule = sampler.resolved(Setting(network.config, blocks, None))
    parts = Parts(rule, blocks, NoCache(), FullLength(), Sampling())
    rows = start_rows(Canvas.of(requests(), 61), forward := forward_of(network, parts, Sampling()), parts, None)

    def note(frame: Any, event: str, _: Any) -> None:
        nonlocal found
        name = frame.f_code.co_filename.rpartition("/")[2]
        found += event == "call" and bool({(name, ""), (name, frame.f_code.co_name)} & OF_MIXTURES)

    sys.setprofile(note)
    try:
        with torch.inference_mode():
            for _ in islice(running(rows, forward, parts), 4):
                pass
    finally:
        sys.setprofile(None)
    return found


def test_a_turn_of_masks_and_tokens_runs_no_code_of_mixtures() -> None:
    assert calls_of_mixtures(Confidence(0.9)) == 0
    assert calls_of_mixtures(ReMix()) > 4 * len(OF_MIXTURES - {("turns.py", "mixtures_of")})  # each in every turn


@pytest.mark.daily(4)
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("cache", ["none", "prefix", "dual", "window"])
def test_a_static_turn_takes_few_operations_more_than_an_exact_one(cache: str, lag: int) -> None:
    exact, static = least(cache, None), least(cache, late(cache, lag))
    assert static.total() - exact.total() <= MORE, static - exact
