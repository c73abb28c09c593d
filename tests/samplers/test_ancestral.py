"""ancestral: the posterior of the uniform process, by Bayes' rule and as diffusers has it, and how it decodes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from harness import DATA

from dllm import UserError
from dllm.parts import (
    Ancestral,
    Canvas,
    Finished,
    Fixed,
    Forward,
    FullLength,
    Ids,
    NoCache,
    Parts,
    Request,
    Sampling,
    Uniform,
    denoise,
    load_model,
    replaced,
    routes,
)
from tests.samplers.game import PROMPT, Game

VOCAB = 5
RECORDED = json.loads((DATA / "ancestral_routes.json").read_text())["cases"]


def by_bayes(now: float, then: float, shown: int, draw: int) -> torch.Tensor:
    """q(x_s | x_t, x_0) over all ids [V], from the two laws of the process."""
    one, survival = torch.eye(VOCAB, dtype=torch.float64), now / then
    forward = survival * one[shown] + (1 - survival) / VOCAB  # q(x_t | x_s), by x_s
    marginal = then * one[draw] + (1 - then) / VOCAB  # q(x_s | x_0)
    joint = forward * marginal
    return joint / joint.sum()


def by_routes(now: float, then: float, shown: int, draw: int) -> torch.Tensor:
    parts = routes(*(torch.tensor(one, dtype=torch.float64) for one in (now, then)), torch.tensor(shown == draw), VOCAB)
    clean, stay, fresh = (float(part / sum(parts)) for part in parts)
    one = torch.eye(VOCAB, dtype=torch.float64)
    return clean * one[draw] + stay * one[shown] + fresh / VOCAB


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_the_routes_add_up_to_the_posterior(steps: int) -> None:
    for at in range(steps):
        for draw in (2, 3):
            now, then = at / steps, (at + 1) / steps
            assert torch.allclose(by_routes(now, then, 3, draw), by_bayes(now, then, 3, draw), atol=1e-15)


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"{case['at']}-of-{case['steps']}-V{case['vocab']}")
def test_the_routes_are_those_of_diffusers(case: dict[str, object]) -> None:
    steps, vocab, at = (int(str(case[name])) for name in ("steps", "vocab", "at"))
    now, then = (torch.tensor(one / steps, dtype=torch.float64) for one in (at, at + 1))
    for name, same in (("same", True), ("other", False)):
        parts = routes(now, then, torch.tensor(same), vocab)
        assert [float(part / sum(parts)) for part in parts] == pytest.approx(case[name], abs=2e-6)


def test_positions_follow_the_posterior() -> None:
    """30,000 positions, of which each shows 3 and draws 2, in the second of four forwards."""
    length, steps = 30_000, 4
    played = Game(replaced(Ancestral(steps), process=Uniform(VOCAB)), length)
    played.turn(0.5, 2)
    shows = played.canvas.show(played.canvas.masked, torch.full_like(played.canvas.tokens, 3))
    played.canvas = shows
    played.turn(0.5, 2)
    assert played.step.shown is not None and not played.step.commit.any()
    counts = played.step.shown[0, PROMPT:].bincount(minlength=VOCAB).double()
    expected = by_bayes(1 / steps, 2 / steps, 3, 2) * length
    assert float(((counts - expected) ** 2 / expected).sum()) < 4 + 5 * 8**0.5


def test_the_last_forward_commits_its_draws_and_no_other_commits() -> None:
    played = Game(replaced(Ancestral([1, 3]), process=Uniform(VOCAB)), 6, rows=2)
    every = [0, 1, 2, 3, 4, 5]
    assert [played.play(0.5, number) for number in (1, 2, 3)] == [[every, []], [[], []], [[], every]]
    assert played.canvas.tokens[:, PROMPT:].tolist() == [[1] * 6, [3] * 6]


def test_a_row_takes_its_steps_and_decodes_alone_as_in_a_batch_with_either_cache() -> None:
    network = load_model(DATA / "models" / "dg_dev", dtype=torch.float64)
    own, seeds = {"steps": [3, 5, 4], "temperature": [1.0, 0.3, 0.0]}, range(3)
    asked = [replace(Request.answer([5, 9, 7][: seed + 1], 16, 1, seed), param_index=seed) for seed in seeds]

    def decoded(batch: list[Request], cache: type) -> dict[int, tuple[list[int], int]]:
        rule, out = replaced(Ancestral(**own), process=Uniform(64)), {}
        parts = Parts(rule, Fixed(8), cache(), FullLength(), Sampling().under(rule))
        with torch.inference_mode():
            forward = Forward.of(network, Ids(None, 1, (1,)), parts)
            for turn in denoise(Canvas.of(batch, 0), forward, parts):
                for row in turn.finished:
                    canvas = turn.candidates
                    answer = canvas.tokens[row, int(canvas.start[row]) : int(canvas.initial_end[row])].tolist()
                    out[int(canvas.seed[row])] = answer, int(turn.view.blocks.turn[row])
        return out

    together = decoded(asked, Finished)
    assert [forwards for _, forwards in together.values()] == sorted(forwards for _, forwards in together.values())
    assert {seed: forwards for seed, (_, forwards) in together.items()} == {0: 6, 1: 10, 2: 8}
    assert together == decoded(asked, NoCache)
    assert all(decoded([one], Finished)[one.seed] == together[one.seed] for one in asked)


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(UserError, match=r"sampler\.steps=0 must be at least 1"):
        Ancestral(0)
    with pytest.raises(UserError, match=r"sampler\.temperature=-1 must be at least 0"):
        Ancestral(temperature=-1)
