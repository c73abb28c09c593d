"""``task=parallelbench`` and its like: decode a task's items and score them, in a run folder or a sweep's cells."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from dllm.app.engines.base import Engine
from dllm.app.jobs.cells import Cell, of_sweep, single
from dllm.compose.parts import build
from dllm.errors import UserError
from dllm.tasks.build import task_of
from dllm.view.scores import called, headline, scores_table

Job = tuple[dict[str, Any], list[str]]  # configuration, and what the user set


def run(config: dict[str, Any], given: Sequence[str]) -> None:
    """Evaluate one configuration in a run folder of its own."""
    cell = single(config)
    engine = engine_of(config)
    tell_missing(engine, cell, set())
    with interruptible(f"resume={cell.folder}"):
        for _ in engine.run(iter([cell])):
            if engine.leads:
                Console().print(scores_table(cell.rows()))
                Console().print(Text(f"Run folder: {cell.folder}", "dim"))
    complete(engine)


def sweep(jobs: Sequence[Job], folder: Path, place: str = "") -> None:
    """Evaluate cells of a sweep, one line each. What cannot work is noted and the rest goes on.

    place: which of the sweep's cells the only one of ``jobs`` is.
    """
    if "_target_" not in jobs[0][0]["task"]:
        task_of(jobs[0][0]["task"])  # says so
    engine = engine_of(jobs[0][0])
    told: set[str] = set()
    before = f"{place}: " if place else ""

    def planned() -> Iterator[Cell]:
        for config, given in jobs:
            cell = of_sweep(config, folder, given)
            if isinstance(cell, UserError):
                say(engine, f"{before}{called(config)}: refused: {cell}")
                continue
            tell_missing(engine, cell, told)
            yield replace(cell, place=place)

    with interruptible(f"the same command and name={folder.name}"):
        for cell in engine.run(planned()):
            say(engine, before + headline(cell.evaluation.config, cell.rows()))
    complete(engine)


def engine_of(config: dict[str, Any]) -> Engine:
    """What decodes: this process, several, or a cluster."""
    engine = build("engine", config["engine"])
    assert isinstance(engine, Engine)
    engine.check(config)
    return engine


def say(engine: Engine, line: str) -> None:
    if engine.leads:
        print(line, flush=True)


def tell_missing(engine: Engine, cell: Cell, told: set[str]) -> None:
    """Name the tasks that cannot be asked and the scores that cannot be judged, each once."""
    for sentence in cell.evaluation.task.missing().values():
        if engine.leads and sentence not in told:
            told.add(sentence)
            print(sentence, file=sys.stderr, flush=True)


@contextmanager
def interruptible(way: str) -> Iterator[None]:
    """Ctrl-C leaves the finished samples and says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\nStopped. Finished samples are kept. Go on with {way}", file=sys.stderr)
        raise SystemExit(130) from None


def complete(engine: Engine) -> None:
    """Name what is missing in the end, with an exit code of 3."""
    if not engine.failures:
        return
    for cell, keys, reason in engine.failures:
        names = ", ".join(f"{name}/{sample}" for name, sample in keys)
        print(f"Failed: {names} of {cell.folder}: {reason}", file=sys.stderr)
    print("The same command tries them again; everything else is finished.", file=sys.stderr)
    raise SystemExit(3)
