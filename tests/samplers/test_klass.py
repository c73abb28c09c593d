"""klass: confident, and calm for some turns."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dllm.parts import KLASS, divergence
from tests.samplers.game import PROMPT, Game

EASY = [0.97, 0.02, 0.01]
OTHER = [0.01, 0.02, 0.97]
FLAT = [0.4, 0.3, 0.3]


def turn(game: Game, *rows: list[float]) -> list[int]:
    p = torch.tensor([rows], dtype=torch.float64)
    return game.turn(p.amax(-1), p.argmax(-1), logits=p.log())


def test_confident_positions_wait_until_they_are_calm() -> None:
    game = Game(KLASS(0.9, 0.01, history=2), 4)
    rows = [EASY, FLAT, EASY, FLAT]
    assert turn(game, *rows) == [0] and game.accepted == []  # nothing to compare with: the best is forced
    assert turn(game, *rows) == [2] and game.accepted == []  # calm for one turn only
    assert turn(game, *rows) == [1]  # flat ones are never confident


def test_two_calm_turns_are_accepted_together() -> None:
    game = Game(KLASS(0.9, 0.01, history=2), 5)
    rows = [EASY, EASY, EASY, EASY, FLAT]
    assert turn(game, *rows) == [0]
    assert turn(game, *rows) == [1]
    assert turn(game, *rows) == [2, 3] and game.accepted == [2, 3]


def test_a_change_of_mind_starts_the_count_again() -> None:
    game = Game(KLASS(0.9, 0.01, history=1), 4)
    assert turn(game, EASY, EASY, EASY, FLAT) == [0]
    assert turn(game, EASY, EASY, OTHER, FLAT) == [1] and game.accepted == [1]
    assert turn(game, EASY, EASY, OTHER, FLAT) == [2]


def test_the_divergence_is_of_the_new_from_the_old() -> None:
    new, old = torch.tensor(FLAT).double(), torch.tensor(EASY).double()

    def kl(p: Tensor, q: Tensor) -> float:
        return float((p * (p / q).log()).sum())

    assert abs(kl(new, old) - kl(old, new)) > 0.1
    for bar, committed in ((kl(new, old) * 1.01, [1, 2]), (kl(new, old) * 0.99, [2])):
        game = Game(KLASS(0.2, bar, history=1), 3)
        assert turn(game, EASY, EASY, FLAT) == [0]
        assert turn(game, EASY, FLAT, FLAT) == committed


@pytest.mark.parametrize(("since", "third"), [("answer", [2, 3]), ("block", [2])])
def test_histories_begin_with_the_answer_or_with_the_block(since: str, third: list[int]) -> None:
    game = Game(KLASS(0.9, 0.01, history=1, since=since), 4, block=2)
    assert turn(game, EASY, EASY, EASY, EASY) == [0]
    assert turn(game, EASY, EASY, EASY, EASY) == [1] and game.accepted == [1]
    assert turn(game, EASY, EASY, EASY, EASY) == third


def test_a_later_block_waits_for_as_many_forwards_of_its_own_less_one() -> None:
    """As published: its columns have histories, but nothing is ready before forward ``history`` of the block."""
    game = Game(KLASS(0.9, 0.01, history=2), 6, block=2)
    turns = [turn(game, *[EASY] * 6) for _ in range(4)]
    assert turns == [[0], [1], [2], [3]] and game.accepted == [3]


@pytest.mark.parametrize(("strategy", "third"), [("all", [2, 3]), ("max_conf", [3]), ("min_kl", [2])])
def test_of_what_is_ready_all_or_the_surest_or_the_calmest(strategy: str, third: list[int]) -> None:
    game = Game(KLASS(0.9, 0.1, history=1, strategy=strategy), 5)
    assert turn(game, FLAT, FLAT, EASY, EASY, FLAT) == [2]
    game = Game(KLASS(0.9, 0.1, history=1, strategy=strategy), 5)
    game.commit([0, 1])
    turn(game, FLAT, FLAT, EASY, EASY, [0.99, 0.005, 0.005])
    surer = [0.98, 0.01, 0.01]
    assert turn(game, FLAT, FLAT, EASY, surer, FLAT) == third


def test_the_schedule_says_how_many_are_forced() -> None:
    game = Game(KLASS(0.99, 0.01, steps=3), 7)
    rows = [[0.5 - 0.01 * at, 0.3, 0.2 + 0.01 * at] for at in range(7)]
    assert [turn(game, *rows) for _ in range(3)] == [[0, 1, 2], [3, 4], [5, 6]]


def test_a_position_that_was_left_out_for_a_turn_starts_anew() -> None:
    """Caches compute other columns in every turn: what was not scored has nothing to be compared with."""
    game = Game(KLASS(0.9, 0.01, history=1), 4)
    assert turn(game, EASY, FLAT, FLAT, FLAT) == [0]
    p = torch.tensor([[EASY, FLAT, EASY, FLAT]], dtype=torch.float64)
    view = game.view(p.amax(-1), p.argmax(-1), logits=p.log())
    left_out = view.canvas.columns == PROMPT + 2
    scores = replace(
        view.scores, scored=view.scores.scored & ~left_out, committable=view.scores.committable & ~left_out
    )
    state = game.sampler.propose(game.view_of(scores), game.state).state
    game.state = {**game.state, **state}
    assert turn(game, EASY, EASY, EASY, FLAT) == [1] and game.accepted == []  # 1 has moved, 2 was away: 1 is the best
    assert turn(game, EASY, EASY, EASY, FLAT) == [2] and game.accepted == [2]


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float32])
def test_it_keeps_the_block_alone_in_the_models_precision(precision: torch.dtype) -> None:
    noise, seen = torch.Generator().manual_seed(5), []
    game = Game(KLASS(1.0, float("inf"), since="block"), 9, block=3, rows=2)
    for _ in range(4):
        logits = torch.randn(2, 9, 40, generator=noise).to(precision)
        game.play(logits.double().softmax(-1).amax(-1), logits.argmax(-1), logits=logits)
        seen.append(game.state["before"])
    assert all(one.shape == (2, 3, 40) and one.dtype == precision for one in seen)
    assert torch.equal(seen[-1], logits[:, 3:6])  # the second block, which three turns have opened


def test_the_divergence_of_single_precision_is_that_of_double() -> None:
    """One token banned in both, as the mask token is, adds nothing; 1e-6 nats is far below any bar."""
    noise = torch.Generator().manual_seed(3)
    now, before = torch.randn(2, 5, 20_000, generator=noise, dtype=torch.float64) * 4
    now[:, 7] = before[:, 7] = -torch.inf
    p, q = (torch.distributions.Categorical(logits=one) for one in (now, before))
    expected = torch.distributions.kl_divergence(p, q)
    torch.testing.assert_close(divergence(now[None], before[None])[0], expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(divergence(now[None].float(), before[None].float())[0], expected, rtol=1e-5, atol=1e-5)


def test_settled_distributions_keep_their_order() -> None:
    """The likeliest logit moves by 2^-14 to 2^-8, a divergence of 5e-10 to 2e-6 nats; float32 finds -3e-7."""
    now = torch.randn(1, 40, 3_000, generator=torch.Generator().manual_seed(4)).mul(4 * 2**10).round() / 2**10
    one = now.argmax(-1, keepdim=True)
    change = (2.0 ** torch.linspace(-14, -8, 40)).mul(2**16).round()[None] / 2**16  # exact in float32, added up too
    before = now.scatter_add(2, one, change[..., None])
    p, d = now.double().softmax(-1).gather(2, one)[..., 0], change.double()
    exact = torch.log1p(p * torch.expm1(d)) - p * d  # KL(p || q) in closed form where one logit moves by d
    found = divergence(now, before)
    assert torch.equal(found.argsort(), exact.argsort())
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-15)
