"""Readouts find what the network computes: hidden states of any layer, logits, networks of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from harness import forward_of, model, requests, with_mask
from torch import Tensor, nn

from dllm.parts import (
    AllLogits,
    ByColumn,
    Cache,
    Canvas,
    Dual,
    Fixed,
    FullLength,
    HeadInput,
    HiddenState,
    LogitLookup,
    ModelConfig,
    Need,
    NoCache,
    Parts,
    Probe,
    Readout,
    Sampling,
    Setting,
    Static,
    Turn,
    UserError,
    denoise,
    validate,
)


@dataclass(frozen=True)
class Width(Readout[ByColumn]):
    """A stranger's readout: the length of a hidden state."""

    def width(self, config: ModelConfig) -> int:
        return 1

    def read(self, source: HeadInput) -> ByColumn:
        return ByColumn(source.hidden(None).norm(dim=-1), source.columns)


torch.manual_seed(0)
JUDGE = Probe(nn.Sequential(nn.Linear(96, 8), nn.ReLU(), nn.Linear(8, 1)).double(), 1)
READS = (HiddenState(), HiddenState(0), HiddenState(-1), AllLogits(), LogitLookup(), JUDGE, Width())


class Reads(Static):
    """One token a turn; it reads, and does nothing with it."""

    reads: tuple[Readout[Any], ...] = READS

    def needs(self) -> tuple[Need, ...]:
        return (Need(committed=True, reads=self.reads),)


def play(name: str, cache: Cache, rule: Static | None = None, guidance: float = 0.0) -> Iterator[Turn]:
    network = model(name)
    parts = Parts(rule or Reads(), Fixed(8), cache, FullLength(), Sampling(guidance=guidance))
    batch = [with_mask(request, network.config.mask_id or 0) for request in requests()]
    yield from denoise(Canvas.of(batch, network.config.pad_id or 0), forward_of(network, parts, parts.sampling), parts)


def layers_of(name: str, canvas: Canvas) -> list[Tensor]:
    """What leaves each layer of the network [B, L, D], and the last norm, for whole canvases at once."""
    network, found = model(name), []
    hooks = [layer.register_forward_hook(lambda _, __, out: found.append(out[0] + out[1])) for layer in network.layers]
    last = network.encode(canvas.tokens, canvas.valid)
    for hook in hooks:
        hook.remove()
    return [*found, last]


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
def test_hidden_states_are_those_that_predict_the_scored_positions(name: str) -> None:
    network, turns = model(name), list(play(name, NoCache()))
    assert len(turns) > 4
    for turn in turns[:4]:
        expected, scores = layers_of(name, turn.canvas), turn.view.scores
        shift = network.config.prediction_shift
        for readout, layer in ((HiddenState(), -1), (HiddenState(0), 0), (HiddenState(-1), -2)):
            found = scores.of(readout).spread(len(turn.canvas.columns))
            source = expected[layer].roll(shift, 1)
            if shift:
                source[:, 0] = expected[layer][:, 0]
            assert torch.allclose(found[scores.scored], source[scores.scored], atol=1e-10)
        values = scores.of(HiddenState()).values
        real = scores.of(HiddenState()).columns < len(turn.canvas.columns)
        assert torch.allclose(scores.of(JUDGE).values, JUDGE.network(values))
        assert torch.equal(scores.of(Width()).values, values.norm(dim=-1))
        logits = network.logits(values)
        allowed = scores.of(AllLogits()).values.isfinite()
        assert torch.allclose(scores.of(AllLogits()).values[allowed], logits[allowed])
        ids = torch.tensor([3, 5]).expand(*real.shape, 2)
        assert torch.allclose(scores.of(LogitLookup())(ids)[real], logits.gather(-1, ids)[real])


@pytest.mark.parametrize("cache", [Dual()], ids=type)
@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
def test_what_is_read_changes_no_token(name: str, cache: Cache) -> None:
    read, plain = (list(play(name, cache, rule)) for rule in (Reads(), Static()))
    assert [turn.candidates.tokens.tolist() for turn in read] == [turn.candidates.tokens.tolist() for turn in plain]
    assert all(HiddenState(0) in turn.view.scores.readings for turn in read) and not plain[0].view.scores.readings


def test_under_guidance_hidden_states_are_those_of_the_canvas_as_it_is() -> None:
    free, guided = (next(play("tiny-llada", Dual(), None, weight)).view.scores for weight in (0.0, 1.5))
    for layer in (None, 0):
        one, other = (scores.of(HiddenState(layer)).values for scores in (free, guided))
        assert torch.allclose(one, other, atol=1e-12)


def test_a_layer_that_there_is_not_is_refused() -> None:
    class Deep(Reads):
        reads = (HiddenState(99),)

    setting = Setting(model("tiny-llada").config, Fixed(8), 16)
    with pytest.raises(
        UserError, match=r"^sampler=Deep reads HiddenState\(layer=99\), and this model has layers 0 to "
    ):
        validate(setting, Deep(), NoCache(), FullLength())
