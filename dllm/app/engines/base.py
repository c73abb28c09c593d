"""The contract of an engine: it takes cells, decodes what their folders lack, and hands them back finished."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from tqdm import tqdm

from dllm.app.jobs.cells import Cell
from dllm.app.jobs.store import Key

Failure = tuple[Cell, list[Key], str]


class Engine:
    """together: takes all cells of a sweep at once, since it spreads their samples. leads: whether this process is the
    one that speaks. ``failures``: what could not be decoded, and why."""

    together = False
    leads = True

    def __init__(self) -> None:
        self.failures: list[Failure] = []

    def check(self, config: Mapping[str, Any]) -> None:
        """Refuse, with UserError, what this engine cannot run. Called before anything is planned."""

    def run(self, cells: Iterator[Cell]) -> Iterator[Cell]:
        """Decode and score; yields every cell when its folder holds all that could be decoded."""
        raise NotImplementedError


def bar(total: int, done: int, shown: bool = True, title: str = "") -> Any:
    """A progress bar on stderr, with an estimate of what is left."""
    pause = 0.1 if sys.stderr.isatty() else 10
    return tqdm(
        total=total, initial=done, unit="sample", disable=not shown, mininterval=pause, delay=pause, leave=False,
        desc=title or None,
    )  # fmt: skip
