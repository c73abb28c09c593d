"""``task=check model.path=FOLDER``: look into a checkpoint without loading it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dllm.models.check import check, print_report


def run(config: dict[str, Any], given: Sequence[str]) -> None:
    """Print what the folder holds."""
    print_report(check(config["model"]["path"]))
