"""Weights in eight bits: ``model.quantize=int8``, by way of torchao (an extra).

At batch 1 a forward of a cached decode costs what reading the weights costs: half the bytes, about half the time.
"""

from __future__ import annotations

from importlib.util import find_spec

from torch import nn

from dllm.errors import UserError

KINDS = ("int8",)


def check(kind: str | None) -> None:
    """Raises UserError for what does not exist, or is not installed."""
    if kind is None:
        return
    if kind not in KINDS:
        raise UserError(f"model.quantize={kind!r} must be null or int8.")
    if find_spec("torchao") is None:
        raise UserError("model.quantize=int8 needs torchao: pip install 'dllm[quantize]', or set it to null.")


def quantize(model: nn.Module, kind: str) -> None:
    """Replace the weights of all linear layers but routers: int8 with a scale per output, arithmetic as before."""
    check(kind)
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(model, Int8WeightOnlyConfig(version=2), filter_fn=lambda module, name: type(module) is nn.Linear)
