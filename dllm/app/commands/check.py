"""``task=check model.path=FOLDER``: look into a checkpoint without loading it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dllm.analysis.checkpoint import inspect_checkpoint, print_report
from dllm.app.engines.base import refuse_engine


def run(config: dict[str, Any], given: Sequence[str]) -> None:
    """Print what the folder holds; the exit code is 1 when it cannot be used."""
    refuse_engine(config, given)
    report = inspect_checkpoint(config["model"]["path"], config["model"]["mask_id"])
    print_report(report)
    if not report.usable:
        raise SystemExit(1)
