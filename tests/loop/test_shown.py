"""What undecided positions show between turns, and the temperature that a rule sets before each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from harness import ending, model, requests
from torch import Tensor

from dllm.parts import (
    AllLogits,
    BlockState,
    Canvas,
    Fixed,
    Forward,
    FullLength,
    Ids,
    Need,
    NoCache,
    Parts,
    Request,
    Sampler,
    SamplerTraits,
    Sampling,
    State,
    Statistic,
    Step,
    Transformer,
    Turn,
    Uniform,
    View,
    denoise,
    temper,
)

FORWARDS, BLOCK = 3, 7
NOISE = Uniform(64)


class Waits(Sampler):
    """Shows noise in the first forwards of a block, except for its draws in even columns, and commits the likeliest
    tokens in the last one. It cools down in the meantime."""

    traits = SamplerTraits(stateless=True, deterministic=False, by_confidence=False, renoises=True, tempered=True)

    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=(*Statistic.of("likeliest", "entropy"), AllLogits())),)

    def turn_temperature(self, blocks: BlockState, state: State) -> Tensor:
        return 1.0 / (1 + blocks.forwards.double())

    def step(self, view: View, state: State) -> Step:
        last = view.blocks.forwards >= FORWARDS
        shown = torch.where(view.canvas.columns % 2 == 0, view.scores.token, NOISE.noise(view.canvas, view.blocks.turn))
        return view.step(view.open & last[:, None], tokens=view.scores.statistic("likeliest"), shown=shown)


def network() -> Transformer:
    """A model of masks whose description says that it undoes noise: what it makes of noise is no matter here."""
    found = model("tiny-llada")
    copy = Transformer.__new__(Transformer)
    copy.__dict__.update({**found.__dict__, "config": replace(found.config, process="uniform", mask_id=None)})
    return copy


def turns(batch: Sequence[Request], lag: int | None = None) -> Iterator[Turn]:
    net, rule = network(), Waits()
    parts = Parts(rule, Fixed(BLOCK), NoCache(), FullLength(), Sampling().under(rule))
    forward = Forward.of(net, Ids(None, 61, ()), parts)
    with torch.inference_mode():
        yield from ending(denoise(Canvas.of(batch, 61), forward, parts, lag))


def canvases(batch: Sequence[Request], lag: int | None = None) -> dict[int, list[list[int]]]:
    """The canvas of every acting forward, then the final one, by the row's name, without padding."""
    out: dict[int, list[list[int]]] = {}
    for turn in turns(batch, lag):
        for row, name in enumerate(turn.canvas.row_id.tolist()):
            size = len(batch[name].tokens)
            if bool(turn.active[row]):
                out.setdefault(name, []).append(turn.tried.tokens[row, :size].tolist())
            if row in turn.finished:
                out[name].append(turn.candidates.tokens[row, :size].tolist())
    return out


def test_every_forward_sees_what_the_rule_showed_and_decided_positions_stay() -> None:
    first, *rest = turns(requests()[:1])
    start = int(first.canvas.start[0])
    assert torch.equal(first.canvas.tokens, NOISE.fill(Canvas.of(requests()[:1], 61)).tokens)
    for turn, later in zip([first, *rest], rest, strict=False):
        step, blocks, before, after = turn.step, turn.view.blocks, turn.tried, later.tried
        assert step.shown is not None
        open_ = before.undecided & blocks.in_open
        expected = torch.where(open_, step.shown, before.tokens)
        expected = torch.where(step.commit, step.tokens, expected)
        assert torch.equal(after.tokens, expected) and torch.equal(after.masked, before.masked & ~step.commit)
    assert start == 11 and len(rest) + 1 == FORWARDS * -(-24 // BLOCK)


def test_a_block_that_is_not_open_keeps_its_first_noise() -> None:
    noise = NOISE.fill(Canvas.of(requests()[:1], 61)).tokens
    for turn in turns(requests()[:1]):
        behind = turn.canvas.columns >= turn.view.blocks.end
        assert torch.equal(turn.tried.tokens[:, behind], noise[:, behind])


def test_proposals_and_likeliest_tokens_come_at_the_temperature_of_the_turn() -> None:
    for number, turn in enumerate(turns(requests()[:1])):
        scores, canvas = turn.view.scores, turn.tried
        assert canvas.temperature.tolist() == [1.0 / (1 + number % FORWARDS)]
        at = scores.scored[0].nonzero()[:, 0]
        logits = scores.of(AllLogits()).values[0, : len(at)].double()
        assert torch.equal(scores.statistic("likeliest")[0, at], logits.argmax(-1))
        p = temper(logits, canvas.temperature[:, None]).softmax(-1)
        assert torch.allclose(scores.statistic("entropy")[0, at], -(p * p.clamp(min=1e-300).log()).sum(-1))
        assert torch.allclose(scores.confidence[0, at], p.gather(-1, scores.token[0, at, None])[:, 0])


@pytest.mark.parametrize("lag", [None, 0, 1, 2])
def test_a_row_shows_the_same_alone_in_a_batch_and_under_static_shapes(lag: int | None) -> None:
    batch = requests()
    together = canvases(batch, lag)
    for number, request in enumerate(batch):
        assert together[number] == canvases([request])[0]
