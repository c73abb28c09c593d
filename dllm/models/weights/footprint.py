"""What a model takes of memory, by the kind of its weights: known from its config alone."""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import torch
from torch import nn

from dllm.common.errors import Refusal, Set, UserError
from dllm.models.config import ModelConfig
from dllm.models.network.experts import Router, StackedExperts
from dllm.models.network.layer import Layer
from dllm.models.network.masked_lm_class import MASKED_LM_FAMILY
from dllm.models.network.networks import network_of
from dllm.models.network.transformer import Transformer

# Bytes of a weight. int4 has a scale and a zero point of bfloat16 for every 32 of them.
PER_WEIGHT = {
    "bfloat16": 2.0,
    "float16": 2.0,
    "float32": 4.0,
    "float64": 8.0,
    "int8": 1.0,
    "float8": 1.0,
    "int4": 0.5 + 4 / 32,
}
PROCESS = 0.4 * 2**30  # bytes of Python, PyTorch and what allocators keep: measured beside 5 to 15 GiB of weights
# Kinds of the layers, and of embedding and head, from the widest to the narrowest.
NARROW_WITH_HEAD = (("int8", None), ("int8", "int8"), ("int4", None), ("int4", "int8"), ("int4", "int4"))


@dataclass(frozen=True)
class Footprint:
    """Bytes of a model in memory."""

    weights: int  # when it is loaded
    loading: int  # at most while it is loaded: beside the weights one layer as read, and as fused

    @property
    def file_bytes(self) -> int:
        """Bytes of the weights in files."""
        return self.weights - int(PROCESS)

    @staticmethod
    def of(config: ModelConfig, kind: str, head: str | None = None) -> Footprint:
        """kind: a dtype, or a kind of ``model.quantize``, whose other weights are bfloat16. head: a kind of
        ``model.quantize_head``."""
        with torch.device("meta"):
            return Footprint.of_model(network_of(config), kind, head)

    @staticmethod
    def of_model(model: Transformer, kind: str, head: str | None = None) -> Footprint:
        """As ``of``, of a model that may be on the meta device."""
        plain = PER_WEIGHT[kind if kind.startswith(("float1", "float3", "float6", "bfloat")) else "bfloat16"]
        layers = [narrowed_numbers(layer) for layer in model.layers]
        total = sum(parameter.numel() for parameter in model.parameters())
        narrow = sum(layers) if kind not in PER_WEIGHT or PER_WEIGHT[kind] < plain else 0
        matrix = model.config.vocab * model.config.width if head else 0  # of the head; read whole, then narrowed
        ends, per_end = matrix * (1 if model.config.tied else 2), PER_WEIGHT[head or "bfloat16"]
        weights = (total - narrow - ends) * plain + narrow * PER_WEIGHT[kind] + ends * per_end
        begun = ends * per_end + matrix * (plain + per_end)  # the head, which is read early
        loading = max(weights + 2 * max(layers, default=0) * plain, begun)
        return Footprint(int(weights + PROCESS), int(loading + PROCESS))


def parameter_count(model: nn.Module, config: ModelConfig) -> int:
    """Numbers of a model, however its weights are held: packed matrices and narrow ones are not parameters."""
    if config.family == MASKED_LM_FAMILY:  # a class of transformers, which is never packed
        return sum(parameter.numel() for parameter in model.parameters())
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in network_of(config).parameters())


def narrowed_numbers(layer: nn.Module) -> int:
    """How many numbers of a layer ``model.quantize`` narrows: all but norms, biases and the router's."""
    assert isinstance(layer, Layer)
    linears = (module for module in layer.modules() if isinstance(module, nn.Linear) and not isinstance(module, Router))
    stacks = (module for module in layer.modules() if isinstance(module, StackedExperts))
    return sum(module.weight.numel() for module in linears) + sum(
        module.gate_up.numel() + module.down.numel() for module in stacks
    )


def refuse_too_large(model: Transformer, kind: str, head: str | None = None) -> None:
    """Raise UserError where a CPU's memory cannot hold the model while it is loaded; the sentence names the widest
    kinds that it does hold. kind, head: as in ``Footprint.of``."""
    free, size = psutil.virtual_memory().available, Footprint.of_model(model, kind, head).loading
    if size <= free:
        return
    way_out, use = "Take a machine with more.", tuple[Set, ...]()
    for other, end in NARROW_WITH_HEAD:
        smaller = Footprint.of_model(model, other, end).loading
        if smaller <= free:
            kinds = Set("model.quantize", other) & Set("model.dtype", "bfloat16")
            use = (kinds if end is None else kinds & Set("model.quantize_head", end),)
            way_out = f"That takes {gib(smaller)}."
            break
    raise Refusal(
        f"the model takes {gib(size)} of memory in {kind} while it is loaded, and {gib(free)} are free.",
        (),
        use,
        way_out,
    )


def refuse_mapped(count: int) -> None:
    """Raise UserError where a CPU's memory cannot hold ``count`` bytes of weights that are mapped as they are."""
    free, size = psutil.virtual_memory().available, count + PROCESS
    if size > free:
        raise UserError(f"the weights take {gib(size)} of memory, and {gib(free)} are free. Take a machine with more.")


def gib(count: float) -> str:
    """Bytes in words: ``5.4 GiB``."""
    return f"{count / 2**30:.1f} GiB"


def in_gib(count: float) -> str:
    """Bytes in GiB to three digits: ``14.9``, ``0.0042``."""
    size = count / 2**30
    return f"{size:.1f}" if size >= 10 else f"{size:.3g}" if size >= 1e-4 else f"{size:.1g}"  # noqa: PLR2004


def in_units(count: float) -> str:
    """Bytes in the largest unit that they fill: ``4.3 MiB``."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"
