"""The cells of a sweep, as their folders hold them: what was set, which checkpoint, which code, which rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dllm.compose.naming import typed_name
from dllm.record.folders import relevant
from dllm.record.results import ResultRow
from dllm.record.stored import RefusedCell, StoredCell, refused_cells, stored_cells

Row = dict[str, Any]
Suite = tuple[str, ...]  # task, suite, template hash and data hash
STAMPS = ("suite", "template", "data")
POOLED = ("seed", "samples")  # cells that differ in nothing else are one setting
CODE = "'s code"  # ends the keys of a cell's content that are hashes of parts' code


@dataclass(frozen=True)
class Cell(StoredCell):
    """The results of one configuration on one task. Numbers of two suites are never mixed."""

    @property
    def suite(self) -> Suite:
        return (str(self.config["task"]["name"]), *(str(self.rows[0].get(name, "")) for name in STAMPS))

    @property
    def checkpoint(self) -> str:
        """What tells its weights from others: their fingerprint, or where that was not noted their place."""
        model = self.config["model"]
        place = " + ".join(str(model.get(key)) for key in ("name", "path", "adapter"))
        return str(self.content.get("checkpoint", place))

    @property
    def codes(self) -> dict[str, str]:
        """The hash of the code of each part, by its group."""
        return {key.removesuffix(CODE): value for key, value in self.content.items() if key.endswith(CODE)}

    @property
    def content(self) -> Mapping[str, str]:
        return self.environment.get("content") or {}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Every setting that can change a sample, by the name that one types, but for those that are pooled."""
        kept = {key: value for key, value in relevant(self.config).items() if key not in POOLED}
        return dict(_typed(self.config, key, value) for key, value in kept.items())

    def key(self, without: str | None = None) -> str:
        """What cells must share to be pooled. without: a group that may differ."""
        kept = {key: value for key, value in relevant(self.config).items() if key not in POOLED}
        codes = self.codes
        if without is not None:
            kept = {key: value for key, value in kept.items() if not key.startswith(f"{without}.")}
            codes.pop(without, None)
        return json.dumps([self.suite, self.checkpoint, codes, kept], sort_keys=True, default=str)


def _typed(config: Mapping[str, Any], key: str, value: Any) -> tuple[str, Any]:
    place, _, last = key.rpartition(".")
    return (place.replace(".", "/"), typed_name(config, place)) if last == "_target_" else (key, value)


def read(*folders: Path) -> tuple[list[Cell], list[RefusedCell]]:
    """The cells in the folders, each once though folders may overlap, and the combinations that were refused.

    Raises UserError for a folder without a cell, and for a broken file.
    """
    found = [one for folder in folders for one in stored_cells(folder)]
    cells = {one.folder.resolve(): Cell(one.folder, one.config, one.rows, one.environment) for one in found}
    refused = {one.folder.resolve(): one for folder in folders for one in refused_cells(folder)}
    return list(cells.values()), list(refused.values())


def rows_of(cells: Sequence[Cell]) -> Iterator[Row]:
    """The rows of pooled cells, each sample of each seed once.

    ``run`` tells the samples of an item apart, by seed and number; ``batch`` the batches of the cells.
    """
    seen: set[tuple[Any, ...]] = set()
    for number, cell in enumerate(cells):
        for row in cell.rows:
            run = f"{cell.config['seed']}/{row['sample']}"
            if (key := (row["task"], row["id"], run)) not in seen:
                seen.add(key)
                yield {**_plain(row), "run": run, "batch": f"{number}/{row['batch']}"}


def _plain(row: ResultRow) -> Row:
    return dict(row)
