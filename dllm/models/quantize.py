"""Weights in eight bits: ``model.quantize=int8``, by way of torchao (an extra).

At batch 1 a forward of a cached decode costs what reading the weights costs: half the bytes, about half the time, if
the multiplication widens them as it goes, which torch.compile sees to. Otherwise every call widens the whole weight
first (one core, one row of 4096 x 4096: float32 43 ms instead of 5.6, bfloat16 14.0 instead of 5.4; 32 rows of 2048 x
2048: 6.0 instead of 3.7 and 5.6 instead of 4.2). The head keeps its weights: it runs outside of what is compiled.
"""

from __future__ import annotations

from importlib.util import find_spec

from torch import nn

from dllm.errors import UserError

KINDS = ("int8",)
HEAD = "lm_head"


def check(kind: str | None) -> None:
    """Raises UserError for what does not exist, or is not installed."""
    if kind is None:
        return
    if kind not in KINDS:
        raise UserError(f"model.quantize={kind!r} must be null or int8.")
    if find_spec("torchao") is None:
        raise UserError("model.quantize=int8 needs torchao: pip install 'dllm[quantize]', or set it to null.")


def check_runtime(kind: str | None, runtime: str) -> None:
    """Raises UserError for a runtime in which weights of eight bits are slower than plain ones."""
    if kind is not None and runtime != "compile":
        raise UserError(
            f"model.quantize={kind} with runtime={runtime} would widen every weight again in every call, which is "
            f"slower than plain weights. Use runtime=compile, or set model.quantize to null."
        )


def quantize(model: nn.Module, kind: str) -> None:
    """Replace the weights of all linear layers but routers and the head: int8 with a scale per output, arithmetic as
    before."""
    check(kind)
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    def meant(module: nn.Module, name: str) -> bool:
        return type(module) is nn.Linear and name != HEAD

    quantize_(model, Int8WeightOnlyConfig(version=2), filter_fn=meant)
