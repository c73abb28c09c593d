"""The first place where two decodes of one prompt differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dllm import Decoder, load, part
from dllm.parts import Model, Trace, parting, parting_of_rows

ASKED = 'Shuffle the list:\n["Kai", "Emma", "Hugo", "Ida"]'


@pytest.fixture(scope="module")
def model() -> Model:
    return load("mini-llada")


def traced(model: Model, sampler: str, **options: float) -> Trace:
    (result,) = Decoder(model, part("sampler", sampler, **options), gen_length=32)(ASKED, trace=True)
    return result.traced()


def brute(one: Trace, other: Trace) -> tuple[int, int] | None:
    """By the frames alone: the first turn whose commits are others, and the least position of these."""
    sides = [{(row.turn, row.position, row.token) for row in trace.to_frame().itertuples()} for trace in (one, other)]
    apart = sides[0] ^ sides[1]
    if not apart:
        return None
    turn = min(turn for turn, *_ in apart)
    return turn + 1 - min(turn for turn, *_ in sides[0] | sides[1]), min(at for when, at, _ in apart if when == turn)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("confidence", {}), ("eb", {})),
        (("confidence", {}), ("confidence", {"threshold": 0.5})),
        (("static", {}), ("confidence", {})),
        (("static", {}), ("static", {})),
    ],
)
def test_it_is_where_the_frames_differ_first(
    first: tuple[str, dict[str, float]], second: tuple[str, dict[str, float]], model: Model
) -> None:
    one, other = (traced(model, name, **options) for name, options in (first, second))
    found, expected = parting(one, other), brute(one, other)
    assert (found and (found.forward, found.position)) == expected
    if found is None:
        assert first == second
        return
    for known, trace in zip(found.states, (one, other), strict=True):
        frame = trace.to_frame()
        there = frame[(frame.position == found.position) & (frame.turn == frame.turn.min() + found.forward - 1)]
        assert known.does == (
            ("is made to commit" if there.forced.any() else "commits") if len(there) else "waits with"
        )
        if len(there):
            assert (known.confidence, known.entropy) == (there.confidence.iloc[0], there.entropy.iloc[0])


def test_a_decode_that_ends_earlier_parts_there(model: Model) -> None:
    whole = traced(model, "static")
    found = parting(replace(whole, turns=whole.turns[:3]), whole)
    assert found is not None and found.forward == 4 and str(found.states[0]) == "has ended"
    assert found.states[1].does in ("commits", "is made to commit")


def test_results_alone_tell_the_place() -> None:
    assert parting_of_rows([5, 6, 7], [5, 6, 8], ([1, 1, 2], [1, 3, 2])) == (1, 1)  # another forward fixed the second
    assert parting_of_rows([5, 6, 7], [5, 6, 8], ([1, 1, 2], [1, 1, 4])) == (2, 2)
