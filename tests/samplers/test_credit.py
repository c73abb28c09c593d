"""credit: the sparse form is the dense definition."""

from __future__ import annotations

from collections.abc import Iterator
from math import log
from typing import Any

import pytest
import torch
from harness import Combination, forward_of, model, parts_of, requests

from dllm import UserError
from dllm.parts import (
    KLASS,
    TACG,
    AllLogits,
    AttentionMap,
    Canvas,
    Confidence,
    Credit,
    DParallel,
    Dream,
    HiddenState,
    LogitLookup,
    Need,
    Probe,
    Readout,
    Saber,
    Sampler,
    SamplerTraits,
    Sampling,
    Statistic,
    Step,
    Turn,
    View,
    denoise,
)
from tests.samplers.game import PROMPT, Game
from tests.support.dense_credit import dense_credit


class Seen(Sampler):
    """Commits one position a turn and keeps what it was shown."""

    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=True)
    view: View

    def step(self, view: View, state: dict[str, torch.Tensor]) -> Step:
        self.view = view
        return Confidence(1.0).step(view, {"threshold": torch.ones(len(view.open))})


def wandering(noise: torch.Generator, logits: torch.Tensor) -> torch.Tensor:
    """Logits that change slowly, so that old favourites win, lose and come back."""
    return logits + 0.8 * torch.randn(logits.shape, generator=noise, dtype=logits.dtype)


@pytest.mark.parametrize(
    ("beta", "gamma", "alpha"), [(0.7, 0.2, 0.65), (0.9, 1.0, 4.0), (0.0, 0.5, 1.0), (1.0, 2.0, 0.0)]
)
def test_the_sparse_form_equals_the_dense_definition(beta: float, gamma: float, alpha: float) -> None:
    noise = torch.Generator().manual_seed(4)
    rows, length, block, vocabulary = 3, 14, 7, 11
    inner = Seen()
    game = Game(Credit(inner, beta, gamma, alpha), length, block, rows)
    logits = torch.randn(rows, length, vocabulary, generator=noise, dtype=torch.float64)
    credit, changed = torch.zeros_like(logits), 0
    for turn in range(length):
        if turn == block:
            credit = torch.zeros_like(logits)
        logits = wandering(noise, logits)
        p = logits.softmax(-1)
        open_ = (game.canvas.undecided & game.span.in_open)[:, PROMPT:]
        token, confidence, credit = dense_credit(logits, credit, open_, beta, gamma, alpha)
        game.play(p.amax(-1), p.argmax(-1), logits=logits)
        seen = inner.view.scores
        assert torch.equal(seen.token[:, PROMPT:][open_], token[open_])
        torch.testing.assert_close(seen.confidence[:, PROMPT:][open_], confidence[open_], rtol=1e-12, atol=0)
        changed += int((token != p.argmax(-1))[open_].sum())
    assert changed > 0 or alpha <= 1 or beta == 0


def test_the_adaptive_form_takes_its_weights_from_the_share_of_masks() -> None:
    """By the dense definition; a position is decided in each turn, so the share of masks of a block of 6 is known."""
    noise, inner, block = torch.Generator().manual_seed(4), Seen(), 6
    game = Game(Credit(inner, adaptive=True), 2 * block, block, 2)
    logits = torch.randn(2, 2 * block, 5, generator=noise, dtype=torch.float64)
    credit = torch.zeros_like(logits)
    for turn in range(2 * block):
        logits = wandering(noise, logits)
        open_ = (game.canvas.undecided & game.span.in_open)[:, PROMPT:]
        decided = turn % block / block
        if decided == 0:
            credit = torch.zeros_like(logits)
        token, confidence, credit = dense_credit(logits, credit, open_, decided, 1.0, decided)
        game.play(logits.softmax(-1).amax(-1), logits.argmax(-1), logits=logits)
        seen = inner.view.scores
        assert torch.equal(seen.token[:, PROMPT:][open_], token[open_])
        torch.testing.assert_close(seen.confidence[:, PROMPT:][open_], confidence[open_], rtol=1e-12, atol=0)


def test_credit_carries_a_token_over_the_threshold() -> None:
    # p = 0.8 each turn; C = 0.8^0.2 = 0.956, then 0.7 C + 0.956 = 1.626, ...: weights (1 + C)^0.65 of 1.547, 1.873, ...
    logits = torch.tensor([[[log(0.8), log(0.2)], [log(0.5), log(0.5)], [log(0.5), log(0.5)]]])
    p = logits.softmax(-1)
    credits = [0.8**0.2]
    credits.append(0.7 * credits[0] + credits[0])
    fused = [0.8 * (1 + c) ** 0.65 / (0.8 * (1 + c) ** 0.65 + 0.2) for c in credits]
    for bar, turns in ((fused[0] - 1e-6, 1), (fused[0] + 1e-6, 2)):
        game = Game(Credit(Confidence(bar)), 3)
        game.turn(p.amax(-1), p.argmax(-1), logits=logits)
        assert (game.accepted == [0]) == (turns == 1)
    assert fused[0] < fused[1]


def test_an_old_favourite_can_still_win() -> None:
    first, then = [log(0.7), log(0.3)], [log(0.49), log(0.51)]
    game = Game(Credit(Confidence(0.99), beta=1.0, alpha=4.0), 2)
    for logits in ([first, [5.0, 0.0]], [then, [0.0, 0.0]]):
        p = torch.tensor([logits]).softmax(-1)
        game.turn(p.amax(-1), p.argmax(-1), logits=torch.tensor([logits]))
    assert game.step.tokens is not None and int(game.step.tokens[0, PROMPT]) == 0
    assert int(game.canvas.tokens[0, PROMPT]) == 0


class Guess(Confidence):
    """Reads one thing of its own besides confidences."""

    def __init__(self, reads: Readout[Any]) -> None:
        super().__init__(0.9)
        self.reads = reads

    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=(self.reads,)),)


class TopTwo(AllLogits):
    """A readout of somebody's own, made from logits."""


def test_what_a_readout_says_of_logits_decides() -> None:
    """Credit changes logits, and no readout but its own hears of it."""
    for reads in (HiddenState(), AttentionMap(), Probe(torch.nn.Linear(2, 1), 1)):
        assert Credit(Guess(reads)).needs()[0].reads == (reads,)
    for reads, name in ((AllLogits(), "AllLogits"), (TopTwo(), "TopTwo"), (Statistic("gap"), "gap")):
        with pytest.raises(UserError, match=f"it also reads {name}, as its needs"):
            Credit(Guess(reads))


@pytest.mark.parametrize(
    "inner", [DParallel(), Saber(), Dream(), KLASS(), TACG()], ids=lambda rule: type(rule).__name__
)
def test_an_inner_rule_that_cannot_read_credit_is_refused(inner: Sampler) -> None:
    with pytest.raises(
        UserError, match=r"sampler=credit changes token and confidence only.*: it .*Use an inner sampler"
    ):
        Credit(inner)


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
@pytest.mark.parametrize("guidance", [0.0, 0.7])
def test_what_it_looks_up_are_the_logits(name: str, guidance: float) -> None:
    """With guidance two sets of logits are mixed, so they are stored; else hidden rows are all that is kept."""
    turns = list(turns_of(name, guidance))
    assert len(turns) > 2
    for turn in turns:
        scores = turn.view.scores
        lookup = scores.of(LogitLookup())
        assert AllLogits() not in scores.readings
        width = model(name).config.width
        assert lookup.source.shape[-1] == (width if guidance == 0 else model(name).config.vocab)
        columns = lookup.columns.clamp(max=scores.token.shape[1] - 1)
        token, first, normal = (
            values.gather(1, columns) for values in (scores.token, scores.confidence, scores.statistic("logsumexp"))
        )
        real = lookup.columns < scores.token.shape[1]
        assert bool(real.any())
        found = (lookup(token[..., None])[..., 0] - normal).exp()
        torch.testing.assert_close(found[real], first[real], rtol=1e-9, atol=0)


def turns_of(name: str, guidance: float) -> Iterator[Turn]:
    parts = parts_of(Combination("credit", "fixed", "dual", "none", name))
    forward = forward_of(model(name), parts, Sampling(guidance=guidance))
    with torch.inference_mode():
        yield from denoise(Canvas.of(requests(), 0), forward, parts)


def test_few_slots_forget_the_poorest() -> None:
    """With one slot the newest leader always takes it, so a former one has nothing left."""
    first, then = [log(0.7), log(0.3)], [log(0.49), log(0.51)]
    game = Game(Credit(Confidence(0.99), beta=1.0, alpha=4.0, slots=1), 2)
    for logits in ([first, [5.0, 0.0]], [then, [0.0, 0.0]]):
        p = torch.tensor([logits]).softmax(-1)
        game.turn(p.amax(-1), p.argmax(-1), logits=torch.tensor([logits]))
    assert int(game.canvas.tokens[0, PROMPT]) == 1
    with pytest.raises(UserError, match=r"sampler\.slots=0 must be at least 1"):
        Credit(Confidence(), slots=0)
