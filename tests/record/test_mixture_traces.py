"""The mixtures in a trace are those that the network was given; they are replayed, and a trace without any is as it
was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import model, requests
from torch import Tensor

from dllm import Decoder, Trace, load
from dllm.laws import claims
from dllm.parts import (
    Broken,
    Conditioning,
    DMax,
    Fixed,
    FullLength,
    NoCache,
    Parts,
    ReMix,
    Sampling,
    Setting,
    ShownMixtures,
    Trial,
    trace_differences,
)
from tests.support.tiny import MODELS, make_tiny

RULES: dict[str, tuple[str, Any]] = {
    "dmax": ("tiny-diffcoder", lambda: DMax(0.015, top_k=3)),
    "remix": ("tiny-llada", lambda: ReMix(threshold=0.9, js_threshold=0.5)),
}


def decoded(name: str, folder: Path) -> tuple[Trace, list[tuple[Tensor, Tensor]], Any]:
    """A trace, what every forward was given in the place of tokens (where [n], embeddings [n, D]), and the model."""
    kind, rule = RULES[name]
    loaded = load(make_tiny(folder / kind, MODELS / kind), dtype="float32")
    given, over = list[tuple[Tensor, Tensor]](), Conditioning.over

    def noting(self: Conditioning, x: Tensor) -> Tensor:
        given.append((self.where[0].clone(), self.soft[0].clone()))
        return over(self, x)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Conditioning, "over", noting)
        decoder = Decoder(loaded, rule(), Fixed(8), "none", gen_length=24)
        return decoder([5, 7, 9], trace=True)[0].traced(), given, loaded


@pytest.fixture(scope="module", params=RULES)
def shown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return request.param, *decoded(request.param, tmp_path_factory.mktemp(request.param))


def test_embeddings_made_from_a_trace_are_those_that_the_network_was_given(shown: Any) -> None:
    """By the formulas of the two papers, from the tokens and weights in the trace."""
    name, trace, given, loaded = shown
    table, mask = loaded.transformer.embed.weight.double(), trace.mask_id
    assert len(given) == len(trace.turns) and not bool(given[0][0].any())
    mixed = 0
    for turn, (where, soft) in zip(trace.turns, given[1:], strict=False):
        told = turn.mixtures or ShownMixtures([], [], [])
        assert [trace.start + at for at in told.positions] == where.nonzero()[:, 0].tolist()
        for at, tokens, weights in zip(told.positions, told.tokens, told.weights, strict=True):
            parts = [*zip(tokens, weights, strict=True), (mask, max(0.0, 1 - sum(weights)))]
            u = sum(share * table[token] for token, share in parts)
            if name == "dmax":
                u = u * sum(share * table[token].norm() for token, share in parts) / (u.norm() + 1e-6)
            torch.testing.assert_close(soft[trace.start + at], u.float(), rtol=1e-4, atol=1e-6)
            mixed += len(tokens) > 1
    assert mixed > 2 and trace.turns[-1].mixtures is None


def test_a_file_keeps_mixtures_and_a_replay_compares_them(shown: Any, tmp_path: Path) -> None:
    _, trace, _, _ = shown
    again = Trace.load(trace.save(tmp_path / "trace.json"))
    assert again == trace and list(trace_differences(again, trace)) == []
    mixtures = [turn.mixtures for turn in trace.turns if turn.mixtures]
    assert {token for shown in mixtures for one in shown.tokens for token in one} <= trace.words.keys()
    at = next(number for number, turn in enumerate(trace.turns) if turn.mixtures)
    told = trace.turns[at].mixtures
    assert told is not None
    said = "other mixtures that positions show next in the trace than now"
    moved = replace(told, weights=[[one[0] + 1e-4, *one[1:]] for one in told.weights])
    for changed in (moved, None, replace(told, positions=[one + 1 for one in told.positions])):
        other = replace(trace, turns=[*trace.turns])
        other.turns[at] = replace(trace.turns[at], mixtures=changed)
        assert list(trace_differences(trace, other)) == [f"turn {at + 1} has {said}"]


def test_a_trace_without_mixtures_has_no_word_of_them(tmp_path: Path) -> None:
    loaded = load(make_tiny(tmp_path / "tiny-llada", MODELS / "tiny-llada"), dtype="float32")
    trace = Decoder(loaded, "confidence", Fixed(8), gen_length=16)([5, 7], trace=True)[0].traced()
    assert '"mixtures":' not in trace.save(tmp_path / "trace.json").read_text()


def mixing() -> Trial:
    """The usual requests under a rule that mixes."""
    network, blocks = model("tiny-llada"), Fixed(8)
    rule = ReMix(threshold=0.6).resolved(Setting(network.config, blocks, None))
    return Trial(network, Parts(rule, blocks, NoCache(), FullLength(), Sampling()), tuple(requests()), Sampling())


def test_the_law_of_traces_finds_a_mixture_that_is_missing() -> None:
    trial = mixing()
    claims.a_trace_redraws(trial)
    known = trial.together[0].final
    assert known.trace is not None and any(turn.mixtures for turn in known.trace.turns)
    known.trace.turns[:] = [replace(turn, mixtures=None) for turn in known.trace.turns]
    with pytest.raises(Broken, match="the trace has other mixtures in columns"):
        claims.a_trace_redraws(trial)


def test_rows_show_the_mixtures_alone_that_they_show_in_a_batch() -> None:
    trial = mixing()
    for number, whole in enumerate(trial.together):
        (alone,) = trial.decode([number])
        assert alone.final.trace is not None and whole.final.trace is not None
        for mine, theirs in zip(alone.final.trace.turns, whole.final.trace.turns, strict=True):
            assert (mine.mixtures is None) == (theirs.mixtures is None)
            if mine.mixtures and theirs.mixtures:
                assert mine.mixtures.likeliest().keys() == theirs.mixtures.likeliest().keys()
                for at, (token, share) in mine.mixtures.likeliest().items():
                    assert theirs.mixtures.likeliest()[at] == (token, pytest.approx(share, abs=1e-9))
