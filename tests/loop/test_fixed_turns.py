"""A turn of a fixed length does nothing of what changes lengths: it is counted beside a loop that lacks that stage."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from harness import Combination, forward_of, late, model, parts_of, requests
from torch.utils._python_dispatch import TorchDispatchMode

from dllm.parts import (
    Canvas,
    Forward,
    Parts,
    Rows,
    Sampling,
    TakeTurn,
    Turn,
    advance,
    choose_candidates,
    close_turn,
    decide,
    look,
    score_candidates,
    settle,
    take_turn,
    turns,
    write_step,
)
from dllm.parts import start_rows as rows_of

TURNS = 6  # of rows of 16 to 24 columns in blocks of 8: blocks close and open meanwhile
OF_LENGTHS = ("/dllm/parts/lengths/", "/dllm/contract/reshape.py")
Key = tuple[str, str]  # a file and a function, or the name of an operation


class Operations(TorchDispatchMode):
    """Every operation that torch carries out, views and those of the network among them."""

    def __init__(self) -> None:
        super().__init__()
        self.found = Counter[Key]()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.found["", str(function)] += 1
        return function(*args, **(kwargs or {}))


def without_lengths(rows: Rows, forward: Forward, parts: Parts) -> tuple[Rows, Turn]:
    """The loop's turn with no stage of lengths, written out."""
    rows = rows.bounded()
    scored = score_candidates(rows, forward(rows), forward)
    chosen = choose_candidates(rows, scored, parts, forward.shared)
    view = look(rows, chosen, parts, forward.shared)
    decision = decide(rows, chosen, view, parts, forward.vocab)
    canvas = write_step(chosen, decision, parts, forward.ids)
    rows, turn = close_turn(rows, chosen, decision, canvas, parts, forward.ids)
    rows = rows.planned()
    rows, finished = rows.reported(rows.numbers())
    return rows, replace(turn, finished=finished)


# The loop's own functions and the one that takes their place.
OUTER = {function.__code__ for function in (without_lengths, take_turn, advance, settle)}


def counted(take: TakeTurn, combination: Combination, lag: int | None) -> Counter[Key]:
    """Calls of our functions and operations of torch in the first turns of a decode."""
    parts, calls, operations = parts_of(combination), Counter[CodeType](), Operations()
    forward = forward_of(model(combination.model), parts, Sampling())

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            calls[frame.f_code] += 1

    with torch.inference_mode():
        rows = rows_of(Canvas.of(requests(), 61), forward, parts, lag)
        first = islice(turns(rows, forward, parts, take), TURNS)
        sys.setprofile(note)
        try:
            with operations:
                assert sum(1 for _ in first) == TURNS
        finally:
            sys.setprofile(None)
    return operations.found + Counter(
        {
            (code.co_filename, code.co_qualname): count
            for code, count in calls.items()
            if "/dllm/" in code.co_filename and code not in OUTER
        }
    )


def of_lengths(found: Counter[Key]) -> set[str]:
    """What is called of the modules that change lengths."""
    return {name for file, name in found if any(one in file for one in OF_LENGTHS) or name == "Rows.change_lengths"}


@pytest.mark.daily(1)
@pytest.mark.parametrize("lag", [None, 1])
@pytest.mark.parametrize("cache", ["none", "dual"])
def test_a_fixed_turn_does_what_a_loop_without_the_stage_does(cache: str, lag: int | None) -> None:
    combination = Combination("confidence", "fixed", cache, "fill_after_block")
    delay = None if lag is None else late(cache, lag)
    counted(take_turn, combination, delay)  # tables of rotations and masks that later decodes find made
    found, plain = (counted(take, combination, delay) for take in (take_turn, without_lengths))
    assert found == plain
    assert not of_lengths(found)


def test_a_row_that_grows_is_counted() -> None:
    combination = Combination("confidence", "fixed", length="daedal")
    assert {"Rows.change_lengths", "Daedal.change", "reshaped"} <= of_lengths(counted(take_turn, combination, None))


def test_the_stage_is_the_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that asked the part each time would be found."""
    combination = Combination("confidence", "fixed")
    plain = counted(without_lengths, combination, None)
    monkeypatch.setattr("dllm.loop.denoise.settle", asking(settle))
    assert of_lengths(counted(take_turn, combination, None) - plain) == {"Length.waits"}


def asking(settle: Callable[..., Any]) -> Callable[..., Any]:
    def asked(rows: Rows, head: Any, forward: Forward, parts: Parts) -> tuple[Rows, Turn]:
        parts.length.waits(rows.lengths)
        return settle(rows, head, forward, parts)  # type: ignore[no-any-return]

    return asked
