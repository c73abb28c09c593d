"""The laws that every combination of parts obeys, on a tiny trained model in float64.

``make test`` runs them over samplers x blocks on LLaDA and a smaller set on Dream; ``make laws`` over everything.
"""

from __future__ import annotations

import pytest
from harness import LENGTHS, PROMPTS, Combination, Decoded, allowed, decode, every, full, requests

from dllm.canvas import Request
from dllm.scores import Sampling

GRID_SAMPLERS = {"dream"}  # fixed time grids whose count for a turn can be 0


CACHED = [
    ("prefix", "fixed", "tiny-llada"), ("dual", "adablock", "tiny-dream"), ("dkv", "fixed", "tiny-llada"),
    ("prefix", "adablock", "tiny-dream"), ("dual", "fixed", "tiny-llada"), ("dkv", "whole", "tiny-dream"),
    ("dkv_prefill", "whole", "tiny-dream"), ("dkv_pd", "fixed", "tiny-dream"), ("dkv", "list", "tiny-llada"),
    ("elastic", "whole", "tiny-llada"), ("window", "whole", "tiny-dream"), ("recap", "fixed", "tiny-llada"),
    ("window", "whole", "tiny-llada"), ("elastic", "fixed", "tiny-dream"), ("recap", "adablock", "tiny-dream"),
    ("dkv_greedy", "fixed", "tiny-llada"), ("finished", "fixed", "sdar_b4"), ("finished", "list", "sdar_b4"),
]  # fmt: skip


def combinations() -> list[Combination]:
    llada = [Combination(sampler, blocks) for sampler, blocks in every("sampler", "blocks")]
    dream = [Combination(s, "fixed", model="tiny-dream") for (s,) in every("sampler")]
    eos = [Combination("confidence", "fixed", eos=eos) for (eos,) in every("eos")]
    # By default every sampler meets a fifth of these; tests/test_matrix.py decodes with all pairs.
    cached = [
        Combination(sampler, blocks, cache, model=name)
        for number, (sampler,) in enumerate(every("sampler"))
        for cache, blocks, name in CACHED[number % 5 :: 5]
    ]
    more = [
        Combination(sampler, blocks, cache, model=name)
        for sampler, blocks, cache in every("sampler", "blocks", "cache")
        for name in ("tiny-llada", "tiny-dream", "sdar_b4")
    ] if full() else []  # fmt: skip
    return [c for c in dict.fromkeys([*llada, *dream, *eos, *cached, *more]) if allowed(c)]


ALL = combinations()
by_combination = pytest.mark.parametrize("combination", ALL, ids=str)


@pytest.fixture(scope="module")
def decoded() -> dict[Combination, list[Decoded]]:
    return {}


def batch(combination: Combination, cache: dict[Combination, list[Decoded]]) -> list[Decoded]:
    if combination not in cache:
        cache[combination] = decode(combination, requests())
    return cache[combination]


@by_combination
def test_every_turn_with_something_open_commits(combination: Combination, decoded: dict) -> None:
    for one in batch(combination, decoded):
        assert one.result is not None and one.result.trace is not None
        start = one.result.trace.start
        for record, masked in zip(one.result.trace.turns, one.masks, strict=True):
            _, begin, end = record.block
            if combination.sampler not in GRID_SAMPLERS and any(masked[start + begin : start + end]):
                assert all(commits.positions for commits in record.candidates)


@by_combination
def test_commits_stay(combination: Combination, decoded: dict) -> None:
    """Revocable samplers may undo, inside the open block and fewer positions than the turn commits; a schedule may
    roll the block back."""
    for one in batch(combination, decoded):
        assert one.result is not None and one.result.trace is not None
        for before, after, record in zip(one.canvases, one.canvases[1:], one.result.trace.turns, strict=False):
            start = one.result.trace.start
            pairs = enumerate(zip(before, after, strict=True))
            undone = {at - start for at, (old, new) in pairs if old not in (-1, new)}
            remasked = {at for candidate in record.remasked for at in candidate}
            assert undone <= remasked | {at for candidate in record.rolled for at in candidate}
            assert not remasked or len(remasked) < sum(len(commits.positions) for commits in record.candidates)
            assert all(record.block[1] <= at < record.block[2] for at in undone)


@by_combination
def test_nothing_stays_masked_and_the_prompt_is_untouched(combination: Combination, decoded: dict) -> None:
    for number, one in enumerate(batch(combination, decoded)):
        result = one.result
        assert result is not None
        assert result.prompt_tokens == PROMPTS[number]
        assert len(result.canvas) == LENGTHS[number]
        assert result.trace is not None
        if combination.eos in ("keep", "fill_after_block"):
            assert result.trace.mask_id not in result.canvas
        assert result.trace.mask_id not in result.tokens


@by_combination
def test_a_row_decodes_the_same_alone_and_in_any_batch(combination: Combination, decoded: dict) -> None:
    together, rows = batch(combination, decoded), requests()
    shuffled = decode(combination, [rows[2], rows[0], rows[1]])
    for number, one in enumerate(together):
        alone = decode(combination, [rows[number]])[0]
        for other in (alone, shuffled[(number + 1) % 3]):
            assert other.canvases == one.canvases
            assert other.result is not None and one.result is not None
            assert other.result.canvas == one.result.canvas
            assert other.result.turns == one.result.turns


@by_combination
def test_a_trace_redraws_every_canvas(combination: Combination, decoded: dict) -> None:
    for one in batch(combination, decoded):
        assert one.result is not None and one.result.trace is not None
        *seen, final = one.result.trace.canvases()
        assert [
            [-1 if token == one.result.trace.mask_id else token for token in canvas] for canvas in seen
        ] == one.canvases
        assert final[one.result.trace.start :] == one.result.canvas


@pytest.mark.parametrize("sampler", ["confidence", "static", "dream"])
def test_noise_depends_on_seed_position_and_turn_only(sampler: str) -> None:
    combination = Combination(sampler, "fixed")
    hot = Sampling(temperature=1.0, tempered=sampler == "dream")
    together = decode(combination, requests(), hot)
    alone = [decode(combination, [row], hot)[0] for row in requests()]
    other = decode(combination, requests(seed=7), hot)
    assert [one.canvases for one in together] == [one.canvases for one in alone]
    assert [one.canvases for one in together] != [one.canvases for one in other]


@by_combination
def test_infilling_decides_the_masked_positions_only(combination: Combination) -> None:
    tokens = [62, 51, 25, 3, 60, 60, 4, 55, 3, 60, 60, 60, 54, 60, 60, 61]
    masked = [token == 60 for token in tokens]
    suffix = Request(PROMPTS[1] + [60] * 9, [False] * 8 + [True] * 9)
    result = decode(combination, [Request(tokens, masked), suffix])[0].result
    assert result is not None
    whole = result.prompt_tokens + result.canvas
    assert all(new == old for new, old, hole in zip(whole, tokens, masked, strict=True) if not hole)
    assert result.trace is not None
    if combination.eos in ("keep", "fill_after_block"):
        assert result.trace.mask_id not in whole
