"""The settings of a decode from Python, as the configuration of a run has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dllm.contract.canvas import Request
from dllm.contract.setting import Sampling
from dllm.loop.runtime.runtime import Runtime
from dllm.models.bundle import Model
from dllm.models.weights.shipped import is_shipped


def decode_settings(
    model: Model,
    parts: Mapping[str, Any],
    sampling: Sampling,
    gen_length: int,
    batch_size: int,
    stop: Sequence[str],
    chat: bool | None,
    runtime: Runtime,
) -> dict[str, Any]:
    """What ``task=replay`` decodes with. parts: their configurations by group."""
    return {
        "model": model_settings(model),
        **parts,
        "sampling": asdict(sampling),
        "gen_length": gen_length,
        "batch_size": batch_size,
        "stop": list(stop),
        "chat": False if chat is False else None,  # true: a conversation
        "runtime": runtime.name,
        "lag": runtime.lag,
        "kernels": model.kernels,
    }


def of_request(settings: Mapping[str, Any], request: Request) -> dict[str, Any]:
    """The settings with one request's own temperature, where requests have several."""
    sampling, several = settings["sampling"], settings["sampling"]["temperature"]
    own = request.temperature
    if own is None and not isinstance(several, int | float):
        own = float(several[request.param_index or 0])
    return {**settings, "sampling": {**sampling, "temperature": several if own is None else own}}


def model_settings(model: Model) -> dict[str, Any]:
    """Where the model is, and how it was loaded. A shipped one goes by its name, wherever dllm is installed."""
    network = model.transformer
    return {
        "name": model.name,
        "path": model.path.name if is_shipped(model.path) else str(model.path),
        "device": network.device.type,
        "dtype": str(network.dtype).removeprefix("torch."),
        "mask_id": next(iter(model.ids.mask_tokens), None),
        "quantize": model.quantize,
        "quantize_head": model.quantize_head,
        "activations": model.activations,
        "adapter": None if model.adapter is None else str(model.adapter),
        "draft_adapter": None if model.draft_adapter is None else str(model.draft_adapter),
    }
