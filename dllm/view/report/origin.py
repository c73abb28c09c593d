"""Where the numbers of a report come from: settings, versions, commits, dates, seeds and machines of its cells."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import torch

from dllm.common.errors import UserError
from dllm.common.versions import version_of
from dllm.compose.naming import part_words
from dllm.record.cost import Machine
from dllm.record.environment import PACKAGE, checkout_state, environment_stamp
from dllm.record.frame import typed_settings
from dllm.record.stored import RefusedCell, refuse_versions, version_in
from dllm.view.report.conditions import defaults_text, items_of, length_of, settings_text, share
from dllm.view.report.page_pieces import ReportTable
from dllm.view.report.pooling import CellResults, SettingResults

Stamp = Mapping[str, Any]
NOT_NOTED = "not noted"


def origin(cells: Sequence[CellResults]) -> ReportTable:
    """A line for each fact. Where cells differ, every value has the number of cells that it holds for."""
    rows = [[name, spread(cells, values)] for name, values in FACTS.items()]
    settings = [["settings that are not usual", settings_text(cells)], ["defaults", defaults_text(cells)]]
    ends = [["seeds", seeds_text(cells)], ["cells", f"{len(cells)}"], ["report made", made_now()]]
    return ReportTable(["about", "these numbers"], [*settings, *rows, *ends])


def seeds_text(cells: Sequence[CellResults]) -> str:
    """The seeds by size, each with its number of cells where there are several."""
    counts = Counter(cell.config["seed"] for cell in cells)
    return "; ".join(f"{seed}{share(count, len(cells))}" for seed, count in sorted(counts.items()))


def mixed_versions(cells: Sequence[CellResults]) -> list[str]:
    """A warning, naming them, where the cells are of several versions."""
    try:
        refuse_versions(cells, "Numbers of one version are compared with those of another.")
    except UserError as error:
        return [f"Note that {error}"]
    return []


def refusals(combinations: Sequence[RefusedCell], cells: Sequence[CellResults]) -> ReportTable:
    """Every combination that was refused, by the settings that tell it from other cells, with the reason."""
    mine = [dict(typed_settings(r.config)) if r.config else {} for r in combinations]
    values: dict[str, set[str]] = {}
    for settings in [*mine, *(dict(typed_settings(cell.config)) for cell in cells)]:
        for key, value in settings.items():
            values.setdefault(key, set()).add(str(value))
    keys = {key for key, texts in values.items() if len(texts) > 1} | {"sampler", "blocks", "cache"}
    names = [" ".join(f"{key}={value}" for key, value in settings.items() if key in keys) for settings in mine]
    rows = [[name or r.folder.name, r.sentence] for name, r in zip(names, combinations, strict=True)]
    return ReportTable(["settings", "why"], sorted(rows))


def spread(cells: Sequence[CellResults], values: Callable[[CellResults], list[str]]) -> str:
    """The values, the most frequent first. A cell that was resumed elsewhere counts for several."""
    counts = Counter(value for cell in cells for value in dict.fromkeys(values(cell)))
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{value} ({count} of {len(cells)} cells)" for value, count in counts.most_common())


def of_stamps(read: Callable[[Stamp], Any]) -> Callable[[CellResults], list[str]]:
    """What ``read`` finds in each stamp of a cell."""
    return lambda cell: [str(value) if (value := read(stamp)) not in (None, "") else NOT_NOTED for stamp in cell.stamps]


def checkpoint_of(cell: CellResults) -> str:
    """Where the weights are, with their fingerprint, and the adapter."""
    model, mark = cell.config["model"], cell.content.get("checkpoint")
    adapter = f" + {model['adapter']}" if model.get("adapter") else ""
    place = model.get("path", model.get("url"))
    return f"{model['name']}: {place}{adapter}{f' ({mark})' if mark else ''}"


def tree_of(stamp: Stamp) -> str:
    """Whether the package's files were those of the commit."""
    dirty = stamp.get("dirty")
    return "" if dirty is None else "edited (dirty)" if dirty else "as committed"


def machine_of(stamp: Stamp) -> str:
    """The device by its name, with what else a time depends on."""
    facts = {"threads": "threads", "cores": "cores", "dtype": "in", "platform": "on"}
    return ", ".join([stamped_device(stamp), *(f"{word} {stamp[key]}" for key, word in facts.items() if key in stamp)])


def made_now() -> str:
    """Date and version of this report, which need not be those of its numbers."""
    commit, dirty = checkout_state(PACKAGE)
    version = version_in({"versions": {"dllm": version_of("dllm")}, "commit": commit, "dirty": dirty})
    return f"{datetime.now(UTC).date()}, with dllm {version}"


FACTS: dict[str, Callable[[CellResults], list[str]]] = {
    "gen_length": lambda cell: [length_of(cell)],
    "eos": lambda cell: [part_words(cell.config, "eos")],
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


def warnings(settings: Sequence[SettingResults], rates: Machine | None) -> list[str]:
    """Sentences on speeds in doubt, and on a floor of another machine."""
    sentences, doubts = [], sum(bool(setting.measures.warning) for setting in settings)
    cells = [cell for setting in settings for cell in setting.cells]
    if doubts:
        busy = f"The machine was busy during {doubts} of {len(settings)} settings"
        sentences.append(f"{busy}: their speeds are too low, and none is called Pareto-optimal for its speed.")
    apart = [cell for cell in cells if rates is not None and not ran_on(rates.name, cell)]
    others = sorted({stamped_device(cell.environment) for cell in apart})
    if rates is not None and others:
        floors = f"The floors are those of {rates.name}, and the times were taken on {'; '.join(others)}"
        sentences.append(f"{floors}: floor / time compares two machines.")
    return sentences


def stamped_device(there: Mapping[str, Any]) -> str:
    """The device in a stamp, by its name."""
    gpus = [] if there.get("device", "cpu") == "cpu" else list(map(str, there.get("gpus") or ()))
    return gpus[0] if gpus else f"{there.get('device', 'an unknown device')} ({there.get('processor', 'unknown')})"


def ran_on(name: str, cell: CellResults) -> bool:
    """Whether a cell's times are those of the machine called ``name``. ``this`` is the one at hand."""
    if not name.startswith("this "):
        return re.search(rf"\b{re.escape(name)}\b", stamped_device(cell.environment), re.IGNORECASE) is not None
    there, device = cell.environment, str(cell.environment.get("device"))
    if device.partition(":")[0] != name.removeprefix("this "):
        return False
    here = environment_stamp(torch.device(device), torch.float32, 0)
    return all(there.get(key) == here[key] for key in ("platform", "processor", "cores", "gpus"))


def machines(cells: Sequence[CellResults]) -> str:
    """A sentence on the machines and settings of the times."""
    places = {
        (
            str(c.environment.get("device")),
            str(c.environment.get("dtype")),
            str(c.environment.get("processor")),
            f"{c.environment.get('threads')} threads",
            f"batch {c.config['batch_size']}",
            *map(str, c.environment.get("gpus") or ()),
            *([f"{c.environment['ranks']} ranks"] if c.environment.get("ranks", 1) > 1 else []),
            *sorted({f"runtime={row['runtime']}" for row in c.rows if "runtime" in row}),
        )
        for c in cells
    }
    return "Times from " + "; ".join(", ".join(place) for place in sorted(places)) + "."
