"""Prompts in chunks: the keys and values of a whole forward, and no tensor that grows with the prompt's square."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from harness import Combination, model, parts_of

from dllm.parts import Collector, CostModel, Ids, KnownPrefix, Model, Prefill, Request, Result, Runner, Runtime
from experiments.support.tensor_sizes import TensorSizes

NAMES = ["sdar_b4", "tiny-wedlm", "tiny-nbdiff", "tiny-nemotron", "tiny-a2d-bd3lm", "tiny-fastdllm-v2", "dg_dev"]


def prompt_of(name: str, length: int) -> Request:
    config = model(name).config
    tokens = torch.randint(1, 50, (length,), generator=torch.Generator().manual_seed(length)).tolist()
    return Request.answer(tokens, 9, config.mask_id or 0)


def computed(name: str, request: Request, chunk: int, known: KnownPrefix | None = None) -> Prefill:
    prefill = Prefill(model(name), request, known, chunk)
    while prefill.columns_to_compute:
        prefill.step()
    return prefill


def same(one: KnownPrefix | None, other: KnownPrefix | None, columns: int) -> bool:
    assert one is not None and other is not None
    pairs = zip(one.layers, other.layers, strict=True)
    return all(
        torch.allclose(a[:columns], b[:columns], rtol=0, atol=1e-12)
        for first, second in pairs
        for a, b in zip(first, second, strict=True)
    )


@pytest.mark.parametrize("name", NAMES)
def test_chunks_hold_what_one_forward_holds(name: str) -> None:
    request = prompt_of(name, 70)
    whole, chunks = computed(name, request, 1000).prefix(), computed(name, request, 20).prefix()
    assert whole is not None and chunks is not None and whole.columns == chunks.columns > 60
    assert same(whole, chunks, whole.columns)


def test_chunks_go_on_from_what_is_known() -> None:
    request = prompt_of("sdar_b4", 70)
    whole = computed("sdar_b4", request, 1000).prefix()
    assert whole is not None
    known = KnownPrefix(24, [(keys[:24], values[:24]) for keys, values in whole.layers])
    rest = computed("sdar_b4", request, 20, known)
    assert rest.columns_computed == 68 - 24 and same(rest.prefix(), whole, 68)


def in_chunks(name: str, cache: str, chunk: int, runtime: str = "eager") -> Runner:
    network = model(name)
    config = network.config
    bundle = Model(network, config, None, Ids(config.mask_id or 0, config.eos_id or 0, ()), name, Path(name))
    parts = parts_of(Combination("confidence", "fixed", cache, model=name))
    return replace(Runner.of(bundle, parts, Runtime(runtime)), chunk=chunk)


def decoded(name: str, cache: str, chunk: int, asked: list[Request], runtime: str = "eager") -> list[Result]:
    runner = in_chunks(name, cache, chunk, runtime)
    collector = Collector((), runner.model.ids, lambda tokens: "", (), False, cost=CostModel(runner.model.config))
    for turn in runner.stream(asked, 2, collector.join):
        collector.observe(turn)
    return collector.results()


@pytest.mark.parametrize("name, runtime", [("sdar_b4", "eager"), ("sdar_b4", "static"), ("tiny-wedlm", "eager")])
def test_a_decode_in_chunks_is_the_one_of_whole_prompts(name: str, runtime: str) -> None:
    """Rows join as others leave. A prompt that is not long, and one without masks, are computed as ever."""
    long = [prompt_of(name, length) for length in (70, 12, 45, 70)]
    asked = [*long, replace(long[0], masked=(False,) * len(long[0].tokens))]
    whole, chunks = decoded(name, "finished", 1000, asked, runtime), decoded(name, "finished", 20, asked, runtime)
    assert [(one.canvas, one.nfe) for one in chunks] == [(one.canvas, one.nfe) for one in whole]
    more = [new.query_tokens - old.query_tokens for new, old in zip(chunks, whole, strict=True)]
    assert more[1] == more[4] == 0 and all(0 <= one <= 4 for one in more)  # open columns of the prompt run with each


def test_what_chunks_take_counts_as_of_the_row() -> None:
    """Pages of four in chunks of 20, until column 68: 20, 20, 20 and 8 queries, each with the keys up to its end."""
    prefix = computed("sdar_b4", prompt_of("sdar_b4", 70), 20).prefix()
    assert prefix is not None
    assert prefix.spent == (68, 68, 20 * 20 + 20 * 40 + 20 * 60 + 8 * 68, 68 + 20 + 40 + 60 + 68, 0)


def largest(name: str, cache: str, length: int, chunk: int) -> int:
    runner = in_chunks(name, cache, chunk)
    with TensorSizes() as seen:
        list(runner.stream([prompt_of(name, length)], 1, lambda number, request: None))
    return seen.largest


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "name, cache", [("sdar_b4", "finished"), ("sdar_b4", "none"), ("tiny-wedlm", "none"), ("tiny-llada", "dual")]
)
def test_no_tensor_of_a_decode_grows_with_the_square_of_the_prompt(
    name: str, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dllm.models.network.attention.QUERIES_OF_A_MASK", 32)
    assert largest(name, cache, 512, 32) <= 2.1 * largest(name, cache, 256, 32)


def test_a_mask_of_all_queries_would_grow_with_it() -> None:
    assert largest("sdar_b4", "none", 512, 32) > 3.8 * largest("sdar_b4", "none", 256, 32)
