"""A sweep's command line as the command lines of its grids, so that one sweep may hold several grids."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from math import prod
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Glob, Override

from dllm.app.command_line.options import check_name
from dllm.app.command_line.overrides import names, parsed, quote
from dllm.app.command_line.refusals import check
from dllm.app.jobs.plan import fresh_folder
from dllm.app.jobs.store import writing
from dllm.compose.parts import choices, composed
from dllm.errors import UserError

OWN = ("name", "output", "experiment", "grids", "hydra.sweep.dir")  # what the sweep itself needs to know
PLACE = ("name", "hydra.sweep.dir")  # given anew to every grid


def expanded(overrides: Sequence[str]) -> list[list[str]]:
    """The settings of each grid of a sweep.

    All grids go into one folder, output/name or hydra.sweep.dir, whose cells are named by what they hold.
    """
    given = {text: names([text])[0] for text in overrides}
    config = composed([text for text, name in given.items() if name in OWN], whole=True)
    if "resume" in given.values():
        raise UserError("resume is for a single run. To go on with a sweep, give its command again with name=NAME.")
    grids = list(grids_of(config.grids))
    for grid in grids:
        check(grid, sweep=True)
    folder = folder_of(config, list(given.values()))
    if (folder / "config.yaml").exists():
        raise UserError(f"{folder} is the folder of a single run. Choose another name=NAME for the sweep.")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    place = [f"name={quote(folder.name)}", f"hydra.sweep.dir={quote(str(folder))}"]
    kept = [text for text, name in given.items() if name not in PLACE]
    return [[*grid, *kept, *place] for grid in grids]


def folder_of(config: Any, given: Sequence[str]) -> Path:
    """Where the sweep goes. ``given``: the names that the user set."""
    if "hydra.sweep.dir" in given:
        for name in ("name", "output"):
            if name in given:
                raise UserError(f"hydra.sweep.dir and {name}={config[name]} both say where the sweep goes. Drop one.")
        return Path(str(config.hydra.sweep.dir))
    if config.name is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("a sweep by several processes needs name=NAME: they must agree on a folder.")
    if config.name is None:
        return fresh_folder(Path(str(config.output)), datetime.now().strftime("%Y-%m-%d_%H-%M-%S"))
    check_name(str(config.name))
    return Path(str(config.output)) / str(config.name)


def count(overrides: Sequence[str]) -> int:
    """How many combinations Hydra makes of the settings of a grid."""
    return prod(_tried(override) for text in overrides if (override := parsed(text)) is not None)


def _tried(override: Override) -> int:
    """How many values a setting tries."""
    value = override.value()
    if isinstance(value, Glob):
        return len(value.filter(choices(str(override.key_or_group))))
    return len(list(override.sweep_iterator())) if override.is_sweep_override() else 1


def refuse_grids(grids: Any, overrides: Sequence[str]) -> None:
    """Raise UserError for grids in a run without -m, which would see none of their settings."""
    if grids != [{}]:
        total = sum(map(count, grids_of(grids)))
        asked = next((text for text in overrides if text.startswith(("experiment=", "grids="))), "grids")
        raise UserError(f"{asked} asks for {total} combinations: add -m to run them all, or drop it.")


def grids_of(grids: Any) -> Iterator[list[str]]:
    """``{NAME: [VALUES]}`` as ``NAME=VALUE,VALUE``. Raises UserError for anything else."""
    if not isinstance(grids, Sequence) or isinstance(grids, str) or not grids:
        raise UserError(f"grids={'null' if grids is None else grids} must be a list of {{NAME: [VALUES]}}.")
    for grid in grids:
        if not isinstance(grid, Mapping):
            raise UserError(f"grids must be a list of {{NAME: [VALUES]}}, and holds {grid!r}.")
        yield [f"{key}={_values(value)}" for key, value in grid.items()]


def _values(value: Any) -> str:
    entries = [value] if isinstance(value, str) or not isinstance(value, Sequence) else value
    return ",".join("null" if entry is None else _entry(entry) for entry in entries)


def _entry(entry: Any) -> str:
    """A text with signs that mean something to Hydra in quotes."""
    return quote(entry) if isinstance(entry, str) and not re.fullmatch(r"[\w./+-]+", entry) else str(entry)
