"""Recorded decodes of the published implementations, replayed case by case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import replay_causal
import replay_lengths
import replay_noise
import replay_requests
import replay_soft
from harness import full
from replay import AUP, ELSEWHERE, METHODS, MODELS, main, replay

FILES = {file: json.loads(file.read_text())["method"] for file in Path(__file__).parent.glob("data/goldens/*.json")}
GOLDENS = sorted(file for file, method in FILES.items() if method not in ELSEWHERE)


def test_every_method_has_its_file() -> None:
    others = (replay_causal.METHODS, replay_requests.METHODS, replay_noise.METHODS, replay_lengths.METHODS,
              replay_soft.METHODS)  # fmt: skip
    assert set(FILES.values()) == {*METHODS, *(name for names in others for name in names), AUP, *ELSEWHERE}


def test_files_with_a_script_of_their_own_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    others = [file for file, method in FILES.items() if method in ELSEWHERE]
    assert main([str(file) for file in others]) == 0
    lines = capsys.readouterr().out.splitlines()
    commands = [line.rpartition(": python ")[2] for line in lines]
    assert commands == [f"{ELSEWHERE[FILES[file]]} {file}" for file in others]
    assert all((Path(__file__).parents[1] / script).is_file() for script in ELSEWHERE.values())


@pytest.mark.daily(len(GOLDENS))  # every file, in each test run
@pytest.mark.parametrize("file", GOLDENS, ids=lambda file: file.stem)
def test_every_recorded_decode_is_reproduced(file: Path) -> None:
    data = json.loads(file.read_text())
    _, outcome = replay(file, MODELS, sample=not full())
    assert outcome == [None] * sum(len(data.get(name, [])) for name in ("cases", "sampler_cases", "batches"))


@pytest.mark.program  # minutes: make test decodes every third case
def test_the_command_replays_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(list(map(str, GOLDENS))) == 0, capsys.readouterr().err


def case(**changes: Any) -> dict[str, Any]:
    (first, *_) = json.loads((GOLDENS[0].parent / "learn2pd.json").read_text())["cases"]
    return {**first, **changes, "params": {**first["params"], "cache": "none", **changes.get("params", {})}}


@pytest.mark.parametrize(
    ("method", "cases", "line", "words"),
    [
        ("later", [case(), case()], "later: 0 of 2 cases equal", "case 0, 1: method=later is unknown here"),
        ("learn2pd", [case(params={"cache": "d2"})], "learn2pd: 0 of 1 cases equal", "cache=d2 is unknown here"),
        ("learn2pd", [case(layers=[3])], "learn2pd: 0 of 1 cases equal", "case 0: layers cannot be compared here"),
        ("learn2pd", [case(queries=[3])], "learn2pd: 0 of 1 cases equal", "case 0: queries differ"),
        ("learn2pd", [case(nfe=0)], "learn2pd: 0 of 1 cases equal", "nfe differ"),
        ("later", [], "later: 0 of 1 cases equal", "case 0: method=later is unknown here"),
        ("learn2pd", [], "learn2pd: 0 of 1 cases equal", "case 0: it has no cases"),
    ],
)
def test_what_is_not_replayed_is_a_failure_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str, cases: list[Any], line: str, words: str
) -> None:
    filters = json.loads((GOLDENS[0].parent / "learn2pd.json").read_text())["filters"]
    file = tmp_path / "golden.json"
    file.write_text(json.dumps({"method": method, "cases": cases, "filters": filters}))
    assert main([str(file)]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == line and words in err


def causal(method: str, part: str = "cases", **changes: Any) -> dict[str, Any]:
    """A file of one case or batch of a causal model's method, with ``changes``."""
    data = json.loads((GOLDENS[0].parent / f"{method}.json").read_text())
    return {"method": method, part: [{**data[part][0], **changes}]} | ({} if part == "cases" else {"cases": []})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (causal("wedlm", nfe=0), "nfe differ"),
        (causal("wedlm", cached=[]), "cached differ"),
        (causal("wedlm", queries=[3]), "queries cannot be compared here"),
        (causal("nbdiff", kinds=[]), "kinds differ"),
        (causal("nbdiff", patched=["more"]), "patched=more is unknown here"),
        (causal("nbdiff", "batches", lockstep_nfe=1), "lockstep_nfe differ"),
        (causal("nbdiff", "batches", steps=1), "steps cannot be compared here"),
        ({"method": "wedlm", "cases": []}, "it has no cases"),
    ],
)
def test_what_differs_in_a_causal_decode_is_named(data: dict[str, Any], words: str, tmp_path: Path) -> None:
    file = tmp_path / "golden.json"
    file.write_text(json.dumps(data))
    assert replay(file, MODELS, sample=True)[1] == [words]
