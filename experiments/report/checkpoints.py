"""The names of a report's checkpoints: of the model, or where several have one of the folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from experiments.report.cells import Cell


def checkpoint_names(cells: Sequence[Cell]) -> dict[str, str]:
    """The name of each checkpoint: the model's with its adapter's where that is enough, else the shortest end of the
    folder that tells it from others of the model, else with its fingerprint."""
    firsts = {cell.checkpoint: cell for cell in reversed(cells)}
    depth = max((len(PurePath(place).parts) for cell in firsts.values() for place in places(cell)), default=0)
    names = {key: named(cell, 0) for key, cell in firsts.items()}
    for level in range(1, depth + 1):
        names |= {key: named(firsts[key], level) for key in shared(names)}
    return names | {key: f"{names[key]} {key[:6]}" for key in shared(names)}


def shared(names: dict[str, str]) -> list[str]:
    """The checkpoints whose name another one has, too."""
    found = list(names.values())
    return [key for key, name in names.items() if found.count(name) > 1]


def places(cell: Cell) -> list[str]:
    """The folders of its weights and of its adapter."""
    model = cell.config["model"]
    return [str(model[key]) for key in ("path", "adapter") if model.get(key) is not None]


def named(cell: Cell, level: int) -> str:
    """level: how many folders of the path are said; 0: the model's name instead."""
    model, ends = cell.config["model"], ["/".join(PurePath(place).parts[-max(1, level) :]) for place in places(cell)]
    weights = [str(model["name"]), *ends[1:]] if level == 0 else ends
    return " + ".join(weights)
