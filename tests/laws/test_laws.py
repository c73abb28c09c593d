"""The laws that every combination of parts obeys, on a tiny trained model in float64. Law 5, that every row which is
attended to has been written, is asserted by the caches themselves (``tests/conftest.py`` switches it on)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import chain

import pytest
from harness import (
    LENGTHS,
    PROMPTS,
    Combination,
    Decoded,
    build,
    combinations,
    combinations_of_noise,
    decode,
    full,
    requests,
)
from law import law

from dllm.contract.canvas import Request
from dllm.contract.setting import Sampling

GRID_SAMPLERS = {"dream"}  # fixed time grids whose count for a turn can be 0
REFUSES = {"flash_verify", "linear_spec"}  # forwards that verify drafts perhaps in vain, or only make them
ANEW = {"rcr", "remdm"}  # decide positions anew: what a turn commits may be masked again at its end


def with_noise() -> Iterator[Combination]:
    """Laws of noise are for ``make laws`` alone: ``tests/loop/test_noise_laws.py`` shows them daily."""
    return chain(combinations_of_noise(), combinations())


CASES = with_noise if full() else combinations
of_decodes = partial(law, CASES, daily=80, least=5000)  # test_matrix says what so many show


@lru_cache(maxsize=2)
def together(combination: Combination) -> list[Decoded]:
    """Three requests as one batch. ``make laws`` asks all laws of one combination, then of the next."""
    return decode(combination, requests())


@of_decodes()
def test_every_turn_with_something_open_commits(combination: Combination) -> None:
    """A rule of noise commits in the last of its forwards of a block."""
    exempt, sampler = combination.sampler in GRID_SAMPLERS | ANEW | REFUSES, build("sampler", combination.sampler)
    for one in together(combination):
        assert one.result is not None and one.result.trace is not None
        start = one.result.trace.start
        for record, undecided in zip(one.result.trace.turns, one.undecided, strict=True):
            _, begin, end = record.block
            if sampler.traits.renoises:
                assert sum(other.block == record.block for other in one.result.trace.turns) <= sampler.steps
            elif not exempt and any(undecided[start + begin : start + end]):
                assert all(commits.positions for commits in record.candidates)


@of_decodes()
def test_commits_stay(combination: Combination) -> None:
    """Revocable samplers may undo, inside the open block; a schedule may roll the block back. Editing samplers may
    replace tokens of the open block, and the trace keeps both."""
    for one in together(combination):
        assert one.result is not None and one.result.trace is not None
        for before, after, record in zip(one.canvases, one.canvases[1:], one.result.trace.turns, strict=False):
            start = one.result.trace.start
            pairs = enumerate(zip(before, after, strict=True))
            undone = {at - start for at, (old, new) in pairs if old not in (-1, new)}
            remasked = {at for candidate in record.remasked for at in candidate}
            edited = {at: token for one in record.edited for at, token, *_ in one.rows()}
            assert edited.keys() <= undone and (not edited or build("sampler", combination.sampler).traits.edits)
            assert all(after[start + at] == token for at, token in edited.items())
            assert undone <= remasked | edited.keys() | {at for candidate in record.rolled for at in candidate}
            assert not remasked or build("sampler", combination.sampler).traits.revocable
            assert all(record.block[1] <= at < record.block[2] for at in undone)


@of_decodes()
def test_a_block_commits_more_than_it_takes_back(combination: Combination) -> None:
    """Not every turn does: wino, rcr and remdm may mask more in a turn than they commit in it."""
    for one in together(combination):
        assert one.result is not None and one.result.trace is not None
        gained = Counter[int]()
        for record in one.result.trace.turns:
            commits = max(len(commits.positions) for commits in record.candidates)
            gained[record.block[0]] += commits - max(len(remasked) for remasked in record.remasked)
        *closed, _ = gained  # an end of text may cut the last one short
        assert all(gained[number] > 0 for number in closed)


@of_decodes()
def test_nothing_stays_masked_and_the_prompt_is_untouched(combination: Combination) -> None:
    for number, one in enumerate(together(combination)):
        result = one.result
        assert result is not None
        assert result.prompt_tokens == PROMPTS[number]
        assert len(result.canvas) == LENGTHS[number]
        assert result.trace is not None
        if combination.eos in ("none", "fill_after_block"):
            assert result.trace.mask_id not in result.canvas
        assert result.trace.mask_id not in result.tokens
        assert 0 < result.nfe <= 2 * len(result.canvas) + held_turns(combination, one)


def held_turns(combination: Combination, one: Decoded) -> int:
    """Turns of an editing sampler on full blocks: at most ``post_edit_steps`` of each."""
    sampler = build("sampler", combination.sampler)
    if not sampler.traits.edits:
        return 0
    assert one.result is not None and one.result.trace is not None
    start, held = one.result.trace.start, Counter[tuple[int, int, int]]()
    for record, undecided in zip(one.result.trace.turns, one.undecided, strict=True):
        _, begin, end = record.block
        held[record.block] += not any(undecided[start + begin : start + end])
    assert max(held.values()) <= sampler.post_edit_steps
    return sum(held.values())


@of_decodes()
def test_a_row_decodes_the_same_alone_and_in_any_batch(combination: Combination) -> None:
    rows = requests()
    for numbers in others(combination):
        for one, number in zip(decode(combination, [rows[number] for number in numbers]), numbers, strict=True):
            expected = together(combination)[number]
            assert one.canvases == expected.canvases
            assert one.result is not None and expected.result is not None
            assert one.result.canvas == expected.result.canvas
            assert one.result.turns == expected.result.turns


def others(combination: Combination) -> list[list[int]]:
    """Every row alone and all in another order; by default one of these, drawn by the combination's name."""
    batches = [[0], [1], [2], [2, 0, 1]]
    return batches if full() else random.Random(str(combination)).sample(batches, 1)


@of_decodes()
def test_a_trace_redraws_every_canvas(combination: Combination) -> None:
    for one in together(combination):
        assert one.result is not None and one.result.trace is not None
        *seen, final = one.result.trace.canvases()
        noise = one.result.trace.mask_id is None
        assert [
            [-1 if mask == -1 and (noise or token == one.result.trace.mask_id) else token
             for token, mask in zip(canvas, masks, strict=True)]
            for canvas, masks in zip(seen, one.canvases, strict=True)
        ] == one.canvases  # fmt: skip
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


@law(CASES, daily=40, least=5000)
def test_infilling_decides_the_masked_positions_only(combination: Combination) -> None:
    tokens = [62, 51, 25, 3, 60, 60, 4, 55, 3, 60, 60, 60, 54, 60, 60, 61]
    masked = [token == 60 for token in tokens]
    suffix = Request(PROMPTS[1] + [60] * 9, [False] * 8 + [True] * 9)
    result = decode(combination, [Request(tokens, masked), suffix])[0].result
    assert result is not None
    whole = result.prompt_tokens + result.canvas
    assert all(new == old for new, old, hole in zip(whole, tokens, masked, strict=True) if not hole)
    assert result.trace is not None
    if combination.eos in ("none", "fill_after_block"):
        assert result.trace.mask_id not in whole
