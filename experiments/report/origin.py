"""Where the numbers of a report come from: settings, versions, commits, dates, seeds and machines of its cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from dllm.app.runs.environment import PACKAGE, checkout_state
from dllm.common.versions import version_of
from dllm.errors import UserError
from dllm.record.frame import typed_settings
from dllm.record.stored import RefusedCell, refuse_versions, version_in
from experiments.report.cells import Cell
from experiments.report.conditions import defaults_said, eos_of, items_of, length_of, settings_said, share
from experiments.report.machines import place_of
from experiments.report.table import Table

Stamp = Mapping[str, Any]
UNKNOWN = "not noted"


def origin(cells: Sequence[Cell]) -> Table:
    """A line for each fact. Where cells differ, every value has the number of cells that it holds for."""
    rows = [[name, spread(cells, values)] for name, values in FACTS.items()]
    settings = [["settings that are not usual", settings_said(cells)], ["defaults", defaults_said(cells)]]
    ends = [["seeds", seeds_said(cells)], ["cells", f"{len(cells)}"], ["report made", made_now()]]
    return Table(["about", "these numbers"], [*settings, *rows, *ends])


def seeds_said(cells: Sequence[Cell]) -> str:
    """The seeds by size, each with its number of cells where there are several."""
    counts = Counter(cell.config["seed"] for cell in cells)
    return "; ".join(f"{seed}{share(count, len(cells))}" for seed, count in sorted(counts.items()))


def mixed_versions(cells: Sequence[Cell]) -> list[str]:
    """A warning, naming them, where the cells are of several versions."""
    try:
        refuse_versions(cells, "Numbers of one version are compared with those of another.")
    except UserError as error:
        return [f"Note that {error}"]
    return []


def refusals(refused: Sequence[RefusedCell], cells: Sequence[Cell]) -> Table:
    """Every combination that was refused, by the settings that tell it from other cells, with the reason."""
    mine = [dict(typed_settings(one.config)) if one.config else {} for one in refused]
    values: dict[str, set[str]] = {}
    for settings in [*mine, *(dict(typed_settings(cell.config)) for cell in cells)]:
        for key, value in settings.items():
            values.setdefault(key, set()).add(str(value))
    shown = {key for key, found in values.items() if len(found) > 1} | {"sampler", "blocks", "cache"}
    names = [" ".join(f"{key}={value}" for key, value in settings.items() if key in shown) for settings in mine]
    rows = [[name or one.folder.name, one.sentence] for name, one in zip(names, refused, strict=True)]
    return Table(["settings", "why"], sorted(rows))


def spread(cells: Sequence[Cell], values: Callable[[Cell], list[str]]) -> str:
    """The values, the most frequent first. A cell that was resumed elsewhere counts for several."""
    counts = Counter(value for cell in cells for value in dict.fromkeys(values(cell)))
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{value} ({count} of {len(cells)} cells)" for value, count in counts.most_common())


def of_stamps(read: Callable[[Stamp], Any]) -> Callable[[Cell], list[str]]:
    """What ``read`` finds in each stamp of a cell."""
    return lambda cell: [str(found) if (found := read(stamp)) not in (None, "") else UNKNOWN for stamp in cell.stamps]


def checkpoint_of(cell: Cell) -> str:
    """Where the weights are, with their fingerprint, and the adapter."""
    model, known = cell.config["model"], cell.content.get("checkpoint")
    adapter = f" + {model['adapter']}" if model.get("adapter") else ""
    return f"{model['name']}: {model['path']}{adapter}{f' ({known})' if known else ''}"


def tree_of(stamp: Stamp) -> str:
    """Whether the package's files were those of the commit."""
    dirty = stamp.get("dirty")
    return "" if dirty is None else "edited (dirty)" if dirty else "as committed"


def machine_of(stamp: Stamp) -> str:
    """The device by its name, with what else a time depends on."""
    facts = {"threads": "threads", "cores": "cores", "dtype": "in", "platform": "on"}
    return ", ".join([place_of(stamp), *(f"{word} {stamp[key]}" for key, word in facts.items() if key in stamp)])


def made_now() -> str:
    """Date and version of this report, which need not be those of its numbers."""
    commit, dirty = checkout_state(PACKAGE)
    version = version_in({"versions": {"dllm": version_of("dllm")}, "commit": commit, "dirty": dirty})
    return f"{datetime.now(UTC).date()}, with dllm {version}"


FACTS: dict[str, Callable[[Cell], list[str]]] = {
    "gen_length": lambda cell: [length_of(cell)],
    "eos": lambda cell: [eos_of(cell)],
    "items of a sub-task": lambda cell: [items_of(cell)],
    "checkpoint": lambda cell: [checkpoint_of(cell)],
    "dllm": of_stamps(lambda stamp: (stamp.get("versions") or {}).get("dllm")),
    "commit": of_stamps(lambda stamp: stamp.get("commit")),
    "files": of_stamps(tree_of),
    "decoded": of_stamps(lambda stamp: str(stamp.get("started", ""))[:10]),
    "torch": of_stamps(lambda stamp: (stamp.get("versions") or {}).get("torch")),
    "Python": of_stamps(lambda stamp: stamp.get("python")),
    "machine": of_stamps(machine_of),
}
