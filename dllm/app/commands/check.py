"""``task=check model.path=FOLDER``: look into a checkpoint without loading it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dllm.app.commands.checkpoint import inspect_checkpoint, print_report
from dllm.app.commands.shares import share_lines
from dllm.app.engines.base import refuse_engine
from dllm.common.terminal import say
from dllm.compose.trusted import how_read
from dllm.models.bundle import read_adapter, warn_of_another


def run(config: dict[str, Any], given: Sequence[str]) -> None:
    """Print what the folder holds, and each rank of ``model.tp``; the exit code is 1 when it cannot be used. Raises
    UserError for an adapter that does not fit, and for ranks that cannot share the model."""
    refuse_engine(config, given)
    model = config["model"]
    path, folder = model["path"], model["adapter"]
    report = inspect_checkpoint(path, **how_read(model))
    print_report(report)
    if report.config is not None:
        warn_of_another(config["model"], report.config)
    if report.config is not None and (adapter := read_adapter(folder, report.config, path)) is not None:
        say(f"adapter {folder}: adapts {len(adapter.pairs)} of its matrices")
    if report.config is not None and config["model"]["tp"] > 1:
        for line in share_lines(report.config, config["model"]["tp"], config["model"]["ep"]):
            say(line)
    if not report.usable:
        raise SystemExit(1)
