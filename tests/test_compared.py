"""What the pages say of the recorded decodes is so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from accidents import ACCIDENTS
from compared import COMPARED, GOLDENS, compared, name_of
from replay import ELSEWHERE, MODELS, outcomes

KNOWN = json.loads(COMPARED.read_text())
FILES = sorted(
    file
    for file in (*GOLDENS.glob("*.json"), *GOLDENS.glob("sharp/*.json"))
    if json.loads(file.read_text())["method"] not in ELSEWHERE
)


def test_every_file_is_told() -> None:
    assert KNOWN.keys() == {name_of(file) for file in FILES}
    assert [name for name, row in KNOWN.items() if row["equal"] != row["cases"]] == []


@pytest.mark.daily(30)  # each takes 1.3 s, and its decodes are replayed and moved by other tests every day
@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_the_numbers_of_a_file_are_counted(file: Path) -> None:
    known = {name: value for name, value in KNOWN[name_of(file)].items() if name != "sharp"}
    assert compared(json.loads(file.read_text())) == known


def slowfast(**changes: Any) -> dict[str, Any]:
    """A file of one case that needs its accident."""
    data = json.loads((GOLDENS / "sharp" / "slowfast.json").read_text())
    alone = outcomes({**data, "cases": [{**case, "accident": []} for case in data["cases"]]}, MODELS)
    case = next(case for case, fault in zip(data["cases"], alone, strict=True) if fault)
    return {**data, "cases": [{**case, **changes}]}


def test_a_case_chooses_its_accidents() -> None:
    assert outcomes(slowfast(), MODELS) == [None]
    assert outcomes(slowfast(accident=["AllSlow"]), MODELS) == [None]
    assert outcomes(slowfast(accident="AllSlow"), MODELS) == [None]
    (fault,) = outcomes(slowfast(accident=[]), MODELS)
    assert fault is not None and fault.endswith("differ")


def test_an_unknown_accident_is_a_failure_that_names_the_known_ones() -> None:
    (fault,) = outcomes(slowfast(accident=["Later"]), MODELS)
    known = ", ".join(sorted(ACCIDENTS))
    assert fault == f"accident=Later is unknown here: those are {known}; [] is the shipped parts alone"


@pytest.mark.parametrize("name", ["mask proposed", 3, ["AllSlow", "Later"]])
def test_a_mark_of_another_method_is_no_accident_here(name: Any) -> None:
    """DMax's files mark cases by words which mean nothing to other methods."""
    (fault,) = outcomes(slowfast(accident=name), MODELS)
    assert fault is not None and fault.startswith(f"accident={name[-1] if isinstance(name, list) else name} is unknown")
