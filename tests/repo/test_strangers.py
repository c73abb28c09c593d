"""A package of a stranger, written from the guides alone: rules that read hidden states, one with a trained network, an
end of text and a rule of lengths, without touching dllm."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pytest import MonkeyPatch
from torch import nn

from dllm import Decoder, UserError, load
from dllm.app.commands.replay import run
from dllm.laws.__main__ import main as laws
from dllm.parts import EndOfText, Length, Model, Sampler, composed, imported_class, plain_config

DOCS = Path(__file__).parents[2] / "docs"
PROMPTS = ['Copy the list:\n["Kai", "Emma"]', 'Sort the list:\n["Zoe", "Ada", "Ben"]', 'Copy the list:\n["Max"]']
JUDGE = '''
"""Trust a position by a network of two layers on its hidden state, whose weights lie beside this file."""

from pathlib import Path

import torch
from torch import Tensor, nn

from dllm.common.ranking import argmax_mask
from dllm.contract import Need, SamplerTraits, State, Step, View
from dllm.contract.readouts import HiddenState
from dllm.parts.samplers.base import Sampler
from stranger.changes import Change

HIDDEN, WEIGHTS = HiddenState(), Path(__file__).with_name("judge.pt")


class Judged(Sampler):
    """One position a turn: the one that the network trusts most."""

    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=False)

    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=(HIDDEN,)),)

    def shared(self) -> dict[str, Tensor | nn.Module]:
        state = torch.load(WEIGHTS, weights_only=True)
        width = state["0.weight"].shape[1]
        network = nn.Sequential(nn.Linear(width, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        network.load_state_dict(state)
        return {"judge": network}

    def step(self, view: View, state: State) -> Step:
        hidden, judge = view.scores.of(HIDDEN), view.shared.module("judge")
        width = next(judge.parameters()).shape[1]  # models of other widths are judged by what fits
        values = hidden.spread(view.open.shape[1]).double()
        values = nn.functional.pad(values, (0, max(width - values.shape[-1], 0)))[..., :width]
        return view.step(argmax_mask(judge(values)[..., 0], view.open))


class Settled(Sampler):
    """One position a turn: the one that the last layer changed least. Its readout is the page's."""

    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=False)

    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=(Change(),)),)

    def step(self, view: View, state: State) -> Step:
        return view.step(argmax_mask(-view.scores.of(Change()).spread(view.open.shape[1]), view.open))
'''
RULES = ("stranger.longest.Longest", "stranger.judge.Judged", "stranger.judge.Settled")


def pieces(page: str) -> list[str]:
    """The modules that a page shows."""
    return re.findall(r"```py\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The page's pieces and a judge, as a package on the path."""
    folder = tmp_path_factory.mktemp("strangers") / "stranger"
    folder.mkdir()
    longest, changes = pieces("add_a_sampler")
    (ends,), (lengths,) = pieces("blocks"), pieces("lengths")
    files = {"longest": longest, "changes": changes, "judge": JUDGE, "ends": ends, "lengths": lengths, "__init__": ""}
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    torch.manual_seed(3)
    torch.save(nn.Sequential(nn.Linear(96, 4), nn.Tanh(), nn.Linear(4, 1)).double().state_dict(), folder / "judge.pt")
    patch = MonkeyPatch()
    patch.syspath_prepend(folder.parent)
    yield folder
    patch.undo()
    for name in [name for name in sys.modules if name.partition(".")[0] == "stranger"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def model() -> Model:
    return load("mini-llada")


def rule(name: str) -> Sampler:
    made: Sampler = imported_class("sampler", name, Sampler)()
    return made


@pytest.mark.program
@pytest.mark.parametrize("words", [*RULES, "stranger.ends.StopAtToken token=7", "stranger.lengths.GrowLate"])
def test_they_keep_the_laws(package: Path, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert laws([*words.split(), "--cases", "2"]) == 0, capsys.readouterr().out


def test_an_answer_ends_at_the_strangers_token(package: Path, model: Model) -> None:
    assert model.tokenizer is not None
    (quote,) = model.tokenizer.encode('"]')
    eos = imported_class("eos", "stranger.ends.StopAtToken", EndOfText)(token=quote)
    found = Decoder(model, "confidence", eos=eos, gen_length=32)(PROMPTS)
    assert [row.text for row in found] == ['["Kai", "Emma"]', '["Ada", "Ben", "Zoe"]', '["Max"]']
    assert all(row.tokens[-1] == quote for row in found)


def test_an_answer_grows_by_the_strangers_rule(package: Path, model: Model) -> None:
    length = imported_class("length", "stranger.lengths.GrowLate", Length)(limit=24)
    decoders = [Decoder(model, "confidence", eos="none", length=one, gen_length=4) for one in (length, "fixed")]
    grown, short = (decoder(PROMPTS[0])[0].text for decoder in decoders)
    assert grown == '["Kai", "Emma"]' and short == '["Kai", "Emma'
    with pytest.raises(UserError, match="GrowLate changes the length of rows, but .*static"):
        Decoder(model, "static", length=length, eos="none", gen_length=4)


@pytest.mark.daily(1)
@pytest.mark.parametrize("cache", ["none", "dual", "elastic"])
@pytest.mark.parametrize("name", RULES)
def test_a_batch_of_three_decodes_as_one_by_one(package: Path, name: str, cache: str, model: Model) -> None:
    decoder = Decoder(model, rule(name), cache=cache, gen_length=16)
    together = [result.text for result in decoder(PROMPTS)]
    assert together == [decoder(prompt)[0].text for prompt in PROMPTS]


def test_the_trained_network_decides(package: Path, model: Model) -> None:
    """Other weights, another order."""
    turns = [Decoder(model, rule(RULES[1]), gen_length=16)(PROMPTS[1])[0].turns]
    state = torch.load(package / "judge.pt", weights_only=True)
    torch.save({name: -value if name[0] == "2" else value for name, value in state.items()}, package / "judge.pt")
    turns.append(Decoder(model, rule(RULES[1]), gen_length=16)(PROMPTS[1])[0].turns)
    torch.save(state, package / "judge.pt")
    assert turns[0] != turns[1] and sorted(turns[0]) == sorted(turns[1])


@pytest.mark.program
@pytest.mark.parametrize("name", RULES)
def test_a_server_answers_as_a_decoder(package: Path, name: str, model: Model) -> None:
    pytest.importorskip("uvicorn", reason="the server is not installed: pip install -e '.[serve]'")
    from tests.serve.bodies import mini_defaults
    from tests.serve.live import live

    defaults = replace(mini_defaults(model, gen_length=16), sampler={"_target_": name})
    expected = [result.text for result in Decoder(model, rule(name), gen_length=16)(PROMPTS)]
    with live(model, defaults=defaults) as server, server.client() as client:
        for prompt, text in zip(PROMPTS, expected, strict=True):
            reply = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": prompt}]})
            assert reply.status_code == 200, reply.text
            assert reply.json()["choices"][0]["message"]["content"] == text


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", RULES)
def test_a_trace_replays(
    package: Path, name: str, model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Decoder(model, rule(name), gen_length=16)(PROMPTS[1], trace=True)[0].traced().save(tmp_path / "trace.json")
    given = [f"trace={file}", "task.packages=[stranger]"]
    run(plain_config(composed(["task=replay", *given])), ["trace", "task.packages"])
    assert "turns equal" in capsys.readouterr().out
