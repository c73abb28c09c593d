"""What was compared with a method's published program, as a line of its page, from ``tests/data/compared.json``.

``python tests/compared.py --write`` makes that file: it replays every recorded decode.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from dllm.compose.choice_files import part_facts
from dllm.compose.config_choices import choice_text
from experiments.pages.golden_sources import CODE, GOLDENS, INDEPENDENT

COMPARED = Path(__file__).parents[2] / "tests" / "data" / "compared.json"


@cache
def rows() -> Mapping[str, Mapping[str, Any]]:
    """By golden file."""
    found: Mapping[str, Mapping[str, Any]] = json.loads(COMPARED.read_text())
    return found


@cache
def source(name: str) -> str:
    return str(json.loads((GOLDENS / f"{name}.json").read_text()).get("source", ""))


def files_of(group: str, name: str) -> list[str]:
    """The golden files that decode with a choice's class; those of the code that it was checked against, if there are
    any."""
    values = yaml.safe_load(choice_text(group, name)) or {}
    target = values.get(group, values).get("_target_")
    using = [file for file, row in rows().items() if target in row["parts"]]
    commits = [one.split("@")[1] for one in CODE.findall(part_facts(group, name).checked)]
    own = [file for file in using if any(commit in source(file) for commit in commits)]
    return own or [file for file in using if file.rpartition("/")[2] not in INDEPENDENT]


def compared(group: str, name: str) -> str:
    """The line of a choice; empty where no recorded decode has it."""
    found = [rows()[file] for file in files_of(group, name)]
    if not found:
        return ""
    equal, cases, plain = (sum(row[key] for row in found) for key in ("equal", "cases", "plain"))
    line = f"**Compared.** {equal} of {cases} recorded decodes are equal, "
    line += "all" if plain == cases else f"{plain} of them" if plain else "none"
    line += " with the shipped parts alone."
    several = len(found) > 4  # of many methods, whose own pages say more
    accidents = sorted({says for row in found for says in row["accidents"].values()})
    if accidents and several:
        line += " The others need what published programs do by accident."
    elif accidents:
        line += f" The others need what the published programs do by accident: {'; '.join(accidents)}."
    helped = sorted({one for row in found for one in row["stand_ins"]})
    if helped:
        line += " Schedules that are offered nowhere here stand in for the programs' own."
    return line + noticed(files_of(group, name)) * (group in ("sampler", "cache", "length") and not several)


def noticed(files: list[str]) -> str:
    """How many recorded decodes change where a parameter is moved."""
    sums: dict[str, tuple[int, int]] = {}
    for row in (rows()[file] for file in files):
        for parameter, count in row.get("sharp", {}).items():
            before = sums.get(parameter, (0, 0))
            sums[parameter] = before[0] + count, before[1] + row["cases"]
    if not sums:
        return ""
    each = ", ".join(f"`{parameter}` {count} of {cases}" for parameter, (count, cases) in sums.items())
    return f" On flatter models so many decodes change with a parameter moved by 5 % (whole numbers by one): {each}."
