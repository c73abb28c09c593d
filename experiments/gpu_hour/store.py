"""What was measured, on disk: a JSON file for each part, written after every cell, and replaced as a whole.

A cell's outcome is a dictionary with ``seconds`` and one of these: ``figures`` (it was measured), ``failed``,
``too_large`` or ``refused`` (a sentence), ``begun`` (it was under way when its process ended).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dllm.common.errors import UserError, in_words
from dllm.common.versions import version_of
from dllm.record.environment import PACKAGE, checkout_state, processor_name

ROOT = Path(__file__).parents[2]
CODE = ("dllm", "experiments", "tests")
VERSIONS = ("torch", "triton", "torchao")
Outcome = dict[str, Any]


def identity(device: torch.device, dry: bool) -> dict[str, Any]:
    """What results must have in common to stand in one folder."""
    gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if gpu else f"CPU, {processor_name()}",
        "code": digest(ROOT),
        "commit": checkout_state(PACKAGE)[0],
        "python": platform.python_version(),
        "cuda": torch.version.cuda if gpu else None,
        "dry": dry,
        **{name: version_of(name) for name in VERSIONS},
    }


def digest(root: Path) -> str:
    """A hash of the code: it says more than a commit, and there may be no repository."""
    files = sorted(file for folder in CODE for file in (root / folder).rglob("*.py"))
    found = hashlib.sha256()
    for file in files:
        found.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    return found.hexdigest()[:12]


class Store:
    """The folder of results. Raises UserError for one that holds results of another device, code or version."""

    def __init__(self, folder: Path, mine: Mapping[str, Any]) -> None:
        self.folder, self.mine = folder, dict(mine)
        if folder.exists() and not folder.is_dir():
            raise UserError(f"OUT={folder} is a file. Name a folder, which is made if it is not there.")
        folder.mkdir(parents=True, exist_ok=True)
        for part, found in parts_in(folder).items():
            theirs = found["identity"]
            for name, value in self.mine.items():
                if theirs.get(name) != value:
                    raise UserError(
                        f"OUT={folder} holds results ({part}.json) of {name} {theirs.get(name)}, and here it is "
                        f"{value}. Name another folder, or delete this one to measure again."
                    )

    def cells(self, part: str) -> dict[str, Outcome]:
        """The outcomes of a part by the names of its cells."""
        found: dict[str, Outcome] = parts_in(self.folder).get(part, {}).get("cells", {})
        return found

    def done(self, part: str, cell: str) -> bool:
        outcome = self.cells(part).get(cell)
        return outcome is not None and "begun" not in outcome

    def write(self, part: str, cell: str, outcome: Outcome) -> None:
        """Add an outcome."""
        self._replace(part, {**self.cells(part), cell: outcome})

    def forget(self, part: str, kind: str) -> None:
        """Drop the outcomes of a kind, so that their cells run again."""
        if cells := self.cells(part):
            self._replace(part, {name: one for name, one in cells.items() if kind not in one})

    def _replace(self, part: str, cells: Mapping[str, Outcome]) -> None:
        """Replace the file at once: a cut leaves the old one or the new one."""
        scratch = self.folder / f".{part}.{os.getpid()}"
        scratch.write_text(json.dumps({"identity": self.mine, "cells": cells}, indent=1) + "\n")
        scratch.replace(self.folder / f"{part}.json")


def parts_in(folder: Path) -> dict[str, Any]:
    """All parts of a folder by name. Raises UserError for a file that is none of ours."""
    out = {}
    for file in sorted(folder.glob("*.json")):
        try:
            out[file.stem] = json.loads(file.read_text())
            out[file.stem]["identity"], out[file.stem]["cells"]
        except (ValueError, KeyError, TypeError) as error:
            why = in_words(error)
            raise UserError(f"{file} is not a result of this command ({why}). Name another folder.") from None
    return out
