"""slowfast: horizons, spans, and what each phase commits, by hand."""

from __future__ import annotations

import pytest
from harness import Combination, parts_of

from dllm import UserError
from dllm.parts import Sampler, SlowFast
from tests.samplers.game import PROMPT, Game, positions


def announced(game: Game) -> list[int]:
    return positions(game.step.next_positions > 0)[0]


def at(length: int, sure: dict[int, float]) -> list[float]:
    """Confidences, 0.1 where none is given."""
    return [sure.get(place, 0.1) for place in range(length)]


def test_a_span_ends_where_horizons_agree() -> None:
    """Horizons 6 and 6 settle the span; the fast phase looks at columns before 6 alone, and announces them."""
    game = Game(SlowFast(explore=2), 8)
    assert game.turn(at(8, {0: 0.8, 5: 0.35, 7: 0.2})) == [0] and game.accepted == []
    assert game.turn(at(8, {1: 0.95, 7: 0.92, 5: 0.35})) == [1, 7] and game.accepted == [1, 7]
    assert int(game.state["settled"][0]) == 0  # column 7 was sure: horizons 6 and 8 deviate by 1
    assert int(game.state["span"][0]) == 7 and announced(game) == []
    assert game.turn(at(8, {6: 0.95, 3: 0.91, 2: 0.5})) == [3, 6]
    assert announced(game) == [0, 1, 2, 3, 4, 5, 6]  # the next forward may be cut after column 6
    assert game.turn(at(8, {2: 0.95})) == [2] and game.accepted == [2]
    assert [game.turn(at(8, {4: 0.3})), game.turn(at(8, {}))] == [[4], [5]]


def test_a_cycle_begins_where_the_last_span_ended() -> None:
    game = Game(SlowFast(explore=1, window=1), 6)
    assert game.turn(at(6, {1: 0.4})) == [1] and int(game.state["span"][0]) == 2
    assert game.turn(at(6, {4: 0.8, 0: 0.2})) == [0]  # fast, inside the span
    assert game.turn(at(6, {})) == [2] and int(game.state["done"][0]) == 2 and int(game.state["span"][0]) == 3
    assert game.turn(at(6, {5: 0.3})) == [5] and int(game.state["done"][0]) == 3  # the span was full: no fast forward
    assert game.turn(at(6, {})) == [3] and announced(game) == [3, 4, 5]


@pytest.mark.parametrize(("stops", "turns"), [(False, 4), (True, 2)])
def test_the_paper_ends_a_slow_phase_once_it_is_stable(stops: bool, turns: int) -> None:
    game, slow = Game(SlowFast(explore=4, stop_when_stable=stops), 9), 0
    while int(game.state["cycle"][0]) < 4:
        game.turn(at(9, {6: 0.5}))
        game.canvas = game.canvas.remask(game.step.commit, 60)  # the same view again
        slow += 1
    assert slow == turns and int(game.state["span"][0]) == 7


def test_rows_are_in_phases_of_their_own_and_blocks_begin_anew() -> None:
    game = Game(SlowFast(explore=1, window=1), 6, block=3, rows=2)
    assert game.play([at(6, {0: 0.95, 1: 0.95, 2: 0.95}), at(6, {0: 0.5})]) == [[0, 1, 2], [0]]
    assert [int(one) for one in game.state["cycle"]] == [0, 1]  # the first row has opened its next block
    assert game.play([at(6, {4: 0.9, 5: 0.9}), at(6, {2: 0.8, 1: 0.3})]) == [[4, 5], [2]]
    assert int(game.span.begin[0]) == PROMPT + 3 and int(game.span.begin[1]) == PROMPT


def test_schedules_that_move_blocks_are_refused() -> None:
    for blocks in ("sliding", "tccf"):
        with pytest.raises(UserError, match=f"^sampler=slowfast fills a block .* blocks={blocks} .*blocks=fixed.$"):
            parts_of(Combination("slowfast", blocks))
    for options in ({"explore": 0}, {"window": 0}, {"low": 1.5}, {"deviation": -1.0}):
        with pytest.raises(UserError, match=f"^sampler.{next(iter(options))}="):
            SlowFast(**options)  # type: ignore[arg-type]
    assert isinstance(SlowFast(), Sampler)
