"""``task=parallelbench`` and its like: decode a task's items and score them, in a run folder or a sweep's cells."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from dllm.app.commands.interruptible import interruptible
from dllm.app.engines.base import Engine
from dllm.app.runs.cells import Cell, run_cell, sweep_cell
from dllm.common.errors import UserError
from dllm.common.terminal import as_text, complain, say
from dllm.compose.labels import cell_label
from dllm.compose.naming import typed_name
from dllm.compose.parts import build_part, class_of
from dllm.record.folders import key_of
from dllm.record.published import PaperRow, beside
from dllm.tasks.build import task_of
from dllm.view.scores import headline, published_line, scores_table

NAMED_FAILURES = 5  # failed samples that are named, at most
FAILED = 3  # exit code where samples could not be decoded
Combination = tuple[dict[str, Any], list[str]]  # a configuration of a sweep, and the settings that the user gave


def run(config: dict[str, Any], names: Sequence[str]) -> None:
    """Evaluate one configuration in a run folder of its own."""
    engine = engine_of(config)  # first: what it refuses leaves no folder
    cell = run_cell(config)
    print_missing(engine, cell, {})
    with interruptible(lambda: f"Finished samples are kept. Go on with resume={cell.folder}"):
        for _ in engine.run(iter([cell])):
            if engine.leads:
                rows = cell.rows()
                if rows:
                    Console().print(scores_table(rows, published_beside(cell), cell.totals(rows)))
                Console().print(as_text(f"Run folder: {cell.folder}", "dim"))
    if name_failures(engine):
        raise SystemExit(FAILED)


def evaluate_sweep(
    combinations: Sequence[Combination],
    folder: Path,
    place: str = "",
    several: Collection[str] = (),
    sentences: dict[str, str] | None = None,
) -> tuple[list[bool], bool]:
    """Evaluate cells of a sweep and print a line for each. What cannot work is noted, and the rest goes on. Returns for
    each cell whether it was evaluated, and whether samples failed.

    place: which of the sweep's cells this is, where ``combinations`` holds one. several: the settings that the
    sweep tries with several values. sentences: what earlier calls printed, each sentence once, with its cell.

    Raises UserError for a task that no cell can ask.
    """
    first, sentences = combinations[0][0], {} if sentences is None else sentences
    if "_target_" not in first["task"] or not (sentences or any(name.partition(".")[0] == "task" for name in several)):
        task_of(first["task"])  # raises the error of a task without questions, and what is wrong in all cells
    engine = engine_of(first)
    sentences.setdefault("", place)
    evaluated: list[bool] = []
    finished: set[Path] = set()  # cells that an earlier run has done
    before = f"{place}: " if place else ""

    def planned() -> Iterator[Cell]:
        for config, names in combinations:
            cell = sweep_cell(config, folder, names)
            evaluated.append(isinstance(cell, Cell))
            if isinstance(cell, UserError):
                cell_before = sentences.setdefault(str(cell), place)
                reason = f"refused: {cell}" if cell_before == place else f"refused, as {cell_before}"
                print_line(engine, f"{before}{cell_label(config)}: {reason}")
                continue
            print_missing(engine, cell, sentences)
            if "seed" in several and not cell.evaluation.answers.draws:
                sampler = typed_name(config, "sampler")
                name_once(engine, f"At temperature 0 sampler={sampler} draws nothing: seeds change nothing.", sentences)
            if not cell.evaluation.missing({key_of(row) for row in cell.rows()}):
                finished.add(cell.folder)
            yield replace(cell, place=place)

    resume_hint = f"Finished samples are kept. Go on with the same command and name={folder.name}"
    with interruptible(lambda: resume_hint):
        for cell in engine.run(planned()):
            if engine.leads:
                rows, published = cell.rows(), published_line(published_beside(cell))
                line = headline(cell.evaluation.config, rows, cell.totals(rows))
                print_line(engine, f"{before}{line}{', done before' if cell.folder in finished else ''}{published}")
    return evaluated, name_failures(engine)


def published_beside(cell: Cell) -> PaperRow | None:
    """A paper's figures beside a cell's; None where it names no paper."""
    answers = cell.evaluation.answers
    return beside(cell.evaluation.config, answers.width, answers.architecture)


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


def print_missing(engine: Engine, cell: Cell, sentences: dict[str, str]) -> None:
    """Name the tasks that cannot be asked and the scores that cannot be judged. sentences: what was named before."""
    for sentence in cell.evaluation.unjudged():
        name_once(engine, sentence, sentences)


def name_once(engine: Engine, sentence: str, sentences: dict[str, str]) -> None:
    if engine.leads and sentence not in sentences:
        sentences[sentence] = ""
        complain(sentence)


def name_failures(engine: Engine) -> bool:
    """Name the samples that could not be decoded. Returns whether there are any."""
    for cell, keys, reason in engine.failures if engine.leads else ():
        more = f" and {len(keys) - NAMED_FAILURES} others" if len(keys) > NAMED_FAILURES else ""
        names = ", ".join(f"{name}/{sample}" for name, sample in keys[:NAMED_FAILURES]) + more
        complain(f"Failed: {names} of {cell.folder}: {reason}")
    if engine.failures and engine.leads:
        complain("The same command tries them again; everything else is finished.")
    return bool(engine.failures)
