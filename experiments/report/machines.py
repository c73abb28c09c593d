"""The machines on which a report's times were taken, and warnings before comparing them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dllm.app.runs.environment import environment_stamp
from dllm.record.cost import Machine
from experiments.report.cells import Cell
from experiments.report.settings import Setting


def warnings(settings: Sequence[Setting], rates: Machine | None) -> list[str]:
    """Sentences on speeds in doubt, and on a floor of another machine."""
    found, doubted = [], sum(bool(one.measures.warning) for one in settings)
    cells = [cell for one in settings for cell in one.cells]
    if doubted:
        busy = f"The machine was busy during {doubted} of {len(settings)} settings"
        found.append(f"{busy}: their speeds are too low, and none is called Pareto-optimal for its speed.")
    apart = [cell for cell in cells if rates is not None and not ran_on(rates.name, cell)]
    others = sorted({place_of(cell.environment) for cell in apart})
    if rates is not None and others:
        floors = f"The floors are those of {rates.name}, and the times were taken on {'; '.join(others)}"
        found.append(f"{floors}: floor / time compares two machines.")
    return found


def place_of(there: Mapping[str, Any]) -> str:
    """The device in a stamp, by its name."""
    gpus = [] if there.get("device", "cpu") == "cpu" else list(map(str, there.get("gpus") or ()))
    return gpus[0] if gpus else f"{there.get('device', 'an unknown device')} ({there.get('processor', 'unknown')})"


def ran_on(name: str, cell: Cell) -> bool:
    """Whether a cell's times are those of the machine called ``name``. ``this`` is the one at hand."""
    if not name.startswith("this "):
        return re.search(rf"\b{re.escape(name)}\b", place_of(cell.environment), re.IGNORECASE) is not None
    there, device = cell.environment, str(cell.environment.get("device"))
    here = environment_stamp(torch.device(device), torch.float32, 0)
    return all(there.get(key) == here[key] for key in ("platform", "processor", "cores", "gpus")) and (
        device.partition(":")[0] == name.removeprefix("this ")
    )


def machines(cells: Sequence[Cell]) -> str:
    """A sentence on the machines and settings of the times."""
    places = {
        (str(c.environment.get("device")), str(c.environment.get("dtype")), str(c.environment.get("processor")),
         f"{c.environment.get('threads')} threads", f"batch {c.config['batch_size']}",
         *map(str, c.environment.get("gpus") or ()))
        for c in cells
    }  # fmt: skip
    return "Times from " + "; ".join(", ".join(place) for place in sorted(places)) + "."
