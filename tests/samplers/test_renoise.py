"""renoise: temperatures, acceptance by entropy, what is shown, and when a block is committed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from harness import DATA

from dllm import UserError, part
from dllm.parts import Renoise, Sampling, Setting, Step, Uniform, choices, read_model_config, replaced, validate
from tests.samplers.game import PROMPT, Game

LENGTH, VOCAB = 6, 97


def game(rows: int = 1, **options: Any) -> Game:
    return Game(replaced(Renoise(**options), process=Uniform(VOCAB)), LENGTH, rows=rows)


def turn(played: Game, entropy: Any, likeliest: Any, token: Any = 7) -> Step:
    played.turn(0.5, token, entropy=entropy, likeliest=likeliest, first=0.5)
    return played.step


def kept_by_hand(entropy: list[float], bound: float) -> list[int]:
    """By adding up one position after the other, until what lies before it is over the bound."""
    order, total, kept = sorted(range(len(entropy)), key=lambda at: (entropy[at], at)), 0.0, []
    for at in order:
        if total > bound:
            break
        kept.append(at)
        total += entropy[at]
    return sorted(kept)


def test_acceptance_is_that_of_adding_up_by_hand() -> None:
    noise = torch.Generator().manual_seed(2)
    for trial in range(200):
        entropy, bound = (torch.rand(LENGTH, generator=noise).double() ** 3).tolist(), (1e-6, 0.05, 0.3, 9.0)[trial % 4]
        played = game(entropy_bound=bound)
        turn(played, entropy, 3)
        assert played.accepted == kept_by_hand(entropy, bound)


def test_accepted_positions_show_their_draw_and_the_others_fresh_noise() -> None:
    played, process = game(entropy_bound=0.1), Uniform(VOCAB)
    for number in (1, 2, 3):
        draws = [number * 10 + at for at in range(LENGTH)]
        step = turn(played, [0.01, 5.0, 0.02, 5.0, 0.03, 5.0], [50 + number] * LENGTH, draws)
        assert step.shown is not None and not step.commit.any() and played.accepted == [0, 1, 2, 4]
        fresh = process.noise(played.canvas, played.span.turn)
        expected = [draws[at] if at in played.accepted else int(fresh[0, PROMPT + at]) for at in range(LENGTH)]
        assert step.shown[0, PROMPT : PROMPT + LENGTH].tolist() == expected


@pytest.mark.parametrize("stability", [0, 1, 2, 3])
def test_a_block_is_committed_when_its_likeliest_tokens_have_stood_and_are_sure(stability: int) -> None:
    """To the likeliest tokens, which are neither the draws nor what is shown."""
    played, likeliest = game(stability=stability, stop_entropy=0.01), list(range(20, 20 + LENGTH))
    if stability:  # they change in one place: the count begins anew
        assert not turn(played, 0.001, [*likeliest[:-1], 90]).commit.any()
    for _ in range(stability):
        assert not turn(played, 0.001, likeliest).commit.any()
    step = turn(played, 0.001, likeliest)
    assert step.commit[0].nonzero()[:, 0].tolist() == list(range(PROMPT, PROMPT + LENGTH))
    assert step.tokens[0, PROMPT : PROMPT + LENGTH].tolist() == likeliest
    assert step.confidence[0, PROMPT : PROMPT + LENGTH].tolist() == [0.5] * LENGTH


def test_a_mean_entropy_over_the_bound_goes_on_to_the_last_forward() -> None:
    played = game(steps=5, stop_entropy=0.01)
    for _ in range(4):
        assert not turn(played, 0.0101, 3).commit.any()
    assert turn(played, 0.0101, 4).commit.sum() == LENGTH


def test_every_row_has_its_own_parameters() -> None:
    played = game(rows=3, steps=[1, 2, 3], stop_entropy=[9.0, 1e-6, 1e-6], stability=0)
    committed = [turn(played, 0.5, 3).commit.any(1).tolist() for _ in range(3)]
    assert committed == [[True, False, False], [False, True, False], [False, False, True]]


def test_history_begins_anew_with_a_block() -> None:
    played = Game(replaced(Renoise(steps=9, stop_entropy=1.0), process=Uniform(VOCAB)), 2 * LENGTH, LENGTH)
    assert [len(played.turn(0.5, entropy=0.1, likeliest=3, first=0.5)) for _ in range(4)] == [0, LENGTH, 0, LENGTH]


def test_temperatures_fall_from_the_largest_by_equal_parts() -> None:
    played, rule = game(rows=2, steps=[4, 8], t_min=0.4, t_max=[0.8, 1.2]), Renoise()
    for at in range(4):
        blocks = replace(played.span, forwards=torch.tensor([at, 2 * at]))
        found = rule.turn_temperature(blocks, played.state).tolist()
        assert found == pytest.approx([0.4 + 0.4 * (4 - at) / 4, 0.4 + 0.8 * (8 - 2 * at) / 8], rel=1e-15)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 0}, r"sampler\.steps=0 must be at least 1"),
        ({"entropy_bound": 0.0}, r"sampler\.entropy_bound=0\.0 must be at least"),
        ({"stop_entropy": 0.0}, r"sampler\.stop_entropy=0\.0 must be at least"),
        ({"stability": -1}, r"sampler\.stability=-1 must lie in \[0, 64\]"),
        ({"t_min": -0.1}, r"sampler\.t_min=-0\.1 must be at least 0"),
        ({"t_max": float("inf")}, r"sampler\.t_max=inf must lie in \[1e-09, 100\]"),
        ({"t_min": 0.8}, r"sampler\.t_max=0\.8 must be larger than sampler\.t_min=0\.8"),
        ({"t_max": [0.9, 0.3]}, r"sampler\.t_max=\[0\.9, 0\.3\] must be larger"),
    ],
)
def test_what_the_published_loop_refuses_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Renoise(**options)


# -- what goes with it ------------------------------------------------------------------------------------------------

CONFIG = read_model_config(DATA / "models" / "dg_dev")


def fitted(
    sampler: str = "renoise", blocks: Any = 8, cache: str = "none", eos: str = "none", length: int = 16, **more: Any
) -> None:
    """Check parts, by name, against the description of dg_dev, whose canvas has 8 columns."""
    schedule = part("blocks", "fixed", block_length=blocks) if isinstance(blocks, int) else blocks
    rule = part("sampler", sampler)
    sampling = Sampling(**more).under(rule)
    validate(Setting(CONFIG, schedule, length, sampling, "dg_dev"), rule, part("cache", cache), part("eos", eos))


@pytest.mark.parametrize("cache", ["none", "finished"])
@pytest.mark.parametrize("eos", [name for name in choices("eos") if name != "eotp"])
def test_it_goes_with_the_exact_caches_and_every_policy_that_acts_at_the_commit(cache: str, eos: str) -> None:
    fitted(cache=cache, eos=eos)


@pytest.mark.daily(12)
@pytest.mark.parametrize(
    "name", [name for name in choices("sampler") if name not in ("ancestral", "renoise", "oracle", "learn2pd")]
)
def test_every_rule_of_masks_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"sampler={name} decides masks for good.* Use sampler=renoise"):
        fitted(name)
