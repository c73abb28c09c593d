"""``-m``: every cell of every grid, one after the other or together."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dllm.app.command_line.grids import Sweep, combinations, expanded, swept_names
from dllm.app.command_line.options import checked_settings
from dllm.app.command_line.overrides import setting_names
from dllm.app.command_line.program import command
from dllm.common.errors import UserError
from dllm.common.terminal import say
from dllm.record.folders import REFUSED_FILE, RESULTS


@dataclass
class SweepState:
    """What has become of a sweep's cells. Hydra starts each by a function that takes nothing but its configuration."""

    # cells that an engine takes together when Hydra has started all, since it spreads their samples over its workers
    together: list[tuple[dict[str, Any], list[str], Path]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)  # of the cells that Hydra is still to start, such as "cell 2 of 6"
    evaluated: list[bool] = field(default_factory=list)  # for each cell of this process; False: it was refused
    failed: list[bool] = field(default_factory=list)  # for each of its calls: samples could not be decoded
    several: set[str] = field(default_factory=set)  # names of the settings that are tried with several values
    sentences: dict[str, str] = field(default_factory=dict)  # sentences that were printed, and the cell of each


STATE = SweepState()  # of this process


def run_or_hold_cell(settings: dict[str, Any], names: list[str], folder: Path) -> None:
    """Evaluate one cell of a sweep: now, or together with the others when Hydra has started all."""
    from dllm.app.commands.evaluate import evaluate_sweep, takes_all_cells

    settings = checked_settings(settings)
    if takes_all_cells(settings):
        STATE.together.append((settings, names, folder))
    else:
        place = STATE.labels.pop(0) if STATE.labels else ""
        cells, failed = evaluate_sweep([(settings, names)], folder, place, STATE.several, STATE.sentences)
        STATE.evaluated.extend(cells)
        STATE.failed.append(failed)


def run_sweep(overrides: list[str], flags: list[str], start: Callable[[], None]) -> None:
    """Run every cell of every grid. start: has Hydra start the cells of ``sys.argv``, by ``run_or_hold_cell``. Raises
    UserError when none of them can work."""
    STATE.evaluated, STATE.failed, STATE.sentences = [], [], {}
    sweep = expanded(overrides)
    STATE.several = {name for grid in sweep.grids for name in swept_names(grid)}
    if len(sweep.grids) > 1:
        STATE.several |= {name for grid in sweep.grids for name in setting_names(grid)}
    with sweep.undone():
        start_cells(sweep, flags, start)
        if int(os.environ.get("RANK", "0")) == 0:  # several processes may share the cells
            hint = f"Tables and pictures: {command(f'report {shlex.quote(str(sweep.folder))}')}"
            say(f"Sweep folder: {sweep.folder}\n{hint}", flush=True)
    if any(STATE.failed):
        from dllm.app.commands.evaluate import FAILED

        raise SystemExit(FAILED)


def start_cells(sweep: Sweep, flags: list[str], start: Callable[[], None]) -> None:
    """Have Hydra start every cell. Raises UserError when none of them can work."""
    total = sum(map(combinations, sweep.grids))
    STATE.labels = [f"cell {number} of {total}" for number in range(1, total + 1)]
    for arguments in sweep.grids:
        sys.argv[1:] = ["-m", *flags, *arguments]
        start()
    jobs, STATE.together = STATE.together, []
    if jobs:
        from dllm.app.commands.evaluate import evaluate_sweep

        cells, failed = evaluate_sweep(
            [(settings, names) for settings, names, _ in jobs],
            jobs[0][2],
            several=STATE.several,
            sentences=STATE.sentences,
        )
        STATE.evaluated.extend(cells)
        STATE.failed.append(failed)
    refuse_empty_sweep(total, sweep.folder)


def refuse_empty_sweep(total: int, folder: Path) -> None:
    """Raise UserError when every cell was refused. Launchers of other processes leave nothing here but the folder."""
    if not (any(STATE.evaluated) if STATE.evaluated else any(folder.glob(f"*/{RESULTS}"))):
        where = f"The reasons stand in {folder}/*/{REFUSED_FILE}"
        raise UserError(f"nothing was decoded: all of the {total} combinations were refused. {where}. Choose others.")
