"""``task=quantize``: a checkpoint's weights in fewer bits, as a folder that loads without work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dllm.app.commands.interruptible import interruptible
from dllm.app.engines.base import refuse_engine
from dllm.common.errors import UserError
from dllm.common.terminal import say
from dllm.compose.trusted import describe_arguments
from dllm.models.arithmetic import check_numbers
from dllm.models.bundle import describe, read_adapter
from dllm.models.formats.prequantized import STORED_KINDS
from dllm.models.weights.checkpoint_path import locate
from dllm.models.weights.footprint import in_units
from dllm.models.weights.load_progress import load_progress
from dllm.models.weights.narrow_writer import quantize_folder

ITS_SETTINGS = ("task", "quantize.to", "model")


def run(config: dict[str, Any], names: Sequence[str]) -> None:
    """Write the folder ``quantize.to``. Raises UserError for what cannot be quantised, and for a folder in use."""
    refuse_engine(config, names)
    for name in names:
        if name not in ITS_SETTINGS and not name.startswith("model."):
            raise UserError(f"{name} has no meaning for task=quantize. Drop it.")
    model, kind, head = config["model"], config["model"]["quantize"], config["model"]["quantize_head"]
    if model["activations"] is not None:
        raise UserError(
            f"model.activations={model['activations']} has no meaning for task=quantize: rows are rounded "
            "as they are computed. Drop it, and give it to the command that decodes."
        )
    target = target_of(config["quantize"], kind)
    description = describe(model["path"], **describe_arguments(model))
    if description.config.stored_kind is not None:
        raise UserError(
            f"model.path={model['path']}: its weights are {description.config.stored_kind} already. Take the "
            "checkpoint that they were made from."
        )
    check_numbers(description.config, torch.bfloat16, torch.device("cpu"), "auto", kind, head)
    adapter = read_adapter(model["adapter"], description.config, model["path"])
    source = locate(model["path"])
    with (
        interruptible(lambda: f"Run the same command again: it goes on in {target}"),
        load_progress(description.name, "Quantizing") as watch,
    ):
        total = quantize_folder(source, target, description.config, kind, adapter, watch, head)
    kinds = kind if head is None else f"{kind}, embedding and head {head}"
    say(f"{target}: {kinds}, {in_units(total)}. Load it by model.path={target} model.dtype=bfloat16.")


def target_of(settings: Any, kind: Any) -> Path:
    """Where to write. Raises UserError where that or the kind is not said."""
    to = settings.get("to") if isinstance(settings, dict) else None
    if not to:
        raise UserError("task=quantize needs quantize.to=FOLDER, which it writes. Add it.")
    if kind not in STORED_KINDS:
        reason = (
            "float8 is made in a moment on the GPU that needs it, and not stored"
            if kind == "float8"
            else ("task=quantize needs a kind")
        )
        raise UserError(
            f"model.quantize={'null' if kind is None else kind}: {reason}. Set model.quantize="
            f"{' or '.join(STORED_KINDS)}."
        )
    return Path(str(to))
