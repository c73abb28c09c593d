"""Calibration against closed forms, and the command from files to files."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from math import log
from pathlib import Path
from random import Random
from typing import Any

import pytest
from omegaconf import OmegaConf

from dllm import Decoder, UserError, load
from dllm.app.command_line import main as cli
from dllm.app.commands import decide, serve
from dllm.parts import (
    LabelledScores,
    ServeSettings,
    best_temperature,
    composed,
    fit_temperature,
    nll,
    plan_of,
    quality,
    read_calibration,
    service_of,
    softmax,
    write_calibration,
)
from dllm.scoring.decisions import Choice
from tests.serve.live import live


def drawn(temperature: float, count: int = 4000) -> list[LabelledScores]:
    """Items whose truth is drawn at a temperature."""
    rng, found = Random(1), []
    for _ in range(count):
        scores = [rng.gauss(0, 3) for _ in range(5)]
        found.append(LabelledScores(scores, rng.choices(range(5), softmax(scores, temperature))[0]))
    return found


@pytest.mark.parametrize("temperature", [0.8, 1.0, 2.5])
def test_the_fit_finds_the_temperature_at_which_truth_was_drawn(temperature: float) -> None:
    items = drawn(temperature)
    found = fit_temperature("choice", items)
    assert found.temperature == pytest.approx(temperature, rel=0.07)
    assert found.nll_after <= found.nll_before and quality(items, found.temperature).ece < 0.02
    steps = [0.5 + 0.01 * n for n in range(300)]
    assert min(steps, key=lambda t: nll(items[:300], t)) == pytest.approx(best_temperature(items[:300]), abs=0.02)


def test_figures_of_quality_by_hand() -> None:
    items = [LabelledScores([log(0.75), log(0.25)], 0), LabelledScores([log(0.75), log(0.25)], 1)]
    found = quality(items)
    assert found.accuracy == 0.5 and found.ece == pytest.approx(0.25)
    assert found.nll == pytest.approx(-(log(0.75) + log(0.25)) / 2)
    assert found.brier == pytest.approx((2 * 0.25**2 + 2 * 0.75**2) / 2)


def test_few_errors_are_refused_and_files_belong_to_a_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="hold 0 errors"):
        fit_temperature("choice", [LabelledScores([3.0, 0.0], 0)] * 50)
    write_calibration(tmp_path / "c.json", "mine", {"choice": fit_temperature("choice", drawn(2.0, 500))})
    assert read_calibration(tmp_path / "c.json", "mine")["choice"] == pytest.approx(2, rel=0.2)
    with pytest.raises(UserError, match="was fitted for mine"):
        read_calibration(tmp_path / "c.json", "other")
    with pytest.raises(UserError, match="is not a file of task=decide"):
        read_calibration(tmp_path / "none.json", "mine")


@pytest.mark.parametrize("types", [{"chioce": 2.0}, {"choice": 0.1}, {"choice": float("nan")}, {"choice": 11}])
def test_a_file_of_temperatures_that_no_fit_gives_is_refused(types: dict[str, float], tmp_path: Path) -> None:
    content = {"model": "mine", "types": {kind: {"temperature": one} for kind, one in types.items()}}
    (tmp_path / "c.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="Did you mean 'choice'|must lie in"):
        read_calibration(tmp_path / "c.json", "mine")


@dataclass
class Files:
    """A folder with a file of questions and one of states, and the command on them in this process."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    capfd: pytest.CaptureFixture[str]

    def write(self, question: dict[str, Any], lines: list[tuple[str, str]]) -> None:
        (self.folder / "q.json").write_text(json.dumps([question]))
        states = [json.dumps({"prompt": state, "truth": {question["name"]: truth}}) for state, truth in lines]
        (self.folder / "p.jsonl").write_text("\n".join(states))

    def run(self, *words: str) -> tuple[int, str, str]:
        """Exit code, what it said, what it complained of."""
        files = [f"prompts={self.folder}/p.jsonl", f"task.questions={self.folder}/q.json", f"output={self.folder}"]
        self.monkeypatch.setattr(sys, "argv", ["run.py", "task=decide", *files, *words])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = self.capfd.readouterr()
        return code, out, " ".join(err.split())

    def answers(self, name: str) -> list[dict[str, Any]]:
        lines = (self.folder / name / "decisions.jsonl").read_text().splitlines()
        return [json.loads(line)["answers"][0] for line in lines]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Files:
    return Files(tmp_path, monkeypatch, capfd)


def test_the_command_answers_a_file_and_says_how_good_it_was(files: Files) -> None:
    names = ["Kai", "Emma", "Hugo"]
    orders = (((0, 1, 2), "Emma"), ((2, 1, 0), "Emma"), ((0, 2, 1), "Kai"))
    question = {"type": "choice", "name": "first", "choices": names, "template": '["{slot}", "'}
    files.write(question, [(f"Sort the list:\n{json.dumps([names[k] for k in order])}", one) for order, one in orders])
    code, out, err = files.run("name=out")
    assert code == 0, err
    assert "first: 3 labelled, accuracy 0.667" in out and "3 answers, forwards 1, rows 3" in out
    assert [answer["choice"] for answer in files.answers("out")] == ["Emma"] * 3
    code, _, err = files.run("task.calibrate=true")
    assert code == 2 and "needs at least 20" in err


KAI = {"type": "choice", "name": "first", "choices": ["Kai", "Emma"], "template": '["{slot}", "'}


@pytest.mark.parametrize(
    ("question", "lines", "words", "told"),
    [
        ({"name": ["a"]}, [], [], "name=\\['a'\\] of question 1"),
        ({"choices": [1, 2]}, [], [], "question 'first' of .*: choices must be a list of texts"),
        ({"type": "chioce"}, [], [], "Did you mean 'choice'"),
        ({}, [("Kai", "Bob")], [], "line 1 .*: truth first='Bob' is not an alternative"),
        ({}, [("Kai", "Kai"), ("", "Kai")], [], "state 2 of .*: the prompt is empty"),
        ({}, [("Kai", "Kai"), ("Kai " * 3000, "Kai")], [], "state 2 of .* more than the model's limit"),
        (
            {"template": '["E{slot}', "choices": ["mma", "x"]},
            [("Kai", "x")],
            [],
            "state 1 .*question 'first': 'mma' me",
        ),
        ({}, [("Kai", "Kai")], ["sampling.temperature=0.5"], "sampling.temperature has no meaning for task=decide"),
        ({}, [("Kai", "Kai")], ["gen_length=8"], "gen_length has no meaning"),
        ({}, [("Kai", "Kai")], ["task.estimator=locl"], "Did you mean 'local'"),
        (
            {},
            [("Kai", None)],
            ["task.calibrate=true"],
            "task.calibrate=true needs lines with truth, and there are none",
        ),
        ({}, [("Kai", "Kai")] * 19, ["task.calibrate=true"], "truth of 19 answers .* needs at least 20 that are wrong"),
    ],
)
def test_what_the_command_cannot_answer_is_refused_before_weights_are_read(
    files: Files,
    monkeypatch: pytest.MonkeyPatch,
    question: dict[str, Any],
    lines: list[tuple[str, str | None]],
    words: list[str],
    told: str,
) -> None:
    monkeypatch.setattr("dllm.app.runs.plan.RunPlan.load", lambda plan: pytest.fail("weights were read"))
    (files.folder / "q.json").write_text(json.dumps([{**KAI, **question}]))
    states = [json.dumps({"prompt": state, "truth": {"first": truth} if truth else {}}) for state, truth in lines]
    (files.folder / "p.jsonl").write_text("\n".join(states))
    code, _, err = files.run(*words)
    assert code == 2 and re.search(told, err), err


def test_commands_read_settings_that_exist() -> None:
    assert {*map(str, composed([])), "experiment"} >= decide.ITS_OPTIONS | serve.SERVER_SETTINGS


POOL = (
    "Bahu",
    "Boochut",
    "Briceex",
    "Ceabeet",
    "Chaiyur",
    "Cheeng",
    "Clacoo",
    "Cobairt",
    "Dije",
    "Drelu",
    "Drix",
    "Deal",
)


@pytest.mark.program
def test_a_fitted_temperature_is_read_by_the_command_by_python_and_by_the_server(files: Files) -> None:
    """Spelt names, a fifth of which are wrong. Scores stay, probabilities are theirs at the temperature."""
    rng = Random(1)
    lists = [rng.sample(POOL, 5) for _ in range(150)]
    question = {"type": "choice", "name": "first", "choices": list(POOL), "template": '["{slot}", "'}
    cheap = "task.estimator=marginal"  # a canvas for each question
    files.write(question, [(f"Sort the list:\n{json.dumps(names)}", min(names)) for names in lists])
    code, out, err = files.run(cheap, "task.calibrate=true", "name=fit")
    assert code == 0, err
    kept = str(files.folder / "fit" / "calibration.json")
    content = json.loads(Path(kept).read_text())
    fit = content["types"]["choice"]
    assert content["model"] == "mini-llada" and fit["items"] == 150 and 1 < fit["temperature"] < 10
    assert fit["nll_after"] < fit["nll_before"] and f"choice: T {fit['temperature']:.2f} from 150 answers" in out

    code, out, err = files.run(cheap, f"model.calibration={kept}", "name=again")
    assert code == 0 and f"T {fit['temperature']:.2f}" in out, err
    answer, before = files.answers("again")[0], files.answers("fit")[0]
    assert answer["diffusion"]["calibrated"] and answer["diffusion"]["temperature"] == fit["temperature"]
    assert not before["diffusion"]["calibrated"] and answer["choice"] == before["choice"]
    cold = [one["probability"] for one in before["probabilities"]]
    warm = softmax([log(p) for p in cold], fit["temperature"])
    assert [one["probability"] for one in answer["probabilities"]] == pytest.approx(warm, abs=1e-9)

    state = f"Sort the list:\n{json.dumps(lists[0])}"
    asked = Choice(POOL, template='["{slot}", "')
    python = Decoder(load("mini-llada")).decide(state, first=asked, estimator="marginal", calibration=kept)
    assert python["first"].calibrated
    assert list(python["first"].probabilities.values()) == pytest.approx(warm, abs=1e-5)

    config: Any = OmegaConf.to_container(composed(["task=serve", f"model.calibration={kept}"]), resolve=True)
    service = service_of(config, plan_of(config), ServeSettings(port=0))
    assert service.defaults.calibration == {"choice": fit["temperature"]}
    body: dict[str, Any] = {"input": state, "questions": [{**question, "choices": [{"value": name} for name in POOL]}]}
    template = {"template": body["questions"][0].pop("template"), "estimator": "marginal"}
    with live(service.defaults.model, defaults=service.defaults) as server, server.client() as client:
        told, own = (
            client.post("/v1/decisions", json={**body, "diffusion": {**template, **more}}).json()["answers"][0]
            for more in ({}, {"temperature": 1.0})
        )
    assert told["diffusion"]["calibrated"] and not own["diffusion"]["calibrated"]
    assert [one["probability"] for one in told["probabilities"]] == pytest.approx(warm, abs=1e-5)
    assert [one["probability"] for one in own["probabilities"]] == pytest.approx(cold, abs=1e-5)

    code, _, err = files.run("model=mini-dream", f"model.calibration={kept}")
    assert code == 2 and "was fitted for mini-llada, and this model is mini-dream" in err
    code, _, err = files.run("model.calibration=nowhere.json")
    assert code == 2 and "is not a file of task=decide" in err
