"""SparseD: patterns and attention by brute force, what it equals where nothing is left out, rows of other lengths."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from harness import Combination, decode, model, parts_of, recorded, requests, results
from recording import FakeGraph
from torch import Tensor

from dllm.parts import (
    Cache,
    Confidence,
    EndOfText,
    Fixed,
    FullLength,
    NoCache,
    Parts,
    RecordedTurns,
    Sampling,
    SparseD,
    TruncateAtEos,
    UserError,
    attend_blocks,
    attend_by_flex,
    find_pattern,
    turns_of_rows,
)

MODELS = ["tiny-llada", "tiny-dream"]


def parts(cache: Cache, **more: Any) -> Parts:
    return Parts(Confidence(), Fixed(8), cache, **{"eos": FullLength(), **more})


def canvases(name: str, cache: Cache, **more: Any) -> list[list[list[int]]]:
    return [one.canvases for one in recorded(model(name), parts(cache, **more), requests())]


@pytest.mark.parametrize("name", MODELS)
def test_it_is_no_cache_where_nothing_is_left_out(name: str) -> None:
    """Before the patterns are used, and where they name every block; a sparse one changes texts."""
    plain = canvases(name, NoCache())
    assert canvases(name, SparseD(block_size=4, full_forwards=99)) == plain
    assert canvases(name, SparseD(0.999, 4, full_forwards=2)) == plain
    assert canvases(name, SparseD(0.0, 4, full_forwards=2)) != plain


def drawn(rows: int, n: int, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys and values, and which columns each row has."""
    noise = torch.Generator().manual_seed(n)
    query = torch.randn(rows, n, heads, 8, generator=noise, dtype=torch.float64) * 2
    keys, values = torch.randn(2, rows, kv_heads, n, 8, generator=noise, dtype=torch.float64)
    lengths = torch.tensor([n, n - 3, n - 7][:rows])
    return query, keys, values, torch.arange(n) < lengths[:, None]


def pattern_by_hand(
    query: Tensor, keys: Tensor, length: int, first: int, select: float, size: int, head: int, block: int
) -> list[int]:
    """The blocks of one head and block of queries, one number at a time. query [n, H, h], keys [H_kv, n, h]."""
    shared, scale = query.shape[1] // keys.shape[0], query.shape[2] ** -0.5
    blocks = -(-length // size)

    def sums(begin: int) -> list[float]:
        total = [0.0] * blocks
        for row in range(block * size, min(length, (block + 1) * size)):
            scores = [float(query[row, head] @ keys[head // shared, at]) * scale for at in range(begin, length)]
            weights = torch.tensor(scores, dtype=torch.float64).softmax(0).tolist()
            for at, weight in enumerate(weights):
                total[(begin + at) // size] += weight
        return total

    def best(total: list[float], among: range) -> list[int]:
        count = int(len(among) * select) + 1
        return sorted(among, key=lambda one: (-total[one], one))[:count]

    early = [one for one in best(sums(0), range(blocks)) if one < first]
    return sorted(early + best(sums(first * size), range(first, blocks)))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2)])
@pytest.mark.parametrize(("size", "select"), [(4, 0.3), (5, 0.0), (3, 0.6)])
def test_patterns_are_what_the_rule_says(heads: int, kv_heads: int, size: int, select: float) -> None:
    query, keys, _, valid = drawn(3, 26, heads, kv_heads)
    answer = torch.tensor([2, 0, 3])
    found = find_pattern(query, keys, valid, answer, select, size)
    for row, length in enumerate(valid.sum(1).tolist()):
        for head in range(heads):
            for block in range(-(-length // size)):
                expected = pattern_by_hand(query[row], keys[row], length, int(answer[row]), select, size, head, block)
                assert found[row, head, block].nonzero()[:, 0].tolist() == expected


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 1)])
def test_attention_by_blocks_is_attention_under_the_mask(heads: int, kv_heads: int) -> None:
    query, keys, values, valid = drawn(3, 23, heads, kv_heads)
    pattern = torch.rand(3, heads, 6, 6, generator=torch.Generator().manual_seed(2)) < 0.5
    pattern[..., 0] = True
    mask = pattern.repeat_interleave(4, 2).repeat_interleave(4, 3)[:, :, :23, :23] & valid[:, None, None]
    wide_keys, wide_values = (one.repeat_interleave(heads // kv_heads, 1) for one in (keys, values))
    scores = query.transpose(1, 2) @ wide_keys.transpose(2, 3) * 8**-0.5
    expected = (scores.masked_fill(~mask, -torch.inf).softmax(-1) @ wide_values).transpose(1, 2).flatten(2)
    found = attend_blocks(query, keys, values, pattern, valid, 4, 6)
    assert (found - expected).abs().max() < 1e-12
    more = pattern.clone()
    more[:, :, :, 5] |= ~valid[:, None, None, 20:].any(-1)  # blocks that a row does not have change nothing
    assert (attend_blocks(query, keys, values, more, valid, 4, 6) - expected)[valid].abs().max() < 1e-12


def test_a_block_of_queries_whose_keys_were_cut_off_attends_to_the_last_that_is_left() -> None:
    query, keys, values, _ = drawn(1, 16, 2, 2)
    pattern = torch.zeros(1, 2, 4, 4, dtype=torch.bool)
    pattern[..., 3] = True
    cut, last = torch.arange(16)[None] < 10, torch.zeros_like(pattern)
    last[..., 2] = True
    found = attend_blocks(query, keys, values, pattern, cut, 4, 1)
    assert torch.equal(found, attend_blocks(query, keys, values, last, cut, 4, 1)) and not found.isnan().any()


@pytest.mark.parametrize("name", MODELS)
def test_rows_of_other_lengths_and_ends_decode_as_alone(name: str) -> None:
    for eos in (FullLength(), TruncateAtEos()):
        chosen = parts(SparseD(0.3, 4, full_forwards=3), eos=eos)
        together = recorded(model(name), chosen, requests())
        for number, request in enumerate(requests()):
            alone = recorded(model(name), chosen, [replace(request, param_index=number)])[0]
            assert alone.canvases == together[number].canvases


@pytest.mark.daily(1)
@pytest.mark.parametrize("eos", [FullLength(), TruncateAtEos()], ids=["full", "cut"])
def test_fixed_shapes_give_what_exact_ones_give(eos: EndOfText) -> None:
    """The rows measure in different turns, so forwards of all kinds meet in one call."""
    network, chosen = model("tiny-llada"), parts(SparseD(0.0, 4), eos=eos)
    turns = RecordedTurns(network, lambda: FakeGraph([]))
    ways: list[dict[str, Any]] = [{}, {"lag": 0}, {"lag": 0, "take": turns}, {"lag": 0, "take": turns}]
    eager, *others = [
        [(one.canvas, one.turns, one.query_tokens) for one in results(network, chosen, requests(), **way)]
        for way in ways
    ]
    assert others == [eager] * 3 and len(turns.recorded) > 2


@pytest.mark.parametrize(("size", "heads", "kv_heads"), [(16, 4, 2), (128, 2, 2)])
@pytest.mark.program  # compiles for seconds
def test_lists_of_blocks_give_the_attention_of_the_mask(size: int, heads: int, kv_heads: int) -> None:
    """As a GPU runs it, compiled for this CPU: a row that ends within a block, blocks without a key, and rows whose
    blocks are all cut off."""
    noise = torch.Generator().manual_seed(size)
    n = 5 * size - 3
    query = torch.randn(3, n, heads, 32, generator=noise)
    keys, values = torch.randn(2, 3, kv_heads, n, 32, generator=noise)
    pattern = torch.rand(3, heads, 5, 5, generator=noise) < 0.4
    valid = torch.arange(n) < torch.tensor([n, 3 * size - 1, size])[:, None]
    expected = attend_blocks(query, keys, values, pattern, valid, size, 5)
    found = attend_by_flex(query, keys, values, pattern, valid, size)
    assert (found - expected)[valid].abs().max() < 1e-5


def test_guided_rows_have_patterns_of_their_own_and_costs_count_what_is_attended_to() -> None:
    sampling, request = Sampling(guidance=1.0), [replace(requests()[0], param_index=0)]
    guided = [
        [one.canvas for one in results(model("tiny-llada"), parts(cache, sampling=sampling), request, sampling)]
        for cache in (SparseD(0.999, 4, full_forwards=2), NoCache())
    ]
    assert guided[0] == guided[1]
    costs = [one.cost for one in turns_of_rows(model("tiny-llada"), parts(SparseD(0.0, 4, full_forwards=2)), request)]
    length = len(request[0].tokens)
    assert [one.queries.tolist() for one in costs] == [[[length] * 4]] * len(costs), "every column is computed"
    assert all((one.keys == length).all() for one in costs[:2])
    # one block of the answer, and one of the prompt unless the answer has the best of all
    assert all(((one.keys >= 3) & (one.keys <= 8)).all() for one in costs[2:]) and len(costs) > 3


def test_options_that_cannot_work_are_refused() -> None:
    with pytest.raises(UserError, match=r"cache\.select=1\.0 must be from 0 to below 1"):
        SparseD(1.0)
    with pytest.raises(UserError, match=r"cache\.full_forwards=1"):
        SparseD(full_forwards=1)
    with pytest.raises(UserError, match="for models with full attention"):
        parts_of(Combination("confidence", "fixed", "sparsed", model="sdar_b4"))
    assert "a GPU multiplies blocks as small no faster" in str(SparseD(block_size=32).warning(None))  # type: ignore
    assert decode(Combination("confidence", "fixed", "sparsed"), requests())
