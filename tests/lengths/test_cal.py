"""The search for the size of a gap, against a table of values, and on a model."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from dllm import Decoder, load, part
from dllm.parts import Cal, Model, UserError


def found(rule: Cal, values: dict[int, float], most: int = 1000) -> tuple[int, list[int]]:
    """The size that a search finds, and the sizes that it tries."""
    search, tried = rule.search(most), []
    size = next(search)
    while True:
        tried.append(size)
        try:
            size = search.send(values[size])
        except StopIteration as end:
            return end.value, tried


@pytest.mark.parametrize(
    ("values", "best", "tried"),
    [
        ({3: 5, 4: 6, 5: 6, 2: 9, 1: 9}, 2, [3, 4, 5, 2, 1]),  # an equal value is a miss
        ({3: 5, 4: 4, 2: 6, 1: 7}, 1, [3, 4, 2, 1]),
        ({3: 9, 4: 4, 2: 6}, 3, [3, 4, 2]),
        ({3: 5, 4: 6, 5: 7, 6: 1, 2: 6}, 5, [3, 4, 5, 6, 2]),  # down is tried after a rise, too
    ],
)
def test_one_miss_ends_a_direction_and_both_are_tried(values: dict[int, float], best: int, tried: list[int]) -> None:
    assert found(Cal(begin=3, misses=1, bias=False), values) == (best, tried)


def test_misses_count_anew_on_the_way_down_and_after_a_better_one() -> None:
    values = {5: 5.0, 6: 4, 7: 6, 8: 1, 9: 1, 4: 1, 3: 7, 2: 1, 1: 1}
    assert found(Cal(begin=5, limit=20, misses=2, bias=False), values) == (3, [5, 6, 7, 8, 9, 4, 3, 2, 1])


@pytest.mark.parametrize("seed", range(5))
def test_the_bias_divides_by_the_general_fall(seed: int) -> None:
    draw = random.Random(seed)
    sure = {size: draw.random() for size in range(1, 12)}
    fall = {size: math.exp(-1.77 * size) + 0.56 * math.exp(-0.06 * size) + 0.24 for size in sure}
    weighed = {size: sure[size] / fall[size] for size in sure}
    assert found(Cal(11, 4, misses=20), sure)[0] == max(weighed, key=lambda size: weighed[size])


def test_the_search_keeps_to_the_limit_and_to_what_the_model_has_room_for() -> None:
    values = dict.fromkeys(range(1, 20), 1.0) | {size: float(size) for size in range(20)}
    assert found(Cal(limit=9, begin=8, bias=False), values)[0] == 9
    assert found(Cal(limit=9, begin=8, bias=False), values, most=5)[0] == 5


@pytest.fixture(scope="module")
def model() -> Model:
    return load("mini-llada")


PIECES: list[list[str | int | None]] = [
    ['["Emma", "', None, '", "Hugo"]'],
    ['["Kai", "', None, '"]'],
    ['["Ada", "', 1, '"]'],
]
ASKED = 'Shuffle the list:\n["Kai", "Emma", "Hugo"]'


def test_gaps_are_sized_in_a_batch_as_alone_and_their_forwards_count(model: Model) -> None:
    length = part("length", "cal", limit=6, begin=2, misses=2, bias=False)
    assert length is not None
    decoder, alone = Decoder(model, length=length, batch_size=3), Decoder(model, length=length)
    requests = [decoder.infill(pieces, ASKED) for pieces in PIECES]
    for request, result in zip(requests, decoder(requests, trace=True), strict=True):
        own = alone(request, trace=True)[0]
        assert (own.text, own.nfe, own.query_tokens) == (result.text, result.nfe, result.query_tokens)
        sizes = [size for size, _ in result.traced().probes]
        assert [size for size, _ in own.traced().probes] == sizes and (len(sizes) > 2) == (request.gap is not None)
        assert result.nfe == len(result.traced().turns) + len(sizes)
        given = len(request.tokens) - 1
        turns = sum(sum(turn.queries) for turn in result.traced().turns)
        assert result.query_tokens == turns + (sum(given + size for size in sizes) if sizes else 0)


REFUSED: list[tuple[str, list[str | int | None], str]] = [
    ("fixed", ["a", None, "b"], "use length=cal"),
    ("cal", ["a", None, "b", 2], "no other beside it"),
    ("cal", ["a", None, "b", None], "no other beside it"),
]


@pytest.mark.parametrize(("length", "pieces", "words"), REFUSED, ids=["no part", "two gaps", "two unknown"])
def test_gaps_that_cannot_be_sized_are_refused(model: Model, length: str, pieces: Any, words: str) -> None:
    decoder = Decoder(model, length=length)
    with pytest.raises(UserError) as error:
        decoder(decoder.infill(pieces))
    assert words in str(error.value)


def test_options_that_cannot_work_are_refused(model: Model) -> None:
    begins = part("length", "cal", limit=4)
    assert begins is not None
    with pytest.raises(UserError, match="length.begin=8 is more than length.limit=4"):
        Decoder(model, length=begins)
