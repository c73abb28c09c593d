"""Recorded decodes of the published implementations, replayed case by case."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import replay_lengths
import replay_soft
import torch
from flattened import load_model
from replay import ELSEWHERE, MODELS, REPLAYERS, main, outcomes, replay
from replay_params import Params, left_out

FOLDER = Path(__file__).parent / "data" / "goldens"
FILES = {
    file: json.loads(file.read_text())["method"] for file in (*FOLDER.glob("*.json"), *FOLDER.glob("sharp/*.json"))
}
GOLDENS = sorted(file for file, method in FILES.items() if method not in ELSEWHERE)


def test_every_method_has_its_file() -> None:
    assert {*FILES.values(), "rope_scaling"} == {*REPLAYERS, *ELSEWHERE}


def test_files_with_a_script_of_their_own_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    others = [file for file, method in FILES.items() if method in ELSEWHERE]
    assert main([str(file) for file in others]) == 0
    lines = capsys.readouterr().out.splitlines()
    commands = [line.rpartition(": python ")[2] for line in lines]
    assert commands == [f"{ELSEWHERE[FILES[file]]} {file}" for file in others]
    assert all((Path(__file__).parents[1] / script).is_file() for script in ELSEWHERE.values())


by_file = pytest.mark.parametrize("file", GOLDENS, ids=lambda file: str(file.relative_to(FOLDER).with_suffix("")))


def check(file: Path, sample: bool) -> None:
    data = json.loads(file.read_text())
    _, outcome = replay(file, MODELS, sample)
    assert outcome == [None] * sum(len(data.get(name, [])) for name in ("cases", "sampler_cases", "batches"))


@pytest.mark.daily(len(GOLDENS))  # every file, in each test run
@by_file
def test_every_third_recorded_decode_is_reproduced(file: Path) -> None:
    check(file, sample=True)


@pytest.mark.program  # minutes
@by_file
def test_every_recorded_decode_is_reproduced(file: Path) -> None:
    check(file, sample=False)


def test_the_command_replays_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(list(map(str, GOLDENS[:2]))) == 0, capsys.readouterr().err


def case(**changes: Any) -> dict[str, Any]:
    (first, *_) = json.loads((FOLDER / "learn2pd.json").read_text())["cases"]
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
    filters = json.loads((FOLDER / "learn2pd.json").read_text())["filters"]
    file = tmp_path / "golden.json"
    file.write_text(json.dumps({"method": method, "cases": cases, "filters": filters}))
    assert main([str(file)]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == line and words in err


def causal(method: str, part: str = "cases", **changes: Any) -> dict[str, Any]:
    """A file of one case or batch of a causal model's method, with ``changes``."""
    data = json.loads((FOLDER / f"{method}.json").read_text())
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


def of_model(name: Any, **params: Any) -> dict[str, Any]:
    """A file of one case, of a model of that name."""
    data = json.loads((FOLDER / "sharp" / "dkv_decode.json").read_text())
    first = data["cases"][0]
    return {**data, "cases": [{**first, "model": name, "params": {**first["params"], **params}}]}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tiny-later", "model=tiny-later is unknown: {}/tiny-later has no config.json; give its folder by --models"),
        ("tiny-x-flat3", "model=tiny-x-flat3 is unknown: {}/tiny-x has no config.json; give its folder by --models"),
        *(
            (
                f"tiny-dream-flat{scale}",
                f"model=tiny-dream-flat{scale}: its scale is no number above 0 and up to 1000, as in tiny-dream-flat3",
            )
            for scale in ("", "0", "-2", "x", "1e9", "nan", "2000")
        ),
    ],
)
def test_a_model_that_cannot_be_made_is_a_failure_that_says_why(
    name: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "golden.json"
    file.write_text(json.dumps(of_model(name)))
    assert main([str(file)]) == 1
    assert f"golden.json, case 0: {words.format(MODELS)}" in capsys.readouterr().err


def test_a_model_that_is_no_name_is_a_failure_that_says_what_one_is() -> None:
    words = "model=3 is no name of a folder in --models, as in tiny-llada or tiny-llada-flat3"
    assert outcomes(of_model(3), MODELS) == [words]


@pytest.mark.parametrize("scale", ["3", "2.5", "1"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_flat_model_has_logits_so_many_times_smaller(scale: str, dtype: torch.dtype) -> None:
    """The weight is divided in float32, whatever the model is loaded in."""
    plain, flat = (load_model(MODELS / f"tiny-dream{end}", dtype=dtype) for end in ("", f"-flat{scale}"))
    divided = plain.norm.weight.float() / float(scale)
    assert torch.equal(flat.norm.weight, divided.to(dtype))
    others = (one for name, one in flat.named_parameters() if name != "norm.weight")
    assert all(map(torch.equal, others, (one for name, one in plain.named_parameters() if name != "norm.weight")))


def test_an_unequal_parameter_is_no_equal_decode() -> None:
    """A mapping that drops one would replay both."""
    recorded = of_model("tiny-dream-flat3")["cases"][0]["params"]["eps"]
    assert outcomes(of_model("tiny-dream-flat3"), MODELS) == [None]
    assert outcomes(of_model("tiny-dream-flat3", eps=2 * recorded), MODELS) != [None]


def test_a_parameter_that_no_mapping_reads_is_a_failure() -> None:
    (fault,) = outcomes(of_model("tiny-dream-flat3", later=0.5), MODELS)
    assert fault == "later=0.5 would be left out: the mapping of dkv_decode does not read it"
    params = Params({"threshold": 0.9, "remasking": "low_confidence", "temperature": 0.3, "steps": 8})
    assert params["threshold"] and left_out("dparallel", params) == (
        "temperature=0.3 would be left out: the mapping of dparallel does not read it"
    )


def test_an_exit_at_the_last_step_is_told_from_a_schedule_that_ends() -> None:
    """Prophet's loop tests the gap in its last step, too. Both commit all that is left."""
    late = json.loads((FOLDER / "sharp" / "prophet_last.json").read_text())
    never = [{**one, "exit_step": None} for one in late["cases"]]
    assert all(one["exit_step"] == one["nfe"] == one["params"]["steps"] for one in late["cases"])
    assert outcomes(late, MODELS) == [None] * len(never)
    assert outcomes({**late, "cases": never}, MODELS) == ["exit_step differ"] * len(never)


def test_a_gap_is_sized_whatever_the_length_of_its_blocks() -> None:
    """One block of the length that is found is what the recorded programs take by themselves."""
    cases = json.loads((FOLDER / "cal.json").read_text())["cases"]
    for case in [case for case in cases if case["kind"] == "llada"][:6:2]:
        blocks = {**case, "params": {**case["params"], "block_length": case["length"]}}
        assert replay_lengths.faults(blocks, replay_lengths.filled(blocks, MODELS), replay_lengths.OF_GAP) is None


@pytest.mark.parametrize(("seed", "block"), [(7, 8), (9, 4)])
def test_a_text_that_ends_in_a_block_with_masks_ends_the_row_there(seed: int, block: int) -> None:
    """Up to that block it is the decode that does not stop early; all that is behind it is the end of the text."""
    draw, folder = Random(seed), MODELS / "tiny-llada21"
    params = {"gen_length": 24, "block_length": block, "threshold": 0.99, "top_k": 1, "early_stop": True}
    case = {"prompt": [draw.randrange(60) for _ in range(14)], "params": params, "accident": "closes with masks"}
    ends = replay_soft.dmax(case, folder)
    goes_on = replay_soft.dmax({**case, "params": {**params, "early_stop": False}}, folder)
    tokens, whole = ends["tokens"], goes_on["tokens"]
    kept = next(at + block for at in range(0, len(whole), block) if at + block > 14 and 61 in whole[at : at + block])
    assert tokens == [*whole[:kept], *[61] * (len(whole) - kept)] and 60 in tokens[:kept] and kept < len(tokens)
    assert goes_on["committed"][: ends["nfe"]] == ends["committed"]
