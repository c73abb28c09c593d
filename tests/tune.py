"""Replay recorded choices of settings through the product's own functions: ``python tests/tune.py FILE ...``.

A case is a table of losses by setting and item (``search``, ``confirm``), with costs. Compared are the settings that
the search keeps, the order of testing, each p-value to 1e-12, and the choice. Exit code 1: a case differs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dllm.scoring.promise import Promise, choose


@dataclass(frozen=True)
class Numbers:
    """Losses that are there: by setting and item."""

    searching: Sequence[Sequence[float]]
    confirming: Sequence[Sequence[float]]
    costs: Sequence[float]

    def search(self, settings: Sequence[int], count: int) -> Mapping[int, tuple[Sequence[float], float]]:
        return {k: (self.searching[k][:count], self.costs[k]) for k in settings}

    def confirm(self, setting: int) -> Sequence[float]:
        return self.confirming[setting]


def differences(case: Mapping[str, Any]) -> list[str]:
    """What differs from the record, in words."""
    table = Numbers(case["search"], case["confirm"], case["costs"])
    promise = Promise(case["allowed"], case["alpha"], case["binary"])
    choice = choose(table, len(case["costs"]), len(case["search"][0]), promise, case["reference"])
    found = {
        "kept": list(choice.kept),
        "order": list(choice.order),
        "chosen": choice.chosen,
        "tested": [test.setting for test in choice.tested],
    }
    wanted = {**{name: case[name] for name in found}, "tested": [setting for setting, _ in case["tested"]]}
    out = [f"{name} is {found[name]}, recorded {wanted[name]}" for name in found if found[name] != wanted[name]]
    for test, (setting, p) in zip(choice.tested, case["tested"], strict=False):
        if abs(test.p - p) > 1e-12:
            out.append(f"p of setting {setting} is {test.p!r}, recorded {p!r}")
    return out


def main(files: Sequence[str]) -> int:
    cases = [
        (file, number, case)
        for file in files
        for number, case in enumerate(json.loads(Path(file).read_text(encoding="utf-8"))["cases"], 1)
    ]
    wrong = {(file, number): found for file, number, case in cases if (found := differences(case))}
    for (file, number), found in wrong.items():
        print(f"{file}, case {number}: {'; '.join(found)}")
    print(f"{len(cases) - len(wrong)} of {len(cases)} cases equal")
    return int(bool(wrong) or not cases)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
