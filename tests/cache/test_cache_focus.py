"""FOCUS beside a plain definition of its choice, the delayed cache, and decodes alone."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from harness import model, requests, results
from recording import FakeGraph
from torch import Tensor

from dllm.parts import (
    ROWS_PER_STREAMED,
    Canvas,
    Confidence,
    Fixed,
    Focus,
    FocusMemory,
    Forward,
    FullLength,
    Ids,
    Memory,
    Parts,
    Projected,
    RecordedTurns,
    Request,
    TakeTurn,
    Turn,
    Visible,
    chosen_masks,
    denoise,
    importance,
)

RULE, ENDS, FIXED = Confidence(0.9), FullLength(), dict[int, Fixed]()
NAMES = ("tiny-diffcoder", "sdar_b4", "tiny-a2d-bd3lm", "efficient_dlm")


def plain_importance(query: Tensor, key: Tensor) -> list[float]:
    """The spec word by word, of one row's masks: queries [m, H, h], keys [m, H_kv, h]."""
    m, heads, size = query.shape
    total = [0.0] * m
    for head in range(heads):
        own = key[:, head // (heads // key.shape[1])]
        for i in range(m):
            w = [float(query[i, head] @ own[j]) / math.sqrt(size) for j in range(m)]
            pooled = [max(w[max(j - 1, 0) : j + 2]) for j in range(m)]
            top = max(pooled)
            powers = [math.exp(one - top) for one in pooled]
            total = [before + one / sum(powers) for before, one in zip(total, powers, strict=True)]
    return total


def plain_choice(growth: list[float], columns: list[int], target: int) -> list[bool]:
    """Steps 5 and (a)."""
    order = sorted(range(len(growth)), key=lambda at: (-growth[at], at))
    mean = sum(growth) / len(growth)
    spread = math.sqrt(sum((one - mean) ** 2 for one in growth) / len(growth))
    high = [at for at, one in enumerate(growth) if one >= mean + spread]
    chosen = set(high if len(high) >= target else order[:target])
    chosen |= {at - 1 for at in chosen if at and columns[at - 1] + 1 == columns[at]}
    return [at in chosen for at in range(len(growth))]


def test_importance_and_choice_are_those_of_the_definition() -> None:
    dice, noise = random.Random(3), torch.Generator().manual_seed(3)
    counts, width = [7, 2, 1, 5, 4], 7
    query, key = (torch.randn(5, width, heads, 8, generator=noise, dtype=torch.float64) for heads in (4, 2))
    real = torch.arange(width) < torch.tensor(counts)[:, None]
    found = importance(query, key.transpose(1, 2), real, 8**-0.5)
    for row, count in enumerate(counts):
        assert found[row, :count].tolist() == pytest.approx(plain_importance(query[row, :count], key[row, :count]))
    narrow, wide = ((query.to(kind), key.transpose(1, 2).to(kind)) for kind in (torch.float32, torch.float64))
    same = [importance(*(one.float().double() for one in wide), real, 8**-0.5), importance(*narrow, real, 8**-0.5)]
    assert torch.equal(*same), "float32 would decide by its own noise"
    assert found[1, 0] == found[1, 1], "two masks pool to the same weights, exactly"
    for _ in range(200):
        columns = torch.stack([torch.tensor(sorted(dice.sample(range(12), width))) for _ in counts])
        growth = torch.randn(5, width, generator=noise, dtype=torch.float64)
        growth[dice.randrange(5), :2] = 0.5  # ties
        target = torch.tensor([dice.randint(1, count) for count in counts])
        chosen = chosen_masks(growth, columns.masked_fill(~real, 12), real, target)
        for row, count in enumerate(counts):
            expected = plain_choice(growth[row, :count].tolist(), columns[row, :count].tolist(), int(target[row]))
            assert chosen[row].tolist() == expected + [False] * (width - count)


@pytest.mark.parametrize(
    ("decided", "deciding", "alpha", "target"),
    [(4, 3, 1.5, 2), (0, 0, 1.5, 2), (5, 1, 1.2, 6), (1, 2, 1.0, 1), (9, 1, 1.5, 20), (3, 2, 1.0, 2)],
)
def test_the_target_is_rounded_as_published(decided: int, deciding: int, alpha: float, target: int) -> None:
    """4 / 3 as a float32 times 1.5 is above 2 in float64; 20 stands for all where the target is no fewer than them."""
    counts = [torch.tensor([one]) for one in (12, decided, deciding)]
    assert Focus(alpha)._target(*counts, 20).tolist() == [target]


def decoded(
    name: str, policy: Focus, batch: list[Request], lag: int | None = None, take: TakeTurn | None = None
) -> Iterator[Turn]:
    network, length = model(name), model(name).config.attention.block
    assert length
    parts = Parts(RULE, FIXED.setdefault(length, Fixed(length)), policy, ENDS)
    config = network.config
    forward = Forward.of(network, Ids(config.mask_id or 0, config.eos_id or 0, ()), parts)
    canvas = Canvas.of(batch, config.pad_id or 0, "cpu", config.attention.grid_at_zero)
    with torch.inference_mode():
        yield from denoise(canvas, forward, parts, lag, take)


Facts = list[tuple[list[int], list[int], list[int]]]


def facts(turns: Iterator[Turn]) -> dict[int, Facts]:
    """Of every row, in each of its turns: what it committed, and queries and keys by layer."""
    found: dict[int, Facts] = {}
    for turn in turns:
        for row, name in enumerate(turn.canvas.row_id.tolist()):
            if bool(turn.active[row]):
                commit = turn.step.commit[row].nonzero()[:, 0].tolist()
                found.setdefault(name, []).append(
                    (commit, turn.cost.queries[row].tolist(), turn.cost.keys[row].tolist())
                )
    return found


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", NAMES)
def test_a_row_decodes_alone_as_in_a_batch_and_in_fixed_shapes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of other lengths in one call, and in calls of their own; static and recorded turns, questions included."""
    policy, batch, alone = Focus(1.0), requests()[:2], dict[int, Facts]()
    for number, request in enumerate(batch):
        alone[number] = facts(decoded(name, policy, [request]))[0]
    assert any(len(set(queries)) > 1 for turns in alone.values() for _, queries, _ in turns), "rows leave"
    assert facts(decoded(name, policy, batch)) == alone
    take = RecordedTurns(model(name), lambda: FakeGraph([]))
    for way in (None, take, take):  # most shapes come back in the second recorded decode
        assert facts(decoded(name, policy, batch, 0, way)) == alone
    monkeypatch.setitem(ROWS_PER_STREAMED, "cpu", -1000)
    assert facts(decoded(name, policy, batch)) == alone


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", NAMES[:2])
def test_without_a_mask_that_leaves_it_is_the_delayed_cache(name: str) -> None:
    """An alpha of a block's length or more lets nothing leave."""
    wide, delayed = (facts(decoded(name, Focus(alpha), requests())) for alpha in (64.0, None))
    assert wide == delayed
    assert all(len(set(queries)) == 1 for turns in wide.values() for _, queries, _ in turns)


def test_every_column_was_written_in_every_layer_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule (c). Also with given tokens right of masks, which stay and so let their left neighbours stay."""
    name, network = "tiny-diffcoder", model("tiny-diffcoder")
    written: dict[int, set[int]] = {}
    attend = FocusMemory.attend
    second = FocusMemory._second
    reads = 0

    def check(memory: FocusMemory, layer: int) -> None:
        nonlocal reads
        columns, mask, length = memory.call.columns, memory.call.visible.mask, memory.session.length
        assert columns is not None and mask is not None
        kept = [column for column in columns[0].tolist() if column < length]
        written.setdefault(layer, set()).update(kept)
        seen = mask[0, : len(kept)].any(0).nonzero()[:, 0].tolist()
        assert set(seen) <= written[layer], f"layer {layer}"
        reads += len(seen)

    def watched(memory: FocusMemory, layer: int, fresh: Projected, columns: Tensor | None) -> Tensor:
        check(memory, layer)
        return attend(memory, layer, fresh, columns)

    def in_second(memory: FocusMemory, *given: Any) -> Tensor:
        columns = memory.columns[0].tolist()  # its projections of all rows are written
        written.setdefault(1, set()).update(column for column in columns if column < memory.session.length)
        check(memory, 1)
        return second(memory, *given)

    monkeypatch.setattr(FocusMemory, "attend", watched)
    monkeypatch.setattr(FocusMemory, "_second", in_second)
    for given in ((), (20, 21, 30)):
        written.clear()
        request = requests()[0]
        masked = [one and at not in given for at, one in enumerate(request.masked)]
        *_, last = decoded(name, Focus(1.0), [replace(request, masked=masked)])
        assert not last.candidates.masked.any() and len(written) == network.config.layers
    assert reads > 1000


def test_a_closing_forward_leaves_the_keys_of_the_finished_text() -> None:
    """What it keeps of a finished block is what one forward over the whole text computes, but for rounding."""
    name = "tiny-diffcoder"
    network, kept = model(name), list[Any]()
    policy = Focus(1.0)
    start = policy.start

    def noted(*given: Any) -> Any:
        kept.append(start(*given))
        return kept[-1]

    object.__setattr__(policy, "start", noted)
    *_, last = decoded(name, policy, requests()[:1])
    tokens, block = last.candidates.tokens, network.config.attention.block or 0
    end = (tokens.shape[1] - 1) // block * block  # the last block is never closed
    held: list[tuple[Tensor, Tensor]] = []

    class Keeps(Memory):
        def exchange(self, layer: int, fresh: Projected, columns: Tensor | None) -> Any:
            query, key, value = fresh.rotated()
            held.append((key, value))
            order = network.config.attention.order(torch.zeros_like(tokens, dtype=torch.bool), torch.tensor([0]))
            assert order is not None
            return query, key, value, Visible(order.visible(order, None))

    with torch.inference_mode():
        network(tokens, torch.arange(tokens.shape[1])[None], Keeps())
    for store, whole in zip(kept[0].stores, held, strict=True):
        for one, other in zip(store, whole, strict=True):
            assert torch.allclose(one[:, :, :end], other[:, :, :end], atol=1e-10)


def test_blocks_of_several_attention_blocks_are_decoded_one_after_the_other() -> None:
    """A schedule may open two attention blocks at once: the first is decided before the second is computed."""
    network = model("sdar_b4")
    parts = Parts(Confidence(0.9), Fixed(8), Focus(), FullLength())
    single = replace(parts, blocks=Fixed(4))
    found = [results(network, one, requests()) for one in (parts, single)]
    assert [one.canvas for one in found[0]] == [one.canvas for one in found[1]]
