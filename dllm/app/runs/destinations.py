"""Where runs go: new folders, folders to go on with, and disks that refuse. Without torch, for the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from datetime import datetime
from pathlib import Path
from typing import Any

from dllm.common.errors import UserError
from dllm.common.links import from_first
from dllm.common.plain_yaml import plain_yaml
from dllm.compose.naming import CHOICES, part_at
from dllm.compose.trusted import SECTIONS, refuse_shapes, refuse_strangers
from dllm.record.folders import CONFIG, SWEEP

NEW_FOLDERS: set[Path] = set()  # folders that this process made, which go with a run that is refused


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, and remember which were missing."""
    missing = [place.absolute() for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    NEW_FOLDERS.update(missing)


def remove_new(folder: Path) -> None:
    """Remove an empty folder, and those above it that are empty and that this process made."""
    for place in (folder.absolute(), *folder.absolute().parents):
        if place not in NEW_FOLDERS:
            return
        with suppress(OSError):  # somebody's own files in it stay
            place.rmdir()
            NEW_FOLDERS.discard(place)


def fresh_folder(parent: Path, name: str | None = None) -> Path:
    """Make a folder that no other process has. Without a name it has the time's. Folders of runs that start in the same
    second are numbered."""
    name = name or datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    return Path(from_first(lambda: str(_numbered_folder(parent, name))))


def _numbered_folder(parent: Path, name: str) -> Path:
    with writing(parent):
        make_folder(parent)
        for number in range(1, 10_000):
            folder = parent / (name if number == 1 else f"{name}-{number}")
            with suppress(FileExistsError):
                folder.mkdir()
                NEW_FOLDERS.add(folder.absolute())
                return folder
    raise UserError(f"output={str(parent)!r} is full of folders named {name}. Choose another, or name=NAME.")


def resumed(config: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The configuration in the folder, with the settings ``names`` of the command line on top, so that a refusal names
    those; ``config`` itself without resume, or under an experiment, which sets more than it names. The folder may come
    from somebody else. Raises UserError when resume names no run folder, when the folder names what is not to be
    trusted, and when the command line names a new place."""
    folder = config["resume"]
    if folder is None:
        return config
    run_config, file = config_in(Path(str(folder))), str(Path(str(folder)) / CONFIG)
    refuse_shapes(file, run_config)
    refuse_strangers(file, run_config, here=True)
    if run_config.get("engine", {}).get("address") is not None:
        raise UserError(f"{file} names engine.address, which is for you to say. Drop it there, and set RAY_ADDRESS.")
    for name in ("name", "output"):
        if name in names and run_config.get(name) != config[name]:
            raise UserError(
                f"{name}={config[name]} is for a new run, and resume={folder} goes on with its own. Drop one."
            )
    if "experiment" in names:
        return config
    # an older version did not keep the names that were typed
    choices = {
        place: name
        for place, name in run_config.get(CHOICES, {}).items()
        if isinstance(name, str) and place.partition(".")[0] in SECTIONS
    }
    config_now: dict[str, Any] = {**config, **deepcopy(run_config), CHOICES: choices}
    for name in names:
        place = name.partition("@")[2] or name.replace("/", ".")
        *above, last = place.split(".")
        value, into = part_at(config, place), part_at(config_now, ".".join(above)) if above else config_now
        if isinstance(into, dict):
            into[last] = value
        if place in config[CHOICES]:
            config_now[CHOICES][place] = config[CHOICES][place]
    return config_now


def repeated(config: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The settings of the folder that ``again`` names, without what shows or keeps a run; ``config`` itself without
    it. Raises UserError as ``resumed``, and for other settings beside it than where the model is."""
    folder = config["again"]
    if folder is None:
        return config
    for name in sorted(set(names).difference(("again", "model.path", "model.device"))):
        raise UserError(f"again={folder} decodes with that run's own settings, so {name} cannot be set. Drop it.")
    run_config = resumed({**config, "resume": folder}, [name for name in names if name != "again"])
    silent = {"trace": False, "compare": False, "live": False, "animate": False}
    return {**run_config, **silent, "resume": None, "again": folder}


def config_in(folder: Path) -> dict[str, Any]:
    """The resolved configuration in a run folder. Raises UserError if it is missing or broken."""
    try:
        config = plain_yaml(folder / CONFIG)
    except OSError:
        if (folder / SWEEP).exists():
            raise UserError(f"{folder} is a sweep: give its command again, with name={folder.name}.") from None
        raise UserError(f"{folder} holds no {CONFIG}, so it is not a run folder. Name one.") from None
    if not isinstance(config, dict):
        raise UserError(f"{folder / CONFIG} holds no settings. Restore it, or start a new run.")
    return {str(key): value for key, value in config.items()}


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raise UserError, with the way out, when the disk refuses to write to ``folder``."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write to {folder} ({error.strerror or error}). {_way_out(folder)}") from error


def _way_out(folder: Path) -> str:
    """What to do when ``folder`` takes no more. Only a run that has begun can be resumed, and no conversation can."""
    if not (folder / CONFIG).exists():
        return "Make room there, or choose another place with output=FOLDER."
    if (folder.parent / SWEEP).exists():
        again = f"give the sweep's command again with name={folder.parent.name}"
    elif config_in(folder).get("chat"):
        return "What was said before is kept there. Make room there, or choose another place with output=FOLDER."
    else:
        again = f"go on with resume={folder}"
    return f"Samples finished so far are kept there. Make room and {again}."
