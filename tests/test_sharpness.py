"""Each parameter of a recorded rule is noticed: moved by 5 %, it changes a decode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from replay import ELSEWHERE, MODELS
from sharpness import lines, main, moved, names_of

FOLDER = Path(__file__).parent / "data" / "goldens"
FILES = sorted(
    file
    for file in (*FOLDER.glob("*.json"), *FOLDER.glob("sharp/*.json"))
    if (data := json.loads(file.read_text()))["method"] not in ELSEWHERE and names_of(data)
)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(FOLDER).with_suffix("")))
def test_every_parameter_is_noticed_or_named(file: Path) -> None:
    assert [line for line, holds in lines(file, MODELS, first=True) if not holds] == []


@pytest.mark.parametrize(
    ("value", "lower", "higher"),
    [
        (0.8, 0.76, 0.84),
        (4, 3, 5),
        ([2, 3.0], [1.9, 2.85], [2.1, 3.15]),
        (0.0, None, None),
        (True, None, None),
        ("none", None, None),
        (None, None, None),
        ([], None, None),
        ([True], None, None),
    ],
)
def test_a_number_moves_by_a_twentieth_and_a_whole_one_by_one(value: Any, lower: Any, higher: Any) -> None:
    assert (moved(value, -1), moved(value, 1)) == (pytest.approx(lower), pytest.approx(higher))


def blunt(**changes: Any) -> dict[str, Any]:
    """A file of one case, the threshold of which no confidence is near."""
    data = json.loads((FOLDER / "llada_generate.json").read_text())
    case = next(one for one in data["cases"] if one["params"]["sampler"] == "threshold")
    return {**data, "cases": [case], **changes}


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (blunt(), 1, "golden.json threshold: none"),
        (blunt(exceptions={"threshold": "nothing is near"}), 0, "golden.json threshold: none; nothing is near"),
    ],
)
def test_a_parameter_that_no_case_notices_needs_a_reason(
    data: dict[str, Any], code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "golden.json"
    file.write_text(json.dumps(data))
    assert main([str(file)]) == code
    out, err = capsys.readouterr()
    assert words in out.splitlines() and (words in err) == bool(code)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "tiny-later"}, "model=tiny-later is unknown"),
        ({"model": "tiny-llada-flat0"}, "model=tiny-llada-flat0: its scale is no number above 0"),
        ({"accident": ["Later"]}, "accident=Later is unknown here: those are Above, "),
    ],
)
def test_a_case_that_cannot_be_tried_is_named_and_moves_nothing(
    change: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, data = tmp_path / "golden.json", blunt()
    file.write_text(json.dumps({**data, "cases": [data["cases"][0], {**data["cases"][0], **change}]}))
    assert main([str(file)]) == 1
    out, err = capsys.readouterr()
    assert out.startswith(f"golden.json, case 1: {words}") and out.count("\n") == 1 and words in err


def test_a_parameter_whose_changes_are_all_refused_needs_no_reason(tmp_path: Path) -> None:
    """An even width of Sparse-dLLM's kernel is refused, and from 3 each step leads to one."""
    data = json.loads((FOLDER / "sharp" / "sparse_dllm.json").read_text())
    file = tmp_path / "golden.json"
    file.write_text(json.dumps({**data, "cases": data["cases"][:1]}))
    assert ("golden.json kernel_size: each change is refused", True) in [*lines(file, MODELS, first=True)]


def test_every_method_is_recorded_on_a_flatter_model_or_says_why_not() -> None:
    files = [json.loads(file.read_text()) | {"name": file.name} for file in FOLDER.glob("*.json")]
    without = [data for data in files if not (FOLDER / "sharp" / data["name"]).is_file()]
    assert [data["name"] for data in without if data["method"] not in ELSEWHERE and not data.get("sharp")] == []


def test_why_a_method_was_not_recorded_again_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main([str(FOLDER / "aup.json")])
    assert capsys.readouterr().out == "aup.json: not recorded on flatter models: points of a curve: no model decodes\n"


def test_the_cases_that_notice_a_parameter_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(FOLDER / "sharp" / "frechet.json")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[1] == "sharp/frechet.json frechet_margin: lower 0 1 2 5; higher 0 1 3 4; of 6"
