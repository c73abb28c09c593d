"""A user's own choices are known however they are named: by --config-dir, as MODULE.CLASS, inside a wrapper."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from dllm.parts import built, choices, locate, options_of_choices, use_folder, warn_once, wrappers
from dllm.serve.http import offered
from tests.app.command_line.conftest import Run

MODULE = """
from dllm.common.ranking import argmax_mask
from dllm.contract import SamplerTraits, State, Step, View
from dllm.parts.samplers.base import Sampler
from dllm.parts.samplers.wrapper import Wrapper


class Mine(Sampler):
    '''The surest position of mine.

    More words.
    '''
    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=True)

    def __init__(self, low: float = 0.8) -> None:
        self.low = low

    def step(self, view: View, state: State) -> Step:
        confidence = view.scores.confidence
        return view.step(view.open & (confidence >= self.low) | argmax_mask(confidence, view.open))


class Around(Wrapper):
    '''A wrapper of mine.'''
    def __init__(self, inner: Sampler, most: float = 0.5) -> None:
        super().__init__(inner)
        self.most = most
"""
FILES = {
    "sampler/mine.yaml": "# my surest position\n_target_: my_rules.Mine\nlow: 0.7   # from which all are committed\n",
    "sampler/bare.yaml": "_target_: my_rules.Mine\n",
    "sampler/gone.yaml": "_target_: nowhere.to.be.Found\n",
    "sampler/spoilt.yaml": "_target_: [unclosed\n",
    "sampler/eb.yaml": "_target_: my_rules.Mine\n",
    "sampler/around.yaml": "# around\ndefaults:\n  - inner: mine\n  - _self_\n_target_: my_rules.Around\nmost: 0.25\n",
    "experiment/usual.yaml": "# @package _global_\n# my usual settings (no grid)\ndefaults:\n"
    "  - override /sampler: mine\nsampler:\n  low: 0.6\n",
    "model/small.yaml": "# my small model\ndefaults:\n  - mini-llada\n  - _self_\n",
}


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder: its own choices, of which some cannot work, and a file with the name of a shipped one."""
    (tmp_path / "my_rules.py").write_text(MODULE)
    for name, text in FILES.items():
        file = tmp_path / "it's mine" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_rules", raising=False)
    return tmp_path / "it's mine"


@pytest.mark.parametrize(
    ("words", "chosen", "told"),
    [
        ("sampler=mine", "mine  my surest position", "sampler.low=0.7 from which all are committed"),
        ("experiment=usual", "mine  my surest position", "sampler.low=0.6 from which all are committed"),
        ("sampler=my_rules.Mine", "my_rules.Mine  The surest position of mine", "sampler.low=0.8"),
        ("sampler._target_=my_rules.Mine", "my_rules.Mine  The surest position of mine", "sampler.low=0.8"),
        ("sampler=credit sampler/inner=mine", "credit", "sampler.inner.low=0.7"),
        ("sampler=credit sampler/inner=my_rules.Mine", "credit", "sampler.inner.low=0.8"),
        ("sampler=around", "around  around", "sampler.inner.low=0.7"),
        ("sampler=my_rules.Around sampler/inner=mine", "my_rules.Around  A wrapper of mine", "sampler.inner.low=0.7"),
    ],
)
def test_help_shows_a_part_of_ones_own(words: str, chosen: str, told: str, run: Run, conf: Path) -> None:
    shown = run(f"--config-dir={conf}", *words.split(), "--help")
    text = " ".join(shown.out.split())
    assert shown.code == 0 and f"* {' '.join(chosen.split())}" in text and told in text
    for line in ("mine my surest position", "usual my usual settings", "small my small model"):
        assert line in text


@pytest.mark.parametrize(
    "words",
    [
        "sampler=mine",
        "sampler=credit sampler/inner=mine",
        "sampler=around sampler.most=0.3",
        "experiment=usual task.packages=[my_rules]",
        "sampler=my_rules.Around sampler/inner=my_rules.Mine sampler.inner.low=0.1",
        "model=small",
    ],
)
def test_it_decodes(words: str, run: Run, conf: Path) -> None:
    done = run("--config-dir", str(conf), "output=runs", "gen_length=8", "prompt=w1", *words.split())
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("sampler=mien", "Did you mean 'mine'?"),
        ("sampler=null", "mine, oracle"),
        ("sampler=credit sampler/inner=mien", "Did you mean 'mine'?"),
        ("experiment=usaul", "Did you mean 'usual'?"),
        ("sampler=mine sampler.lwo=1", "sampler=mine has low."),
        ("sampler=mine sampler/inner=eb", "around"),
        ("sampler=gone", "there is no module nowhere"),
    ],
)
def test_a_refusal_knows_it(words: str, said: str, run: Run, conf: Path) -> None:
    refused = run(f"--config-dir={conf}", *words.split())
    assert refused.code == 2 and said in refused.err and "Traceback" not in refused.err


@pytest.mark.filterwarnings("always::dllm.common.errors.SettingWarning")
def test_a_file_that_is_not_read_is_told_and_a_folder_that_is_none(run: Run, conf: Path) -> None:
    warn_once.cache_clear()
    said = run(f"--config-dir={conf}", "--help").err
    assert "eb.yaml is not read: sampler=eb ships. Rename the file." in said and said.count("\n") == 1
    assert "--config-dir=nowhere is not a folder." in run("--config-dir=nowhere", "--help").err


def test_a_trace_of_ones_own_part_replays_and_a_model_of_ones_own_is_quantised(run: Run, conf: Path) -> None:
    """Hydra's flag once added hydra.mode, which no task takes."""
    done = run("--config-dir", str(conf), "output=runs", "gen_length=8", "prompt=w1", "sampler=mine", "trace=true")
    (trace,) = (done.run / "traces").glob("*.json")
    assert json.loads(trace.read_text())["config"]["sampler"] == {"_target_": "my_rules.Mine", "low": 0.7}
    again = run("task=replay", f"trace={trace}", "--config-dir", str(conf), "task.packages=[my_rules]")
    assert again.code == 0 and "turns equal" in again.out, again.err
    words = ("task=quantize", "model=small", f"model.path={locate('mini-llada')}", "quantize.to=narrow")
    assert run(*words, "model.quantize=int8", "--config-dir", str(conf)).code == 0


def test_lists_know_it_and_forget_it(conf: Path) -> None:
    shipped = choices("sampler"), wrappers()
    use_folder(conf)
    try:
        assert set(choices("sampler")) - set(shipped[0]) == {"mine", "bare", "gone", "spoilt", "around"}
        assert set(wrappers()) - set(shipped[1]) == {"around"}
        known = options_of_choices("sampler")
        assert known["mine"]["low"] == 0.7 and known["spoilt"] == {} and "my_rules" not in str(known["eb"])
        for kept in (offered.offers, offered._builds):
            kept.cache_clear()
        offers = offered.offers("sampler")
        assert offers["mine"].doc == "my surest position" and {"gone", "spoilt"}.isdisjoint(offers)
        assert built("sampler=mine", ["low=0.2"])[1].low == 0.2
    finally:
        use_folder(None)
        for kept in (offered.offers, offered._builds):
            kept.cache_clear()
    assert (choices("sampler"), wrappers()) == shipped
