"""What the recorded decodes compare: ``python tests/compared.py [FILE ...] [--write]``.

Of each file: how many cases are equal, how many with the shipped parts alone, which accidents of the published program
the others need, the parts that decode, and on flatter models how many cases notice each parameter (``sharpness``).
``--write`` keeps it in ``COMPARED``, from which the site makes the pages of the parts (``experiments.pages``). Without
it the exit code is 1 where ``COMPARED`` says otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "support"))  # what the tests share

import torch
from accidents import ACCIDENTS, replaying
from replay import ELSEWHERE, MODELS, PARTS, outcomes
from sharpness import names_of, noticing

GOLDENS = Path(__file__).resolve().parent / "data" / "goldens"
COMPARED = Path(__file__).parent / "data" / "compared.json"
Row = dict[str, Any]


def name_of(file: Path) -> str:
    file = file.resolve()
    return str(file.relative_to(GOLDENS).with_suffix("")) if file.is_relative_to(GOLDENS) else file.stem


def compared(data: Row, models: Path = MODELS) -> Row:
    """The numbers of one file, without those of its sharpness."""
    equal, plain, used, parts = 0, 0, set[str](), set[type]()
    asked = [(part, case) for part in PARTS for case in data.get(part, ())]
    for part, case in asked:
        one = {**data, **{name: [] for name in PARTS if name in data}, part: [case]}
        with replaying() as now:
            (fault,) = outcomes(one, models)
        equal += fault is None
        parts |= now.parts
        helped = now.used
        if helped and helped <= ACCIDENTS.keys():
            with replaying([]):
                (fault,) = outcomes(one, models)
            helped = helped if fault else set()
        used |= helped
        plain += fault is None and not helped
    return {
        "cases": len(asked),
        "equal": equal,
        "plain": plain,
        "accidents": {name: ACCIDENTS[name][1] for name in sorted(used & ACCIDENTS.keys())},
        "stand_ins": sorted(used - ACCIDENTS.keys()),
        "parts": sorted(f"{kind.__module__}.{kind.__name__}" for kind in parts),
    }


def sharp(data: Row, models: Path = MODELS) -> Row:
    """How many cases notice each parameter."""
    cases = {name: noticing(data, name, models) for name in names_of(data)}
    return {name: len({*ways[-1], *ways[1]}) for name, ways in cases.items() if ways and any(ways.values())}


def line(name: str, row: Row) -> str:
    words = f"{name}: {row['equal']} of {row['cases']} equal, {row['plain']} with the shipped parts alone"
    more = "; ".join([*row["accidents"].values(), *(f"stand-in {one}" for one in row["stand_ins"])])
    return f"{words}; {more}" if more else words


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--sharp", action="store_true", help="count again which cases notice a parameter")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    known = json.loads(COMPARED.read_text()) if COMPARED.is_file() else {}
    files = options.files or sorted([*GOLDENS.glob("*.json"), *GOLDENS.glob("sharp/*.json")])
    other = 0
    for file in files:
        data = json.loads(file.read_text())
        if data["method"] in ELSEWHERE:
            continue
        name = name_of(file)
        row, before = compared(data), known.get(name, {})
        counted = sharp(data) if options.sharp and name.startswith("sharp/") else before.get("sharp", {})
        row |= {"sharp": counted} if counted else {}
        other += row != before
        known[name] = row
        print(line(name, row), flush=True)
    if options.write:
        COMPARED.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
    return int(bool(other) and not options.write)


if __name__ == "__main__":
    sys.exit(main())
