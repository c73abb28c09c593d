"""Blocks in a pipeline in the server (D2F): mixed requests get the same replies alone and under load."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from dllm import load
from tests.serve.bodies import chat, mini_defaults, refusal
from tests.serve.live import Live, alone_and_under_load, live
from tests.serve.test_serving_lengths import drawn, reply_of

PIPELINE = (
    "sampler=d2f",
    "sampler.threshold=0.8",
    "blocks=pipelined",
    "blocks.block_length=8",
    "blocks.opening_share=0.3",
    "cache=finished",
    "eos=stop_opening",
)


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    model = load("mini-llada", attention_block=8)
    with live(model, defaults=mini_defaults(model, *PIPELINE), timeout=600.0) as started:
        yield started


@pytest.mark.program
@pytest.mark.parametrize("count", [100])
def test_mixed_requests_are_alike_alone_and_under_load(server: Live, count: int) -> None:
    dice = random.Random(7)
    alone = alone_and_under_load(server, [drawn(dice) for _ in range(count)], reply_of)
    assert len({text for reply in alone for text, *_ in reply}) >= count // 4


def test_a_request_names_what_the_model_attends_by() -> None:
    model = load("mini-llada", attention_block=8)
    defaults = mini_defaults(model, *PIPELINE)
    same, other = chat(defaults).jobs[0].setting, chat(defaults, diffusion={"threshold": 0.5}).jobs[0].setting
    assert same.key == other.key  # rows of both share a batch
    words = refusal(defaults, diffusion={"block_length": 4}).message
    assert "block_length=4" in words and "model.attention_block=8" in words
