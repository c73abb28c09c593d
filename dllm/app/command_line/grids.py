"""Splits a sweep's command line into one for each of its grids, so that a sweep may hold several grids."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Glob, Override

from dllm.app.command_line.options import check_name
from dllm.app.command_line.overrides import hydra_quote, parsed_override, setting_names
from dllm.app.command_line.refusals import refuse_settings
from dllm.app.runs.destinations import fresh_folder, writing
from dllm.common.errors import UserError
from dllm.compose.config_choices import choices
from dllm.compose.parts import composed
from dllm.record.folders import CONFIG, SWEEP

UNQUOTED = re.compile(r"[\w./+-]+|glob\(.*\)")  # values that are not quoted
SWEEP_SETTINGS = ("name", "output", "experiment", "grids", "hydra.sweep.dir")  # settings that are read here
PLACE_SETTINGS = ("name", "hydra.sweep.dir")  # settings that each grid has its own of


@dataclass(frozen=True)
class Sweep:
    """What a sweep's command line asks for. Its cells are named by what they hold."""

    grids: list[list[str]]  # the settings of each grid
    folder: Path  # where all cells go: output/name, or hydra.sweep.dir
    new_folders: list[Path]  # the folders made for this sweep, the inmost first

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Remove the new folders again where the sweep ends early and left nothing in them."""
        try:
            yield
        except BaseException:
            if self.new_folders and [entry.name for entry in self.folder.iterdir()] in ([], [SWEEP]):
                (self.folder / SWEEP).unlink(missing_ok=True)
                with suppress(OSError):  # others may have put something into an outer one
                    for place in self.new_folders:
                        place.rmdir()
            raise


def expanded(overrides: Sequence[str]) -> Sweep:
    """The grids of a sweep, and its folder. Raises UserError for what no sweep can take."""
    names = {text: setting_names([text])[0] for text in overrides}
    config = composed([text for text, name in names.items() if name in SWEEP_SETTINGS], whole=True)
    if "resume" in names.values():
        raise UserError("resume is for a single run. To go on with a sweep, give its command again with name=NAME.")
    grids = list(grids_of(config.grids))
    for grid in grids:
        refuse_settings(grid, sweep=True)
    user_folder = sweep_folder(config, list(names.values()))
    above = Path(str(config.output)) if user_folder is None else user_folder.parent
    new_folders = [place for place in (above, *above.parents) if not place.exists()]
    if user_folder is None or not user_folder.exists():
        folder = new_folder(above, user_folder)
        new_folders = [folder, *new_folders]
    elif (user_folder / CONFIG).exists():
        raise UserError(f"{user_folder} is the folder of a single run. Choose another name=NAME for the sweep.")
    else:
        folder = user_folder
    place = [f"name={hydra_quote(folder.name)}", f"hydra.sweep.dir={hydra_quote(str(folder))}"]
    settings = [text for text, name in names.items() if name not in PLACE_SETTINGS]
    return Sweep([[*grid, *settings, *place] for grid in grids], folder, new_folders)


def new_folder(above: Path, folder: Path | None) -> Path:
    """Make the sweep's folder; without a name it has the time's."""
    if folder is None:
        return fresh_folder(above)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def sweep_folder(config: Any, names: Sequence[str]) -> Path | None:
    """The folder that the user named; None: none. names: the settings that the user set."""
    if "hydra.sweep.dir" in names:
        for name in ("name", "output"):
            if name in names:
                raise UserError(f"hydra.sweep.dir and {name}={config[name]} both say where the sweep goes. Drop one.")
        return Path(str(config.hydra.sweep.dir))
    if config.name is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("a sweep by several processes needs name=NAME: they must agree on a folder.")
    if config.name is None:
        return None
    check_name(str(config.name))
    return Path(str(config.output)) / str(config.name)


def combinations(overrides: Sequence[str]) -> int:
    """How many combinations Hydra makes of the settings of a grid. The last value given to a setting is its value."""
    last = {override.key_or_group: override for text in overrides if (override := parsed_override(text)) is not None}
    return prod(map(_value_count, last.values()))


def swept_names(overrides: Sequence[str]) -> set[str]:
    """The settings that a grid tries with several values."""
    return {
        str(override.key_or_group)
        for text in overrides
        if (override := parsed_override(text)) is not None and _value_count(override) > 1
    }


def _value_count(override: Override) -> int:
    value = override.value()
    if isinstance(value, Glob):
        return len(value.filter(choices(str(override.key_or_group))))
    return len(list(override.sweep_iterator())) if override.is_sweep_override() else 1


def refuse_grids(grids: Any, overrides: Sequence[str]) -> None:
    """Raise UserError for grids without -m, since a single run would ignore them."""
    if grids != [{}]:
        total = sum(map(combinations, grids_of(grids)))
        source = next((text for text in overrides if text.startswith(("experiment=", "grids="))), "grids")
        raise UserError(f"{source} asks for {total} combinations: add -m to run them all, or drop it.")


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
    """A value in Hydra's grammar: text is quoted where it holds signs that have a meaning there, a mapping as JSON.
    ``glob(*)`` stays what it is, every choice of a group."""
    if isinstance(entry, Mapping):
        return hydra_quote(json.dumps(dict(entry), ensure_ascii=False))
    return hydra_quote(entry) if isinstance(entry, str) and not UNQUOTED.fullmatch(entry) else str(entry)
