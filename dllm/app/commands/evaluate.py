"""``task=parallelbench`` and its like: decode a task's items and score them, in a run folder or a sweep's cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from dllm.app.commands.interruptible import interruptible
from dllm.app.engines.base import Engine
from dllm.app.runs.cells import Cell, run_cell, sweep_cell
from dllm.common.terminal import as_text, complain, say
from dllm.compose.labels import cell_label
from dllm.compose.parts import build_part, class_of
from dllm.errors import UserError
from dllm.record.published import Published, beside
from dllm.tasks.build import task_of
from dllm.view.scores import headline, published_line, scores_table

FAILED = 3  # exit code where samples could not be decoded
Combination = tuple[dict[str, Any], list[str]]  # a configuration of a sweep, and the settings that the user gave


def run(config: dict[str, Any], given: Sequence[str]) -> None:
    """Evaluate one configuration in a run folder of its own."""
    engine = engine_of(config)  # first: what it refuses leaves no folder
    cell = run_cell(config)
    print_missing(engine, cell, set())
    with interruptible(lambda: f"Finished samples are kept. Go on with resume={cell.folder}"):
        for _ in engine.run(iter([cell])):
            if engine.leads:
                rows = cell.rows()
                Console().print(scores_table(rows, published_beside(cell), cell.totals(rows)))
                Console().print(as_text(f"Run folder: {cell.folder}", "dim"))
    if name_failures(engine):
        raise SystemExit(FAILED)


def evaluate_sweep(combinations: Sequence[Combination], folder: Path, place: str = "") -> tuple[list[bool], bool]:
    """Evaluate cells of a sweep and print a line for each. What cannot work is noted, and the rest goes on. Returns for
    each cell whether it was evaluated, and whether samples failed.

    place: which of the sweep's cells this is, where ``combinations`` holds one.
    """
    first = combinations[0][0]
    if "_target_" not in first["task"]:
        task_of(first["task"])  # raises the error of a task without questions
    engine = engine_of(first)
    printed: set[str] = set()
    evaluated: list[bool] = []
    before = f"{place}: " if place else ""

    def planned() -> Iterator[Cell]:
        for config, given in combinations:
            cell = sweep_cell(config, folder, given)
            evaluated.append(isinstance(cell, Cell))
            if isinstance(cell, UserError):
                print_line(engine, f"{before}{cell_label(config)}: refused: {cell}")
                continue
            print_missing(engine, cell, printed)
            yield replace(cell, place=place)

    resume_hint = f"Finished samples are kept. Go on with the same command and name={folder.name}"
    with interruptible(lambda: resume_hint):
        for cell in engine.run(planned()):
            if engine.leads:
                rows, published = cell.rows(), published_line(published_beside(cell))
                line = headline(cell.evaluation.config, rows, cell.totals(rows))
                print_line(engine, before + line + published)
    return evaluated, name_failures(engine)


def published_beside(cell: Cell) -> Published | None:
    """A paper's figures beside a cell's; None where it names no paper."""
    evaluation = cell.evaluation
    return beside(evaluation.config, evaluation.width, evaluation.architecture)


def takes_all_cells(config: Mapping[str, Any]) -> bool:
    """Whether the chosen engine takes the cells of a sweep together."""
    kind = class_of("engine", config["engine"]["_target_"])
    assert issubclass(kind, Engine)
    return kind.together


def engine_of(config: dict[str, Any]) -> Engine:
    """What decodes: this process, several, or a cluster. Raises UserError when it cannot run ``config``."""
    engine = build_part("engine", config["engine"])
    assert isinstance(engine, Engine)
    engine.check(config)
    return engine


def print_line(engine: Engine, line: str) -> None:
    """Print, in the process that speaks for all."""
    if engine.leads:
        say(line, flush=True)


def print_missing(engine: Engine, cell: Cell, printed: set[str]) -> None:
    """Name the tasks that cannot be asked and the scores that cannot be judged. printed: what was named before."""
    for sentence in cell.evaluation.unjudged():
        if engine.leads and sentence not in printed:
            printed.add(sentence)
            complain(sentence)


def name_failures(engine: Engine) -> bool:
    """Name the samples that could not be decoded. Returns whether there are any."""
    for cell, keys, reason in engine.failures if engine.leads else ():
        names = ", ".join(f"{name}/{sample}" for name, sample in keys)
        complain(f"Failed: {names} of {cell.folder}: {reason}")
    if engine.failures and engine.leads:
        complain("The same command tries them again; everything else is finished.")
    return bool(engine.failures)
