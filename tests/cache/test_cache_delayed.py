"""delayed: what is kept when, against the published walk over blocks; and no cache where nothing is ever kept."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from harness import forward_of, model, requests
from test_caches import canvases

from dllm import UserError
from dllm.blocks.ahead import Ahead
from dllm.blocks.fixed import Fixed
from dllm.blocks.sliding import Sliding
from dllm.cache.delayed import Delayed
from dllm.cache.none import NoCache
from dllm.compose.fitted import Parts
from dllm.contract.canvas import Canvas
from dllm.contract.setting import Sampling, Setting
from dllm.eos.none import FullLength
from dllm.loop.denoise import denoise
from dllm.samplers.confidence import Confidence
from dllm.samplers.d3llm import D3LLM


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


def test_schedules_without_blocks_of_one_length_are_refused() -> None:
    config = model("tiny-llada").config
    for blocks in (Fixed(8), Ahead(8)):
        Delayed().check(Setting(config, blocks, 16), Confidence(), ())
    with pytest.raises(UserError, match="cache=delayed keeps blocks of one length, but blocks=sliding has none"):
        Delayed().check(Setting(config, Sliding(8), 16), Confidence(), ())
    with pytest.raises(UserError, match=r"cache\.wait='all'"):
        Delayed(wait="all")
