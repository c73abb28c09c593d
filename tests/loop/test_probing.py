"""Attention as a statistic: the weights are those of the plain formula, over whatever keys a cache holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from harness import build, choices, forward_of, full, model, requests, with_mask
from torch import Tensor

from dllm import UserError
from dllm.parts import (
    AttentionMap,
    AttentionWeights,
    Cache,
    Canvas,
    Confidence,
    Dual,
    Fixed,
    FullLength,
    Need,
    NoCache,
    Parts,
    Request,
    Rows,
    Runtime,
    Sampler,
    Sampling,
    Setting,
    Shadow,
    Static,
    Transformer,
    Turn,
    Whole,
    start_rows,
    take_turn,
    validate,
)

ASKED = AttentionMap(2, received=True)


class Asks(Static):
    """One token a step; it reads the attention of the last two layers, and does nothing with it."""

    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=(ASKED,)),)


class Seen:
    """What the last two layers of a network projected in its last call, and for which columns."""

    def __init__(self, network: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queries: dict[int, Tensor] = {}
        self.keys: dict[int, Tensor] = {}
        self.columns: dict[int, Tensor | None] = {}
        self.last = range(len(network.layers))[-2:]
        for number in self.last:
            layer: Any = network.layers[number]
            project = layer.attn.project

            def noted(x: Tensor, angles: Any, number: int = number, project: Any = project) -> Any:
                found = project(x, angles)
                self.queries[number], self.keys[number], _ = found.rotated()
                return found

            monkeypatch.setattr(layer.attn, "project", noted)
            forward = layer.forward

            def ran(*given: Any, number: int = number, forward: Any = forward) -> Any:
                self.columns[number] = given[3]
                return forward(*given)

            monkeypatch.setattr(layer, "forward", ran)


def plain(query: Tensor, keys: Tensor, seen: Tensor) -> Tensor:
    """Mean over heads of softmax(q k / sqrt h), of one query [H, h] over keys [H_kv, S, h] of which some are seen."""
    group = len(query) // len(keys)
    heads = []
    for head, one in enumerate(query):
        scores = keys[head // group] @ one / len(one) ** 0.5
        heads.append(torch.where(seen, scores.exp(), 0) / scores[seen].exp().sum())
    return torch.stack(heads).mean(0)


def play(parts: Parts, name: str, batch: Sequence[Request], guidance: float = 0.0) -> Iterator[tuple[Rows, Turn]]:
    """The rows and the turn of every turn of a decode."""
    network, tempered = model(name), parts.sampler.traits.tempered
    forward = forward_of(network, parts, Sampling(guidance=guidance, tempered=tempered))
    batch = [with_mask(request, network.config.mask_id or 0) for request in batch]
    canvas = Canvas.of(batch, network.config.pad_id or 0, grid_at_zero=network.config.attention.grid_at_zero)
    rows = start_rows(canvas, forward, parts, None)
    while len(rows):
        rows, turn = take_turn(rows, forward, parts)
        yield rows, turn
        rows = rows.without(turn.finished)


def found(turn: Turn) -> AttentionWeights:
    return turn.view.scores.of(ASKED)


BARE = ("none", "dpad", "finished")  # no keys are kept, or the models are others
HOLDING = [name for name in choices("cache") if name not in BARE and build("cache", name).traits.exposes_attention]


@pytest.mark.daily(12)
@pytest.mark.parametrize("cache", HOLDING)
@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
def test_the_weights_are_those_of_the_keys_that_a_cache_holds(
    cache: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the buffers after the forward, and the rows that the network projected in it."""
    seen, shift = Seen(model(name), monkeypatch), model(name).config.prediction_shift
    rule: Sampler = build("sampler", "order") if cache == "dkv_greedy" else Asks()
    if cache == "dkv_greedy":
        monkeypatch.setattr(type(rule), "needs", Asks.needs)
    blocks = Whole() if cache == "window" else Fixed(8)
    checked = 0
    for rows, turn in play(Parts(rule, blocks, build("cache", cache), FullLength()), name, requests()[1:2]):
        kept: Any = rows.session
        attended, given = rows.cache_state["attended"][0], found(turn)
        assert given.received is not None
        asked = (turn.canvas.undecided & turn.view.blocks.in_open)[0].nonzero()[:, 0].tolist()
        assert given.columns[0].tolist() == asked
        for at, column in enumerate(asked):
            expected = torch.zeros(len(attended), dtype=torch.float64)
            for layer in seen.last:
                columns = seen.columns[layer]
                ran = list(range(len(attended))) if columns is None else columns[0].tolist()
                if column - shift in ran:
                    query = seen.queries[layer][0, ran.index(column - shift)]
                    keys = kept.stores[layer][0][0, :, : len(attended)]
                    expected += plain(query, keys, attended) / 2
            assert torch.allclose(given.weights[0, at], expected, atol=1e-12)
            checked += bool(expected.any())
    assert checked > 20  # of at most 64 masks that eight forwards of each of two blocks have seen


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream", "sdar_b4"])
def test_without_a_cache_they_are_those_of_the_whole_canvas(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what each column receives, on average over the rows of the canvas."""
    network = model(name)
    seen, shift, blocks = Seen(network, monkeypatch), network.config.prediction_shift, Fixed(8)
    for _, turn in play(Parts(Asks(), blocks, NoCache(), FullLength()), name, requests()[:1]):
        canvas, given = turn.canvas, found(turn)
        order, length = network.config.attention.order(canvas.masked, canvas.start), len(canvas.columns)
        visible = torch.ones(length, length, dtype=torch.bool)
        if order is not None:
            mask = order.visible(order, None)
            visible = mask[0] if mask is not None else visible
        whole = torch.stack(
            [
                sum(plain(seen.queries[layer][0, row], seen.keys[layer][0], visible[row]) for layer in seen.last) / 2  # type: ignore
                for row in range(length)
            ]
        )
        assert given.received is not None
        assert torch.allclose(given.received[0], whole.mean(0), atol=1e-12)
        assert torch.allclose(given.weights[0], whole[given.columns[0] - shift], atol=1e-12)


@pytest.mark.parametrize("cache", choices("cache") if full() else ["none", "prefix", "elastic"])
def test_a_row_has_the_weights_that_it_has_alone(cache: str) -> None:
    if cache in ("finished", "focus", "dkv_greedy", "flash_verify", "linear_spec"):
        pytest.skip("it is for other models, or other rules")
    parts = Parts(Asks(), Whole() if cache == "window" else Fixed(8), build("cache", cache), FullLength())
    together: dict[tuple[int, int], AttentionWeights] = {}
    for _, turn in play(parts, "tiny-llada", requests()):
        given = found(turn)
        for row, name in enumerate(turn.canvas.row_id.tolist()):
            one = AttentionWeights(given.columns[row], given.weights[row], given.received[row])  # type: ignore[index]
            together[name, int(turn.view.blocks.turn[row])] = one
    for number, request in enumerate(requests()):
        for _, turn in play(parts, "tiny-llada", [request]):
            alone, other = found(turn), together[number, int(turn.view.blocks.turn[0])]
            masks, length = alone.columns.shape[1], alone.weights.shape[2]
            assert other.columns[:masks].tolist() == alone.columns[0].tolist() and alone.received is not None
            assert torch.allclose(other.weights[:masks, :length], alone.weights[0], atol=1e-12)
            assert not other.weights[masks:].any() and not other.weights[:, length:].any()
            assert other.received is not None
            assert torch.allclose(other.received[:length], alone.received[0], atol=1e-12)


class AsksMore(Asks):
    """It also wants the rows that stand in for committed tokens."""

    def needs(self) -> tuple[Need, ...]:
        return (*super().needs(), Need(committed=True, reads=(Shadow(),)))


@pytest.mark.parametrize("cache", [NoCache(), Dual()], ids=type)
def test_rows_that_stand_in_for_tokens_count_for_nothing(cache: Cache) -> None:
    parts = [Parts(rule, Fixed(8), cache, FullLength()) for rule in (AsksMore(), Asks())]
    with_them, without = (play(one, "tiny-llada", requests()) for one in parts)
    for (_, more), (_, plain) in zip(with_them, without, strict=True):
        assert torch.allclose(found(more).weights, found(plain).weights, atol=1e-12)
        one, other = found(more).received, found(plain).received
        assert one is not None and other is not None and torch.allclose(one, other, atol=1e-12)


def test_guidance_reads_the_canvas_as_it_is() -> None:
    parts = Parts(Asks(), Fixed(8), Dual(), FullLength())
    free, guided = (next(play(parts, "tiny-llada", requests(), weight))[1] for weight in (0.0, 1.5))
    assert torch.allclose(found(free).weights, found(guided).weights, atol=1e-12)


def test_who_asks_for_no_weights_pays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("weights that nobody asked for")

    monkeypatch.setattr("dllm.loop.extras.capture.attention_weights", never)
    monkeypatch.setattr("dllm.models.network.memory.Memory.reader", property(lambda _: None))
    for cache in (NoCache(), Dual()):
        for _, turn in play(Parts(Confidence(), Fixed(8), cache, FullLength()), "tiny-llada", requests()):
            assert not turn.view.scores.readings


class Outputs(NoCache):
    """A cache that would keep what attention gave, and no keys."""

    traits = NoCache.traits.but(exposes_attention=False)


def check(sampler: Sampler, cache: Cache | None = None) -> None:
    setting = Setting(model("tiny-llada").config, Fixed(8), 16)
    validate(setting, sampler, NoCache() if cache is None else cache, FullLength())


def test_weights_that_cannot_be_had_are_refused() -> None:
    check(Asks())
    words = "^sampler=Asks reads attention weights, and cache=Outputs does not hold the keys .* Use cache=dual.$"
    with pytest.raises(UserError, match=words):
        check(Asks(), Outputs())
    for name in ("compile", "cudagraph", "compile_cudagraph"):
        with pytest.raises(UserError, match=f"^runtime={name} runs .* sampler=Asks reads .* Use runtime=eager"):
            parts = Parts(Asks(), Fixed(8), NoCache(), FullLength())
            Runtime(name).check(parts, model("tiny-llada").config, torch.device("cuda"))


def test_two_sets_of_weights_in_one_forward_are_refused() -> None:
    with pytest.raises(UserError, match="^two parts read attention weights of different layers or rows"):
        check(Twice())


class Twice(Static):
    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=(AttentionMap(1),)), Need(reads=(AttentionMap(2),)))
