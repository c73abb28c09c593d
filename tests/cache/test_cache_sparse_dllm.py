"""Sparse-dLLM: what it keeps, by brute force; what it equals where it keeps all or nothing; its slots."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from harness import Combination, decode, full, model, parts_of, recorded, requests, results
from recording import FakeGraph
from torch import Tensor

from dllm.parts import (
    Cache,
    CacheView,
    Canvas,
    Dual,
    Fixed,
    FullLength,
    Memory,
    NoCache,
    Parts,
    Projected,
    RecordedTurns,
    Sampling,
    SparseDLLM,
    SparsePass,
    SparseSession,
    Static,
    TruncateAtEos,
    UserError,
    replaced,
)

MODELS = ["tiny-llada", "tiny-dream"]


def parts(cache: Cache, per_step: int = 1, **more: Any) -> Parts:
    return Parts(Static(per_step=per_step), Fixed(8), cache, **{"eos": FullLength(), **more})


def canvases(name: str, cache: Cache, per_step: int = 1) -> list[list[list[int]]]:
    return [one.canvases for one in recorded(model(name), parts(cache, per_step), requests())]


class Later(Dual):
    """A dual cache that the second forward of a block builds once more."""

    def full(self, view: CacheView) -> Tensor:
        return super().full(view) | (view.blocks.forwards == 1)


@pytest.mark.parametrize("name", MODELS)
def test_with_everything_kept_it_is_a_dual_cache_built_one_forward_later(name: str) -> None:
    assert canvases(name, SparseDLLM(1.0)) == canvases(name, Later())
    assert canvases(name, SparseDLLM(0.1)) != canvases(name, Later())


@pytest.mark.parametrize("name", MODELS)
def test_two_forwards_a_block_are_no_cache(name: str) -> None:
    assert canvases(name, SparseDLLM(0.3), 4) == canvases(name, NoCache(), 4)
    assert canvases(name, SparseDLLM(0.3), 2) != canvases(name, NoCache(), 2)


def kept_by_hand(query: Tensor, keys: Tensor, row: range, block: range, policy: SparseDLLM) -> list[int]:
    """The rule of the paper, one number at a time. query [n, H, h], keys [H_kv, n, h]."""
    outside = [at for at in row if at not in block]
    shared = query.shape[1] // keys.shape[0]
    points = []
    for at in outside:
        mean = [
            query[block.start : block.stop, head].mean(0) @ keys[head // shared, at] for head in range(query.shape[1])
        ]
        points.append(float(sum(mean)) / len(mean))
    half = policy.kernel_size // 2
    pooled = [max(points[max(0, j - half) : j + half + 1]) for j in range(len(points))]
    order = sorted(range(len(pooled)), key=lambda j: (-pooled[j], j))
    return sorted(outside[j] for j in order[: int(len(outside) * policy.keep_ratio)])


@pytest.mark.parametrize("kernel_size", [1, 3, 5])
def test_what_every_layer_keeps_is_what_the_rule_says(kernel_size: int) -> None:
    """For rows of different lengths in one batch; the pooled ties go to the lowest column."""
    policy, passes, seen = SparseDLLM(0.4, kernel_size), list[SparsePass](), list[list[tuple[Tensor, Tensor]]]()

    def start(*given: Any) -> SparseSession:
        session = SparseSession(policy, given[0], given[1], given[2])
        begin, memory = session.begin, session.memory

        def noted(*given: Any) -> SparsePass:
            passes.append(begin(*given))
            seen.append([])
            return passes[-1]

        def watched(forward: SparsePass, call: Any) -> Memory:
            found, notes = memory(forward, call), seen[-1]
            exchange = found.exchange

            def shown(layer: int, fresh: Projected, columns: Tensor | None) -> Any:
                query, keys, values = fresh.rotated()
                notes.append((query, keys))
                return exchange(layer, fresh, columns)

            found.exchange = shown  # type: ignore[method-assign]
            return found

        session.begin, session.memory = noted, watched  # type: ignore[method-assign, assignment]
        return session

    recorded(model("tiny-llada"), parts(replaced(policy, start=start)), requests())
    built = 0
    for one, layers in zip(passes, seen, strict=True):
        for layer, chosen in enumerate(one.found["chosen"]):
            for row, length in enumerate(one.valid.sum(1).tolist()):
                if not (one.full[row] and one.begin[row] >= 0):
                    continue
                block = range(int(one.begin[row]), int(one.remembered["end"][row]))
                found = sorted(column for column in chosen[row].tolist() if column < one.valid.shape[1])
                query, keys = layers[layer]
                assert found == kept_by_hand(query[row], keys[row], range(length), block, policy)
                built += 1
    assert built >= 3 * 2 * 4, "three rows, two blocks and more, four layers"


CASES = [
    ("confidence", "tiny-llada", "none", 0.0),
    ("confidence", "tiny-dream", "truncate_at_eos", 0.0),
    ("static", "tiny-llada", "truncate_at_eos", 0.8),
    ("static", "tiny-dream", "stop_at_eos", 0.0),
]


@pytest.mark.parametrize(("sampler", "name", "eos", "heat"), CASES if full() else CASES[1:3])
@pytest.mark.parametrize("ratio", [0.2, 0.7] if full() else [0.2])
def test_recorded_and_static_turns_are_eager_ones(sampler: str, name: str, eos: str, heat: float, ratio: float) -> None:
    """Also where a narrow turn runs in a recording of a full one: its rows then attend to slots and columns at once."""
    chosen = replace(parts_of(Combination(sampler, "fixed", "sparse_dllm", eos, name)), cache=SparseDLLM(ratio))
    sampling, network = Sampling(temperature=heat), model(name)
    eager = [one.canvas for one in results(network, chosen, requests(), sampling)]
    assert [one.canvas for one in results(network, chosen, requests(), sampling, 0)] == eager
    log: list[str] = []
    take = RecordedTurns(network, lambda: FakeGraph(log))
    for _ in range(2):
        assert [one.canvas for one in results(network, chosen, requests(), sampling, 0, take=take)] == eager
    assert "replay" in log


def test_guided_rows_keep_slots_of_their_own() -> None:
    sampling = Sampling(guidance=1.0)
    for name in MODELS:
        found = [
            [one.canvas for one in results(model(name), parts(cache, 4, sampling=sampling), requests(), sampling)]
            for cache in (SparseDLLM(0.3), NoCache())
        ]
        assert found[0] == found[1], "two forwards a block are no cache"


def test_a_row_has_as_many_slots_as_its_block_and_what_it_keeps() -> None:
    """Half of the keys at a ratio of one half, in every layer, and one slot for padding."""
    sessions = []

    def start(*given: Any) -> SparseSession:
        sessions.append(SparseSession(SparseDLLM(0.5), given[0], given[1], given[2]))
        return sessions[-1]

    request = replace(requests()[0], param_index=0)
    found = results(model("tiny-llada"), parts(replaced(SparseDLLM(0.5), start=start)), [request])
    length = len(request.tokens)
    for keys, values in (store for store in sessions[0].stores if store is not None):
        assert keys.shape[2] == values.shape[2] == 8 + int((length - 8) * 0.5) + 1
    reuse = 8 + int((length - 8) * 0.5)
    assert found[0].nfe == len(request.masked) - request.masked.index(True)
    assert reuse < length


def test_columns_that_are_cut_off_are_seen_no_more() -> None:
    """A row that an end of text cut decodes as one that was never longer would not: what it kept was chosen with them.
    But alone and in a batch it is the same, and no cut column is a key."""
    for name in MODELS:
        chosen = parts(SparseDLLM(0.6), eos=TruncateAtEos())
        together = recorded(model(name), chosen, requests())
        for number, request in enumerate(requests()):
            alone = recorded(model(name), chosen, [replace(request, param_index=number)])[0]
            assert alone.canvases == together[number].canvases


def test_recordings_are_of_the_columns_that_a_session_holds() -> None:
    """These are no lent memory: a recording of one decode must not read those of another, which may be freed."""
    canvas, config = Canvas.of(requests(), 61), model("tiny-llada").config
    for shrinks in (True, False):
        both = [SparseSession(SparseDLLM(), canvas, config, shrinks) for _ in range(2)]
        for one in both:
            one.kept.slots = 9
            one.store(0, torch.zeros(3, 1, 2, 4))
            one.kept.stores = []  # as if their keys were in the same lent memory
        assert (both[0].graph_key() == both[1].graph_key()) is not shrinks


@pytest.mark.parametrize("shrinks", [False, True])
def test_a_row_that_joins_has_slots_where_another_has_left(shrinks: bool) -> None:
    """In memory that is as long as there are rows: a recording of as many must not find that of the row that left."""
    config = model("tiny-llada").config
    heads, width = config.key_heads(0)
    session, fresh = (
        SparseSession(SparseDLLM(), Canvas.of(some, 61), config, shrinks) for some in (requests(), requests()[:1])
    )
    session.kept.slots = 9
    for layer in range(config.layers):
        session.store(layer, torch.zeros(3, 1, heads, width))[0][:] = torch.arange(1.0, 4)[:, None, None, None]
    before = session.graph_key()
    session = session.select(torch.tensor([0, 2])).join(fresh)
    assert session.rows == 3 and session.graph_key() != before
    for keys, values in (store for store in session.stores if store is not None):
        assert keys[:, 0, 0, 0].tolist() == [1, 3, 0] and keys.shape == values.shape == (3, heads, 9, width)
    columns = session.kept["columns"].layers.values()
    assert all(one.shape == (3, 9) for one in columns) and len(columns) == config.layers * shrinks


def test_options_that_cannot_work_are_refused() -> None:
    with pytest.raises(UserError, match="cache.keep_ratio=1.5"):
        SparseDLLM(1.5)
    with pytest.raises(UserError, match="cache.kernel_size=4 must be odd"):
        SparseDLLM(kernel_size=4)
    with pytest.raises(UserError, match="opens one only, and moves it"):
        parts_of(Combination("confidence", "sliding", "sparse_dllm"))
    with pytest.raises(UserError, match="for models with full attention"):
        parts_of(Combination("confidence", "fixed", "sparse_dllm", model="sdar_b4"))
    assert decode(Combination("confidence", "fixed", "sparse_dllm"), requests())
