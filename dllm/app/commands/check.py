"""``task=check``: look into a checkpoint without loading it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dllm.app.commands.checkpoint import Report, inspect_checkpoint
from dllm.app.commands.checkpoint_table import print_report
from dllm.app.commands.fitting import print_fitting
from dllm.app.commands.shares import share_lines
from dllm.app.engines.base import refuse_engine
from dllm.common.errors import UserError
from dllm.common.terminal import say
from dllm.compose.trusted import describe_arguments
from dllm.models.bundle import read_adapter, warn_of_mismatch
from dllm.models.weights.checkpoint_path import description_of, folder_label


def run(config: dict[str, Any], names: Sequence[str]) -> None:
    """Print what the folder holds, and each rank of ``model.tp``; the exit code is 1 when it cannot be used. Raises
    UserError for an adapter that does not fit, and for ranks that cannot share the model."""
    refuse_engine(config, names)
    model = config["model"]
    path, folder = model["path"], model["adapter"]
    report = inspected(path, describe_arguments(model))
    has_question = any(config["task"].get(name) is not None for name in ("gpu", "rows", "length"))
    if not has_question or report.config is None or report.problems:
        print_report(report)
    if report.config is not None:
        warn_of_mismatch(config["model"], report.config)
    if report.config is not None and (adapter := read_adapter(folder, report.config, path)) is not None:
        say(f"adapter {folder}: adapts {len(adapter.pairs)} of its matrices")
    if report.config is not None and config["model"]["tp"] > 1:
        for line in share_lines(report.config, config["model"]["tp"], config["model"]["ep"]):
            say(line)
    fits = report.config is None or print_fitting(report, config, folder_label(path))
    if not fits or not (report.usable or (has_question and not report.problems)):
        raise SystemExit(1)


def inspected(path: str, how: dict[str, Any]) -> Report:
    """The report of a checkpoint; of a published one that is neither here nor within reach, of the config.json that
    comes with the package."""
    try:
        return inspect_checkpoint(path, **how)
    except UserError:
        if (description := description_of(path)) is None:
            raise
        say(f"{path} is not here and cannot be fetched: these are the figures of its config.json, which is known.")
        return inspect_checkpoint(description, **how)
