"""Which recorded decodes notice a parameter that is moved: ``python tests/sharpness.py FILE... [--models DIR]``.

A line for each file and parameter: the cases that are no longer equal with the parameter 5 % lower, and 5 % higher
(whole numbers: by one). A case whose changed parameter is refused is not counted. Exit code 1, and stderr says which,
where no case notices a parameter and no exception names it in the file's own ``exceptions`` ({parameter: reason}). No
exception is needed where the published code does not use the parameter (``unused`` of METHOD.yaml), where each changed
value is refused, and where sharp/NAME.json beside a file NAME.json notices it. A file whose method was not recorded on
flatter models says why in its field ``sharp``, which is printed first. A case that cannot be tried at all is named,
too: exit code 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "support"))  # what the tests share

import torch
from replay import ELSEWHERE, MODELS, outcomes, refusal
from replay_params import CANVAS, NEUTRAL, unused

SHARP = Path(__file__).parent / "data" / "goldens" / "sharp"

MOVE = 0.05
Data = dict[str, Any]


def moved(value: Any, way: int) -> Any:
    """The value 5 % lower (way -1) or higher (1), a whole number by one, each number of a list; None: it is no number,
    or 0."""
    if isinstance(value, list) and value and all(type(one) in (int, float) for one in value):
        return [one * (1 + way * MOVE) for one in value]
    if type(value) is int:
        return value + way
    return value * (1 + way * MOVE) or None if type(value) is float else None


def notices(data: Data, number: int, name: str, way: int, models: Path) -> bool | None:
    """Whether a case is no longer equal where a parameter is moved; None: it cannot be moved, or is refused."""
    case = data["cases"][number]
    value = moved(case["params"].get(name), way)
    if value is None:
        return None
    other = {**case, "params": {**case["params"], name: value}}
    try:
        (fault,) = outcomes({**data, "cases": [other], "sampler_cases": [], "batches": [], "strays": True}, models)
    except Exception:  # a value that the part, or the loop of the mapping, refuses
        return None
    return fault is not None and "would be left out" not in fault


def names_of(data: Data) -> list[str]:
    """The parameters of the rule that can be moved."""
    params = [
        {name: value for name, value in case["params"].items() if value not in NEUTRAL.get(name, ())}
        for case in data.get("cases", ())
        if "params" in case
    ]
    return sorted(
        {name for one in params for name, value in one.items() if name not in CANVAS and moved(value, 1) is not None}
    )


def noticing(data: Data, name: str, models: Path, first: bool = False) -> dict[int, list[int]] | None:
    """The cases that notice a parameter, by the way it is moved; None: each move is refused. first: the first alone."""
    cases = dict[int, list[int]]({-1: [], 1: []})
    tried = False
    for number in range(len(data["cases"])):
        for way in cases:
            noticed = notices(data, number, name, way, models)
            tried |= noticed is not None
            if noticed:
                cases[way].append(number)
                if first:
                    return cases
    return cases if tried else None


@cache
def noticed_beside(file: Path, name: str, models: Path) -> bool:
    """Whether the sharp recordings of the same method notice a parameter."""
    beside = file.parent / "sharp" / file.name
    cases = noticing(json.loads(beside.read_text()), name, models, first=True) if beside.is_file() else None
    return cases is not None and any(cases.values())


def exception(data: Data, name: str) -> str | None:
    """Why no case notices a parameter: in the file's words, or in those of the suite's recording of the same method."""
    ours = SHARP / f"{data['method']}.json"
    named = json.loads(ours.read_text()).get("exceptions", {}) if ours.is_file() else {}
    own: str | None = {**named, **data.get("exceptions", {})}.get(name)
    return own or unused(data["method"]).get(name)


def lines(file: Path, models: Path, first: bool = False) -> Iterator[tuple[str, bool]]:
    """A line for each parameter, and whether the law holds for it."""
    data = json.loads(file.read_text())
    label = f"sharp/{file.name}" if file.parent.name == "sharp" else file.name
    if why := data.get("sharp"):
        yield f"{label}: not recorded on flatter models: {why}", True
    refused = [
        (number, why)
        for number, case in enumerate(data.get("cases", ()))
        if (why := refusal(case, models, data["method"]))
    ]
    yield from ((f"{label}, case {number}: {why}", False) for number, why in refused)
    for name in names_of(data) if not refused else ():
        yield line(file, label, data, name, models, first)


def line(file: Path, label: str, data: Data, name: str, models: Path, first: bool) -> tuple[str, bool]:
    cases = noticing(data, name, models, first)
    if cases is None:
        return f"{label} {name}: each change is refused", True
    if any(cases.values()):
        lower, higher = (" ".join(map(str, numbers)) or "none" for numbers in cases.values())
        return f"{label} {name}: lower {lower}; higher {higher}; of {len(data['cases'])}", True
    if noticed_beside(file, name, models):
        return f"{label} {name}: none; sharp/{file.name} does", True
    why = exception(data, name)
    return f"{label} {name}: none" + f"; {why}" * bool(why), why is not None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--models", type=Path, default=MODELS)
    parser.add_argument("--first", action="store_true", help="only until a case notices a parameter")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    blunt: list[str] = []
    for file in options.files:
        if json.loads(file.read_text())["method"] in ELSEWHERE:
            continue
        for said, holds in lines(file, options.models, options.first):
            print(said, flush=True)
            blunt += [] if holds else [said]
    if blunt:
        print("Noticed by no case, and no exception names it, or not to be tried:", *blunt, sep="\n  ", file=sys.stderr)
    return int(bool(blunt))


if __name__ == "__main__":
    sys.exit(main())
