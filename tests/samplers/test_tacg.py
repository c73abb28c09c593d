"""tacg: what a token's history lets pass, against the published rules written out number by number."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, exp, log
from typing import Any

import pytest
import torch
from harness import model, requests, results

from dllm import UserError
from dllm.parts import TACG, Fixed, FullLength, Parts, Prefix, gain_over
from tests.samplers.game import PROMPT, Game, positions

LENGTH, BLOCK, VOCABULARY = 8, 4, 5
DEFAULTS: dict[str, Any] = {
    "form": "gate", "threshold": 0.6, "floor": 0.4, "ratio": 0.25, "most": 2, "without_base": True, "streak": 3,
    "escape": 0.8, "bonus": 2.0, "guidance_weight": 0.3, "decay": 0.9, "kl": None, "kl_turns": 1, "history": "block",
}  # fmt: skip


def softmax(logits: list[float]) -> list[float]:
    weights = [exp(one - max(logits)) for one in logits]
    return [one / sum(weights) for one in weights]


class Published:
    """The two released rules, one position after the other, in plain Python."""

    def __init__(self, **options: Any) -> None:
        self.o, self.masks, self.forwards, self.block = {**DEFAULTS, **options}, set(range(LENGTH)), 0, 0
        self.slow: dict[int, list[float]] = {}
        self.last: dict[int, list[float]] = {}
        self.token: dict[int, int] = {}
        self.streak: dict[int, int] = {}
        self.moved: dict[int, list[float]] = {}

    def turn(self, logits: list[list[float]]) -> tuple[list[int], list[int]]:
        """What is committed, and what of it the rule accepted."""
        o, block = self.o, min(self.masks) // BLOCK
        self.forwards = self.forwards + 1 if block == self.block else 1
        self.block, open_ = block, {at for at in self.masks if at // BLOCK == block}
        sure: dict[int, float] = {}
        score: dict[int, float] = {}
        for at in self.masks if o["history"] == "answer" else open_:
            sure[at], gain = self.look(at, logits[at])
            score[at] = sure[at] + o["bonus"] * gain
        gate = o["form"] == "gate"
        base, near = self.gate(sure, open_) if gate else self.no_gate(sure, open_)
        budget = min(o["most"], ceil(o["ratio"] * max(len(base), 1))) if base or o["without_base"] else 0
        ready = base | set(sorted(near, key=lambda at: (-score[at], at))[:budget])
        escaped = {at for at in open_ if sure[at] >= o["escape"]}
        passed = {at for at in ready if self.streak[at] >= o["streak"]} | (ready & escaped) if gate else ready | escaped
        ranked = score if gate else sure
        commit = passed or {max(ready or open_, key=lambda at: (ranked[at], -at))}
        self.masks -= commit
        return sorted(commit), sorted(passed)

    def gate(self, sure: dict[int, float], open_: set[int]) -> tuple[set[int], set[int]]:
        o = self.o
        calm = {
            at
            for at in open_
            if o["kl"] is None
            or (
                self.forwards >= o["kl_turns"]
                and len(self.moved[at]) >= o["kl_turns"]
                and all(kl < o["kl"] for kl in self.moved[at][-o["kl_turns"] :])
            )
        }
        base = {at for at in calm if sure[at] > o["threshold"]}
        return base, {at for at in calm if o["floor"] < sure[at] <= o["threshold"]}

    def no_gate(self, sure: dict[int, float], open_: set[int]) -> tuple[set[int], set[int]]:
        o = self.o
        base = {at for at in open_ if sure[at] >= o["threshold"]}
        return base, {at for at in open_ - base if sure[at] >= o["floor"] and self.streak[at] >= o["streak"]}

    def look(self, at: int, z: list[float]) -> tuple[float, float]:
        """Confidence and gain, and the histories one forward on."""
        o, p = self.o, softmax(z)
        v = p.index(max(p))
        u, last = self.slow.get(at, z), self.last.get(at, [0.0] * VOCABULARY)
        guided = softmax([b + (1 + o["guidance_weight"]) * (a - b) for a, b in zip(z, u, strict=True)])
        gain = guided[v] - softmax(u)[v] if o["form"] == "gate" else p[v] - last[v]
        kl = sum(a * (log(a + 1e-12) - log(b + 1e-12)) for a, b in zip(p, last, strict=True))
        self.moved.setdefault(at, []).append(kl)
        self.streak[at] = self.streak.get(at, 0) + 1 if self.token.get(at) == v else 1
        self.slow[at] = [o["decay"] * b + (1 - o["decay"]) * a for a, b in zip(z, u, strict=True)]
        self.last[at], self.token[at] = p, v
        return p[v], max(0.0, gain)


def drifting(seed: int) -> Iterator[torch.Tensor]:
    """Logits [LENGTH, VOCABULARY] that settle over time, each position with its own doubts."""
    noise = torch.Generator().manual_seed(seed)
    home = torch.randn(LENGTH, VOCABULARY, generator=noise, dtype=torch.float64) * 2
    while True:
        yield home + torch.randn(home.shape, generator=noise, dtype=torch.float64) * 0.5


def turn(game: Game, logits: torch.Tensor) -> list[int]:
    first, token = logits.softmax(-1).max(-1)
    return game.turn(first, token, logits=logits[None].expand(len(game.canvas.tokens), -1, -1))


CASES: dict[str, dict[str, Any]] = {
    "gate": {},
    "answer": {"history": "answer"},
    "calm": {"kl": 0.3, "kl_turns": 2, "escape": 1.0},
    "calm-answer": {"kl": 0.3, "history": "answer"},
    "no-gate": {"streak": 1},
    "no-bonus": {"bonus": 0.0},
    "no-extras": {"most": 0},
    "base-first": {"without_base": False},
    "extras": {"form": "extras", "floor": 0.3},
    "extras-many": {"form": "extras", "streak": 2, "ratio": 0.75, "floor": 0.1, "escape": 0.5},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_it_commits_what_the_published_rule_commits(options: dict[str, Any]) -> None:
    accepted, turns = 0, 0
    for seed in range(6):
        rule, game = Published(**options), Game(TACG(**{**DEFAULTS, **options}), LENGTH, BLOCK)
        for logits in drifting(seed):
            commit, passed = rule.turn(logits.tolist())
            assert turn(game, logits) == commit
            assert game.accepted == passed
            accepted, turns = accepted + len(passed), turns + 1
            if not rule.masks:
                break
    assert accepted > 6 and turns < 6 * LENGTH


def test_every_option_of_these_cases_changes_a_decode() -> None:
    """Else the test above would not show it."""
    decodes = {}
    for name, options in CASES.items():
        commits = []
        for seed in range(6):
            rule = Published(**options)
            for logits in drifting(seed):
                commits.append(rule.turn(logits.tolist()))
                if not rule.masks:
                    break
        decodes[name] = str(commits)
    assert len(set(decodes.values())) == len(decodes)


SURE, OTHER = [3.0, 0.0, 0.0], [0.0, 3.0, 0.0]  # 0.909


def rows(*logits: list[float]) -> torch.Tensor:
    return torch.tensor(logits, dtype=torch.float64)


def test_a_changed_mind_starts_the_streak_again() -> None:
    game = Game(TACG(streak=3, bonus=0.0, floor=0.9), 4)
    turns = [turn(game, rows(SURE, SURE, SURE, SURE))]
    turns += [turn(game, rows(SURE, SURE, now, SURE)) for now in (SURE, OTHER)]
    assert turns == [[0], [1], [3]] and game.accepted == [3]
    assert turn(game, rows(SURE, SURE, OTHER, SURE)) == [2] and game.accepted == []


def test_a_position_that_a_cache_left_out_keeps_its_history() -> None:
    game = Game(TACG(streak=2, bonus=0.05, floor=0.9), 3)
    assert turn(game, rows(SURE, SURE, SURE)) == [0] and game.accepted == []
    view = game.view(0.909, 0, logits=rows(SURE, OTHER, SURE)[None])
    hidden = view.canvas.columns == PROMPT + 1
    scores = view.scores
    known = {name: getattr(scores, name) & ~hidden for name in ("scored", "committable")}
    step = game.sampler.propose(game.view_of(type(scores)(**{**vars(scores), **known})), game.state)
    assert positions(step.commit) == [[2]]
    game.state = {**game.state, **step.state}
    game.canvas = game.canvas.commit(step.commit, step.tokens)
    assert turn(game, rows(SURE, SURE, SURE)) == [1] and game.accepted == [1]


def test_what_is_committed_and_taken_back_begins_anew() -> None:
    game = Game(TACG(streak=1, bonus=0.0), 3)
    assert turn(game, rows(SURE, SURE, SURE)) == [0, 1, 2]
    assert int(game.state["streak"].max()) == 0


def test_without_bonus_and_divergences_it_keeps_three_numbers_a_position() -> None:
    assert not any(need.reads for need in TACG(bonus=0.0).needs())
    game = Game(TACG(bonus=0.0), LENGTH, BLOCK)
    turn(game, next(drifting(0)))
    own = {name: value.shape for name, value in game.state.items() if value.dim() > 1}
    assert own == dict.fromkeys(("token", "streak", "calm"), (1, BLOCK))
    for options, name in (({}, "slow"), ({"form": "extras"}, "before"), ({"bonus": 0.0, "kl": 1.0}, "before")):
        game = Game(TACG(**options), LENGTH, BLOCK)
        turn(game, next(drifting(0)).float())
        assert game.state[name].shape == (1, BLOCK, VOCABULARY) and game.state[name].dtype == torch.float32


def test_a_token_that_a_constraint_bans_for_a_turn_gains_nothing_of_it() -> None:
    inf = torch.inf
    slow = torch.tensor([[[0.0, -inf, 1.0], [-inf, -inf, 0.0], [0.0, 1.0, -inf]]])
    now = torch.tensor([[[0.0, 9.0, 1.0], [0.0, -inf, -inf], [-inf, 1.0, -inf]]])
    gain = gain_over(slow, now, torch.tensor([[2, 0, 1]]), 0.3)
    torch.testing.assert_close(gain, torch.tensor([[0.0, 0.0, 1 - exp(1) / (1 + exp(1))]]).double())


@pytest.mark.parametrize(
    ("name", "options"),
    [("tiny-llada", {"history": "answer", "kl": 0.1}), ("tiny-dream", {"history": "answer", "form": "extras"})],
)
def test_a_row_alone_has_the_history_that_it_has_in_a_batch(name: str, options: dict[str, Any]) -> None:
    parts = Parts(TACG(streak=2, **options), Fixed(6), Prefix(), FullLength())
    together = results(model(name), parts, requests())
    for row, one in zip(requests(), together, strict=True):
        (alone,) = results(model(name), parts, [row])
        assert (alone.canvas, alone.turns, alone.nfe) == (one.canvas, one.turns, one.nfe)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"form": "dream"}, "sampler.form='dream' must be one of gate, extras"),
        ({"history": "row"}, "sampler.history='row' must be one of block, answer"),
        ({"threshold": 0.7}, "sampler.floor=0.8 must not exceed sampler.threshold=0.7"),
        ({"escape": 1.5}, r"sampler.escape=1.5 must lie in \[0, 1\]"),
        ({"decay": -1}, r"sampler.decay=-1 must lie in \[0, 1\]"),
        ({"most": -1}, "sampler.most=-1 must be at least 0. 0 means no extras"),
        ({"streak": 0}, "sampler.streak=0 must be at least 1"),
        ({"bonus": -0.5}, "sampler.bonus=-0.5 must be at least 0"),
        ({"kl": -1.0}, "sampler.kl=-1.0 must be at least 0"),
        ({"form": "extras", "kl": 0.1}, "sampler.kl=0.1 is tested by sampler.form=gate alone"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        TACG(**options)
