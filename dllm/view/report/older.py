"""Cells that older code of a part decoded: a part that was edited is another part, under the same name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from dllm.common.digest import json_digest
from dllm.common.grouping import grouped
from dllm.compose.naming import typed_name
from dllm.compose.trusted import is_known
from dllm.record.code_hash import code_hash, targets
from dllm.view.report.pooling import CellResults

OLDER_CODE = "older code"
PartClasses = tuple[str, tuple[str, ...]]  # a group, and the classes that a cell has there


class Codes:
    """Which code of each part is the present one: today's, or where that cannot be told the newest among the cells.

    Where no cell at all is of today's code, as after an update of dllm, the newest is the present one, too.
    """

    def __init__(self, cells: Sequence[CellResults]) -> None:
        self.cells = cells
        self.newest: dict[PartClasses, str | None] = {}
        for cell in sorted(cells, key=lambda c: str(c.environment.get("started", ""))):
            for part, code in codes_of(cell):
                self.newest[part] = code or self.newest.get(part)
        self.present = {part: code and (todays(part[1]) or code) for part, code in self.newest.items()}
        self.all_older = bool(cells) and all(self.edited_parts(cell) for cell in cells)
        if self.all_older:
            self.present = self.newest

    def edited_parts(self, cell: CellResults) -> list[str]:
        """The parts of a cell whose code is another one now, by their names."""
        older = [part for part, code in codes_of(cell) if code != self.present[part]]
        return [f"{group}={typed_name(cell.config, group)}" for group, _ in older]

    def marks(self) -> dict[str, str]:
        """What marks each older cell, by its folder. Two versions of older code have two marks."""
        older = {str(cell.folder): cell for cell in self.cells if self.edited_parts(cell)}
        versions: dict[str, set[str]] = {}
        for cell in older.values():
            versions.setdefault(settings_alone(cell), set()).add(json_digest(cell.codes))
        several = {key for key, codes in versions.items() if len(codes) > 1}
        return {
            folder: f"{OLDER_CODE} {json_digest(cell.codes)[:6]}" if settings_alone(cell) in several else OLDER_CODE
            for folder, cell in older.items()
        }

    def notes(self) -> Iterator[str]:
        """Sentences for the reader: what was edited, and which folders to delete."""
        if self.all_older:
            yield "All cells were decoded by other code of their parts than today's. Their numbers are of that code."
        folders = grouped((part, str(cell.folder)) for cell in self.cells for part in self.edited_parts(cell))
        for part, places in folders.items():
            was = f"{part} was edited after cells were decoded, which are marked '{OLDER_CODE}'"
            yield f"{was}. To leave them out, delete {', '.join(places)}."


def codes_of(cell: CellResults) -> Iterator[tuple[PartClasses, str | None]]:
    for group in ("sampler", "blocks", "cache", "eos", "length", "task"):
        classes = tuple(sorted(targets(cell.config.get(group, {}))))
        if classes:
            yield (group, classes), cell.codes.get(group)


@cache
def todays(classes: tuple[str, ...]) -> str | None:
    """The hash of the classes' code as it is now; None where they cannot be imported here, or may not be."""
    try:
        return code_hash(classes) if all(map(is_known, classes)) else None
    except Exception:  # what a foreign module raises at import
        return None


def settings_alone(cell: CellResults) -> str:
    return str((cell.suite, cell.checkpoint, sorted(map(str, cell.settings.items()))))
