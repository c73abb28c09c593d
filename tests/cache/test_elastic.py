"""Elastic-Cache runs all layers before it asks which rows have drifted: nothing but what is computed changes by it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from harness import forward_of, model, requests
from recording import FakeGraph
from torch import Tensor

from dllm.common import debug
from dllm.parts import (
    AttentionMap,
    Cache,
    Canvas,
    Elastic,
    FullLength,
    HiddenState,
    HostReport,
    KeptRows,
    Need,
    NoCache,
    Parts,
    RecordedTurns,
    Sampling,
    SplitTurn,
    Static,
    Turn,
    Whole,
    WholeRows,
    denoise,
)

ASKED = AttentionMap(4, received=True)
DRIFTING = {"window_length": 4, "gamma": 0.985, "track_num": 2}


class Reads(Static):
    """One token a turn; it reads attention and hidden states of all layers."""

    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=(ASKED, *(HiddenState(layer) for layer in (0, 1, 2, -1, None)))),)


def play(name: str, cache: Cache, guidance: float = 0.0) -> Iterator[Turn]:
    """Six turns of three unequal rows."""
    network, sampling = model(name), Sampling(guidance=guidance)
    parts = Parts(Reads(), Whole(), cache, FullLength(), sampling)
    with torch.inference_mode():
        yield from islice(denoise(Canvas.of(requests(), 61), forward_of(network, parts, sampling), parts), 6)


def said(turn: Turn) -> dict[str, Any]:
    """What a turn decodes, counts and reads."""
    scores, cost, length = turn.view.scores, turn.cost, len(turn.canvas.columns)
    weights = scores.of(ASKED)
    read = {str(layer): scores.of(HiddenState(layer)).spread(length)[scores.scored] for layer in (0, 1, 2, -1, None)}
    return {
        "tokens": turn.candidates.tokens,
        "queries": cost.queries,
        "keys": cost.keys,
        "scored": cost.scored,
        "refreshed": cost.refreshed,
        "columns": weights.columns,
        "weights": weights.weights,
        "received": weights.received,
        **read,
    }


@pytest.mark.parametrize(("name", "guidance"), [("tiny-llada", 0.0), ("tiny-dream", 0.5)])
def test_it_is_found_the_same_whenever_the_host_asks(name: str, guidance: float) -> None:
    """``ask_every=1`` is the published order: test a layer, then widen the next."""
    turns = [
        [said(turn) for turn in play(name, Elastic(**DRIFTING, ask_every=layers), guidance)] for layers in (1, 3, None)
    ]
    mixed = [one["queries"] for one in turns[0] if bool((one["queries"] > one["queries"].amin(1, keepdim=True)).any())]
    assert mixed, "no row drifted within the network"
    for layerwise, *others in zip(*turns, strict=True):
        for other in others:
            for key, value in layerwise.items():
                torch.testing.assert_close(other[key], value, rtol=1e-9, atol=1e-9, msg=key)


@pytest.mark.parametrize(("trigger", "most"), [("same_step", 1), ("next_step", 0)])
def test_questions_of_a_turn_in_fixed_shapes(trigger: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Besides the report of the turn: which rows have drifted in it, or nothing, as the turn before has said it."""
    monkeypatch.setattr(debug, "ON", False)
    plain, asked, found = Tensor.tolist, list[str](), list[int]()

    def tolist(tensor: Tensor) -> Any:
        asked.append(sys._getframe(1).f_code.co_name)
        return plain(tensor)

    monkeypatch.setattr(Tensor, "tolist", tolist)
    parts = Parts(Static(), Whole(), Elastic(**DRIFTING, trigger=trigger), FullLength())
    canvas, forward = Canvas.of(requests(), 61), forward_of(model("tiny-llada"), parts, Sampling())
    with torch.inference_mode():
        for _ in islice(denoise(canvas, forward, parts, 0), 6):
            found.append(asked.count("answer"))
            assert asked.count("read") <= 1 and {*asked} <= {"answer", "read"} or not found[:-1]
            asked.clear()
    assert max(found) == most


def test_the_usual_way_is_launched_before_the_host_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn without drift replays both parts and then reads; one with drift replays another second part after it."""
    network, noted = model("tiny-llada"), [""]
    read, replay, turn = HostReport.read_row, FakeGraph.replay, SplitTurn.replay

    def noting(mark: str, own: Any) -> Any:
        def call(one: Any, *more: Any) -> Any:
            noted.append("") if mark == "turn" else noted.append(noted.pop() + mark)
            return own(one, *more)

        return call

    monkeypatch.setattr(HostReport, "read_row", noting(" read", read))
    monkeypatch.setattr(FakeGraph, "replay", noting(" replay", replay))
    monkeypatch.setattr(SplitTurn, "replay", noting("turn", turn))
    parts = Parts(Static(), Whole(), Elastic(4, 0.96, 2), FullLength())  # 3 of 24 turns drift
    played = list[list[list[int]]]()
    take = RecordedTurns(network, lambda: FakeGraph([]))
    with torch.inference_mode():
        for lag, taking in ((None, None), (1, take), (1, take), (1, take)):
            turns = denoise(Canvas.of(requests(), 61), forward_of(network, parts, Sampling()), parts, lag, taking)
            ends = {
                int(one.candidates.row_id[row]): one.candidates.tokens[row] for one in turns for row in one.finished
            }
            played.append([ends[row].tolist() for row in sorted(ends)])
    assert played[1:] == played[:1] * 3
    assert {" replay replay read", " replay replay read replay"} <= {*noted}, "both ways were met"


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
def test_what_runs_again_from_the_first_layer_on_is_what_no_cache_computes(name: str) -> None:
    """Tokens, attention and the hidden states of every layer, in a batch of unequal rows."""
    for again, plain in zip(*(play(name, kv) for kv in (Elastic(64, first_layer=0), NoCache())), strict=True):
        one, other, scored = said(again), said(plain), again.view.scores.scored
        assert torch.equal(one["tokens"], other["tokens"]) and torch.equal(scored, plain.view.scores.scored)
        for key in ("weights", "0", "1", "2", "-1", "None"):
            torch.testing.assert_close(one[key], other[key], rtol=1e-9, atol=1e-9, msg=key)


def test_a_row_begins_with_what_is_kept_of_the_layer_that_it_runs_from() -> None:
    """Rows whose bound is this layer or a later one take what entered it when they last ran it; the others what is
    new."""
    kept, layer = KeptRows(3), 2
    for number in range(layer + 1):
        kept.put(number, torch.full((4, 3, 1), -1.0), None)
    rows: Any = object.__new__(WholeRows)
    rows.session, rows.gathered, rows.rerun = SimpleNamespace(kept={"inputs": kept}), 0, None
    rows.first = SimpleNamespace(copies=lambda numbers, device: numbers)
    rows.bound = torch.tensor([layer - 2, layer - 1, layer, layer + 1])
    hidden, _ = rows.enter(layer, torch.ones(4, 3, 1), None)
    assert hidden[:, 0, 0].tolist() == [1, 1, -1, -1]
    assert kept.layers[layer][:, 0, 0].tolist() == [1, 1, -1, -1]
