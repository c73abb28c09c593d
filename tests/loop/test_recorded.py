"""Whole turns recorded: what one replay does is what the loop does, whatever leaves, and whoever decodes beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import permutations, product
from typing import Any
from unittest.mock import patch

import pytest
import torch
from harness import Combination, allowed, forward_of, full, late, model, parts_of, requests, with_mask
from recording import FakeGraph
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dllm import part
from dllm.parts import (
    Canvas,
    Graphs,
    Kernel,
    Parts,
    RecordedTurns,
    Request,
    Runtime,
    Sampling,
    StaticBuffers,
    Turn,
    build_runtime,
    copy_all,
    covering,
    denoise,
    widths_to_record,
)

CACHES = ("none", "prefix", "dual", "window")
SAMPLERS = ("confidence", "localleap", "credit", "eb", "klass", "static", "dream")  # those whose launches are counted
# Every cache, and most samplers; DLLM_LAWS=all takes all pairs.
FEW = [
    *((kv, "confidence") for kv in CACHES),
    ("dual", "localleap"),
    ("prefix", "credit"),
    ("none", "eb"),
    ("prefix", "klass"),
    ("none", "dream"),
]
# Outside a recording: the replay, the copy of what the rows report, and which of them are wide, where that has changed.
LAUNCHES = (2, 3)


made = cache(parts_of)  # a recording belongs to its parts


def turns(
    combination: Combination,
    take: RecordedTurns | None,
    lag: int | None = 1,
    guidance: float = 0.0,
    rows: int = 3,
    batch: Sequence[Request] | None = None,
) -> Iterator[Turn]:
    network, parts = model(combination.model), made(combination)
    forward = forward_of(network, parts, Sampling(tempered=parts.sampler.traits.tempered, guidance=guidance))
    batch = requests()[3 - rows :] if batch is None else batch
    canvas = Canvas.of([with_mask(one, network.config.mask_id or 0) for one in batch], network.config.pad_id or 0)
    with torch.inference_mode():
        yield from denoise(canvas, forward, parts, lag, take)


def decoded(running: Iterator[Turn]) -> dict[int, tuple[list[int], int, list[int]]]:
    """Of every request: its canvas, its acting forwards, the turn that fixed each position."""
    out = {}
    for turn in running:
        for row in turn.finished:
            candidates = turn.candidates
            out[int(candidates.row_id[row])] = (
                candidates.tokens[row].tolist(),
                int(turn.view.blocks.turn[row]),
                turn.ledger.commit_turn[row].tolist(),
            )
    return out


def combination(sampler: str, kv: str, name: str = "tiny-llada", eos: str = "none") -> Combination:
    return Combination(sampler, "whole" if kv == "window" else "fixed", kv, eos, name)


def pair(kv: str, sampler: str) -> Combination:
    return combination(sampler, kv, "tiny-dream" if sampler == "credit" else "tiny-llada", "fill_after_block")


# klass, which follows all masks of the canvas, is refused where a forward does not score them.
PAIRS = [one for one in product(CACHES, SAMPLERS) if allowed(pair(*one))] if full() else FEW


@cache  # two tests ask it
def recorder(case: Combination) -> tuple[RecordedTurns, list[str]]:
    """And what its graphs did."""
    log: list[str] = []
    return RecordedTurns(model(case.model), lambda: FakeGraph(log)), log


@pytest.mark.daily(3)
# By pair, so that one process makes a pair's recordings once.
@pytest.mark.parametrize(("kv", "sampler"), PAIRS, scope="module")
def test_replays_are_turns(kv: str, sampler: str) -> None:
    case = pair(kv, sampler)
    take, log = recorder(case)
    expected = decoded(turns(case, None, None))
    for lag in (0, late(kv), late(kv)):
        assert decoded(turns(case, take, lag)) == expected
    before = log.count("record")
    assert decoded(turns(case, take, late(kv))) == expected
    assert log.count("record") == before < log.count("replay"), "what was recorded serves the next decode"


class Launches(TorchDispatchMode):
    """Counts operations that a GPU would launch: all but views, and memory that is only set aside."""

    FREE = ("view", "expand", "slice", "select", "transpose", "t", "unsqueeze", "squeeze", "alias", "detach", "empty",
            "as_strided", "unbind", "split", "permute", "_unsafe_view", "new_empty", "empty_like", "lift_fresh",
            "detach_", "unsafe_split", "reshape", "numpy_T", "resolve_conj", "resolve_neg")  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = function.overloadpacket.__name__
        if name not in self.FREE:
            self.count += 1
        return function(*args, **(kwargs or {}))


def launches_of(case: Combination, take: RecordedTurns | None) -> list[int]:
    """Launches of each turn; a replay is one."""
    replay, found, running = FakeGraph.replay, list[int](), turns(case, take, late(case.cache))
    counter = Launches()

    def once(graph: FakeGraph) -> None:
        before = counter.count
        replay(graph)
        counter.count = before + 1

    with patch.object(FakeGraph, "replay", once), counter:
        for _ in running:
            found.append(counter.count)
            counter.count = 0
    return found


@pytest.mark.daily(4)
@pytest.mark.parametrize(("kv", "sampler"), PAIRS, scope="module")
def test_few_launches_are_left_to_the_host(kv: str, sampler: str) -> None:
    """In all turns but those that follow upon rows that left: these lay out the others anew."""
    case = pair(kv, sampler)
    take, _ = recorder(case)
    for _ in range(2):  # what is met once is not recorded yet
        decoded(turns(case, take, late(kv)))
    plain, recorded = launches_of(case, None), launches_of(case, take)
    assert len(recorded) == len(plain)
    assert sorted(recorded)[len(recorded) // 2] in LAUNCHES and max(LAUNCHES) < min(plain)


@torch.inference_mode()
def test_two_decodes_at_once_have_grounds_of_their_own() -> None:
    for kv in ("none", "dual"):
        case = combination("confidence", kv)
        take, expected = RecordedTurns(model(case.model), lambda: FakeGraph([])), decoded(turns(case, None, None))
        decoded(turns(case, take))
        running = [turns(case, take), turns(case, take)]
        out: list[list[Turn]] = [[], []]
        found: list[Any] = [{}, {}]
        while any(one is not None for one in running):
            for number, one in enumerate(running):
                turn = None if one is None else next(one, None)
                if turn is None:
                    running[number] = None  # type: ignore[call-overload]
                    continue
                found[number] |= decoded(iter([turn]))
        assert found == [expected, expected] and out == [[], []]
        assert len(take.owners) == 2


def test_widths_that_serve_a_turn() -> None:
    """By hand: each row fits, and the columns are at most a quarter more than those that are needed."""
    known = [(0, (64, 32, 32)), (0, (64, 64, 32)), (0, (128, 32, 32)), (1, (64, 32, 16))]
    assert covering(known, 0, (64, 32, 16), 1.25) == (64, 32, 32)
    assert covering(known, 0, (64, 48, 16), 1.25) == (64, 64, 32)
    assert covering(known, 0, (96, 32, 16), 1.25) is None and covering(known, 0, (96, 32, 16), 2.0) == (128, 32, 32)
    assert covering(known, 0, (64, 33, 33), 2.0) is None
    assert widths_to_record((48, 48, 16), 1000) == (48, 48, 16) and widths_to_record((100, 100, 60), 1000) == (
        128,
        128,
        64,
    )
    assert widths_to_record((100, 100, 60), 110) == (110, 110, 64)


@pytest.mark.daily(1)
@pytest.mark.parametrize("kv", ["dual", "prefix", "window"])
def test_rows_that_change_places_share_recordings(kv: str) -> None:
    """Prompts of three lengths in six orders: which row opens its block is no part of a recording. Decoding them in one
    order and in all makes fewer than twice the recordings; it was four times with a key of rows in order."""
    case = combination("confidence", kv, eos="fill_after_block")
    expected, log = decoded(turns(case, None, None)), list[str]()
    take = RecordedTurns(model(case.model), lambda: FakeGraph(log))
    for _ in range(2):
        assert decoded(turns(case, take, late(kv))) == expected
    made = log.count("record")
    for order in permutations(requests()):
        assert sorted(decoded(turns(case, take, late(kv), batch=order)).values()) == sorted(expected.values())
    assert log.count("record") < 2 * made


@pytest.mark.parametrize("kv", ["dllm_cache", "elastic"])
def test_recording_a_turn_puts_back_what_a_forward_compares(kv: str) -> None:
    """A recording runs its turn twice before it is replayed. The second time every row would be as it was last."""
    case, log = combination("confidence", kv, eos="fill_after_block"), list[str]()
    take, expected = RecordedTurns(model(case.model), lambda: FakeGraph(log)), decoded(turns(case, None, None))
    made = list[int]()
    for _ in range(3):
        assert decoded(turns(case, take, 0)) == expected and take.recorded
        made.append(log.count("record"))
    assert made[1] == made[2], "what was recorded serves the next decode"


def test_guidance_and_temperature_are_recorded() -> None:
    case = combination("confidence", "dual")
    expected = decoded(turns(case, None, None, 1.5))
    take = RecordedTurns(model(case.model), lambda: FakeGraph([]))
    for _ in range(2):
        assert decoded(turns(case, take, 1, 1.5)) == expected
    assert take.recorded


@pytest.mark.skipif(not full(), reason="9 s in the interpreter: DLLM_LAWS=all runs it")
def test_kernels_of_ours_are_recorded_in_whole_turns() -> None:
    pytest.importorskip("triton")
    case, network = combination("confidence", "dual"), model("tiny-llada")
    expected = decoded(turns(case, None, None, rows=1))
    take = RecordedTurns(network, lambda: FakeGraph([]))
    network.use_kernels(True)
    try:
        assert decoded(turns(case, take, rows=1)) == expected
    finally:
        network.use_kernels(False)
    launches = [call for one in take.recorded.values() for call in one.recording.calls]  # type: ignore[attr-defined]
    assert any(getattr(call.function, "func", None) is Kernel._launch for call in launches)


def test_a_tensor_taken_over_in_another_place_is_copied_first() -> None:
    there = [torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([3.0])]
    ground, fresh = StaticBuffers([], there, torch.zeros(1)), torch.tensor([9.0])
    ground.copy_in([fresh, there[0], there[2]])
    assert [float(one) for one in there] == [9.0, 1.0, 3.0]
    copy_all(there, [torch.ones(1), torch.ones(1), torch.ones(1)])
    assert all(float(one) == 1 for one in there)


def test_a_recording_belongs_to_its_parts() -> None:
    take = RecordedTurns(model("tiny-llada"), lambda: FakeGraph([]))
    next(turns(combination("confidence", "dual"), take))
    with pytest.raises(AssertionError, match="one setting"):
        next(turns(combination("static", "dual"), take))


def test_rules_that_ask_record_forwards_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dllm.loop.runtime.graphs.Recorder", lambda device: FakeGraph)
    monkeypatch.setattr("dllm.loop.recorded.Recorder", lambda device: FakeGraph)
    network, runtime = model("tiny-llada"), Runtime("cudagraph")
    rule, asking = part("sampler", "confidence"), part("sampler", "confidence")
    asking.traits = asking.traits.but(syncs=True)
    parts = Parts(rule, part("blocks", "fixed"), part("cache", "none"), part("eos", "none"))
    runs, take = build_runtime(runtime, network, replace(parts, sampler=asking))
    assert isinstance(runs, Graphs) and not isinstance(take, RecordedTurns)
    runs, take = build_runtime(runtime, network, parts)
    assert runs is network and isinstance(take, RecordedTurns)


def test_what_a_turn_holds_lasts_until_the_next() -> None:
    """So the count of decisions copies what it keeps."""
    case = combination("confidence", "none")
    take = RecordedTurns(model(case.model), lambda: FakeGraph([]))
    decoded(turns(case, take))
    kept: list[tuple[Tensor, Tensor]] = [
        (turn.candidates.tokens, turn.candidates.tokens.clone()) for turn in turns(case, take)
    ]
    assert any(not torch.equal(one, copy) for one, copy in kept[:-1])
