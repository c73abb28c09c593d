"""A sweep's command line as the command lines of its grids, so that one sweep may hold several grids."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from math import prod
from pathlib import Path
from typing import Any

from dllm.errors import UserError
from dllm.parts import composed
from dllm.run.overrides import names, parsed
from dllm.store import writing

FLAGS = ("-m", "--multirun")
OWN = ("name", "output", "experiment", "grids")  # what the sweep itself needs to know


def expanded(arguments: Sequence[str]) -> list[list[str]]:
    """Hydra's arguments for each grid; without ``-m`` the arguments as they are.

    All grids go into one folder, output/name, whose cells are named by what they hold.
    """
    if not any(flag in arguments for flag in FLAGS):
        return [list(arguments)]
    own = [text for text in arguments if (found := parsed(text)) is not None and str(found.key_or_group) in OWN]
    config = composed(own)
    if config.name is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("a sweep by several processes needs name=NAME: they must agree on a folder.")
    name = config.name or datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = Path(str(config.output)) / str(name)
    if (folder / "config.yaml").exists():
        raise UserError(f"{folder} is the folder of a single run. Choose another name=NAME for the sweep.")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    place = [f"name={name!r}", f"hydra.sweep.dir={str(folder)!r}"]
    kept = [text for text in arguments if text not in FLAGS and (text not in own or names([text]) != ["name"])]
    return [["-m", *grid, *kept, *place] for grid in grids_of(config.grids)]


def count(arguments: Sequence[str]) -> int:
    """How many combinations Hydra makes of the arguments."""
    overrides = (parsed(text) for text in arguments if not text.startswith("-"))
    return prod(len(list(o.sweep_iterator())) for o in overrides if o is not None and o.is_sweep_override())


def grids_of(grids: Any) -> Iterator[list[str]]:
    """``{NAME: [VALUES]}`` as ``NAME=VALUE,VALUE``. Raises UserError for anything else."""
    for grid in grids:
        if not isinstance(grid, Mapping):
            raise UserError(f"grids must be a list of {{NAME: [VALUES]}}, and holds {grid!r}.")
        yield [f"{key}={_values(value)}" for key, value in grid.items()]


def _values(value: Any) -> str:
    entries = [value] if isinstance(value, str) or not isinstance(value, Sequence) else value
    return ",".join("null" if entry is None else str(entry) for entry in entries)
