"""``task=check``: look into a checkpoint without loading it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from dllm.app.commands.checkpoint import Report, inspect_checkpoint
from dllm.app.commands.checkpoint_table import print_report
from dllm.app.commands.fitting import print_fitting
from dllm.app.engines.base import refuse_engine
from dllm.common.errors import UserError
from dllm.common.ranks import Ranks
from dllm.common.terminal import say
from dllm.compose.trusted import describe_arguments
from dllm.models.bundle import read_adapter, warn_of_mismatch
from dllm.models.config import ModelConfig
from dllm.models.network.networks import network_of
from dllm.models.weights.checkpoint_path import description_of, folder_label
from dllm.models.weights.cut import check_cut, share_of
from dllm.models.weights.footprint import Footprint, in_gib

WEIGHT_KINDS = ("bfloat16", "int8", "int4")
GPU_SIZES = (16, 24, 32, 40, 48, 80, 96, 141, 192)  # GB of GPUs that people have
BESIDE_WEIGHTS = 2e9  # bytes beside weights, keys and values: activations, scores of a block, what CUDA and NCCL keep
IN_FLIGHT = 16_384  # whose keys and values must have room, as many as a server has in flight


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


def share_lines(config: ModelConfig, tp: int, ep: bool) -> Iterator[str]:
    """For each kind of weights what each of ``tp`` ranks holds, and which GPUs have room for it. Raises UserError for a
    model that they cannot share."""
    check_cut(config, tp, ep, None)
    with torch.device("meta"):
        last = network_of(share_of(config, Ranks(tp - 1, tp), ep))  # no rank holds more
    keys = 2 * 2 * sum(last.config.attention_widths(layer)[1] for layer in range(config.layers))
    for kind in WEIGHT_KINDS if config.stored_kind is None else (config.stored_kind,):
        try:
            check_cut(config, tp, ep, kind, config.stored_head)
        except UserError as error:
            yield f"model.tp={tp} {kind}: {error}"
            continue
        weights = Footprint.of_model(last, kind).weights
        room = _room(weights + keys * IN_FLIGHT + BESIDE_WEIGHTS, tp)
        size = f"{in_gib(weights)} GiB, and {in_gib(1024 * keys)} of keys and values of 1,024 tokens"
        yield f"model.tp={tp} {kind}: each rank holds {size}; {room}"


def _room(least: float, tp: int) -> str:
    """Whether the GPUs here have that many bytes each, or which ones would."""
    there = [torch.cuda.get_device_properties(place).total_memory for place in range(torch.cuda.device_count())]
    if len(there) >= tp:
        fits = all(size >= least for size in there[:tp])
        return f"{'fits' if fits else 'does not fit'} on the GPUs here, of {min(there[:tp]) / 1e9:.0f} GB"
    large = next((size for size in GPU_SIZES if size * 1e9 >= least), None)
    here = f"{len(there)} GPUs are here, so take" if there else "no GPU is here; it takes"
    return f"{here} {tp} of {large} GB or more" if large else f"{here} more ranks: no GPU holds that much"
