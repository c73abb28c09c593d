"""Cells of sweeps for the tests of reports, made by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from dllm.parts import CellResults, SettingResults, composed, named_settings

Right = dict[str, Sequence[float | None]]


def row(task: str, number: int, score: float | None, nfe: int, **more: Any) -> dict[str, Any]:
    """A sample of 8 positions, of which 4 are useful, with one commit in each forward but the first."""
    commits = [8 - nfe + 1] + [1] * (nfe - 1)
    return {
        "id": f"{task}-{number}", "sample": 0, "task": f"lists/{task}", "suite": "s", "template": "t", "data": "d",
        "scores": {"score": score}, "tokens": [1, 2, 3, 4], "canvas": [1, 2, 3, 4, 0, 0, 0, 0], "useful_tokens": 4,
        "nfe": nfe, "query_tokens": 8 * nfe, "seconds": 0.1 * nfe, "batch": f"{task}-{number}", "flops": 2e9,
        "bytes": 1e6, "bits": [0.5] * nfe, "commits": commits, "forced": [0] * nfe, **more,
    }  # fmt: skip


@cache  # Hydra takes a tenth of a second
def config_of(*overrides: str) -> dict[str, Any]:
    """The configuration of a cell, which no test changes."""
    found = OmegaConf.to_container(composed(["task=parallelbench", *overrides]), resolve=True)
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


def points(*cells: CellResults) -> list[SettingResults]:
    """The cells as a report has them, by their first folders."""
    return sorted(named_settings(cells), key=lambda one: one.first.folder)


def cell(folder: Path, overrides: Sequence[str], right: Right, nfe: int, **more: Any) -> CellResults:
    """A cell on disk: the scores of each task's samples."""
    rows = [row(task, n, score, nfe, **more) for task, scores in right.items() for n, score in enumerate(scores)]
    return stored(folder, config_of(*overrides), rows)


def stored(folder: Path, config: dict[str, Any], rows: list[Any], **environment: Any) -> CellResults:
    """A cell on disk."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.dump(config, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper)))
    noted = {"device": "cpu", "dtype": "float32", "threads": 1, **environment}
    (folder / "environment.json").write_text(json.dumps(noted))
    (folder / "results.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in rows))
    return CellResults(folder, config, rows, environment)
