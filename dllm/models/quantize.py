"""Weights in eight bits through torchao: ``model.quantize=int8`` (the extra ``quantize``).

At batch 1 a cached forward takes the time of reading the weights. With half the bytes it takes about half the time, if
the product widens the weights tile by tile, as torch.compile does. Every other runtime first widens the whole weight in
each call (one core, one row of 4096 x 4096: 43 instead of 5.6 ms in float32, 14.0 instead of 5.4 in bfloat16; 32 rows
of 2048 x 2048: 6.0 instead of 3.7 and 5.6 instead of 4.2). The head is not quantised, since it is not compiled.
"""

from __future__ import annotations

from importlib.util import find_spec

from torch import nn

from dllm.errors import UserError

QUANTIZATIONS = ("int8",)
UNQUANTIZED = "lm_head"


def check_quantize(kind: str | None) -> None:
    """Raises UserError for an unknown kind, and where torchao is not installed."""
    if kind is None:
        return
    if kind not in QUANTIZATIONS:
        raise UserError(f"model.quantize={kind!r} must be null or int8.")
    if find_spec("torchao") is None:
        raise UserError("model.quantize=int8 needs torchao: pip install 'dllm[quantize]', or set it to null.")


def check_runtime(kind: str | None, runtime: str) -> None:
    """Raises UserError for a runtime in which eight bits are slower than plain weights."""
    if kind is not None and not runtime.startswith("compile"):
        raise UserError(
            f"model.quantize={kind} with runtime={runtime} would widen every weight in every call, which is slower "
            "than plain weights. Use runtime=compile, or set model.quantize to null."
        )


def quantize_weights(model: nn.Module, kind: str) -> None:
    """Quantise the weights of all linear layers but the routers and the head, in place. One scale per output; the
    arithmetic stays in the dtype of the rows."""
    check_quantize(kind)
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    config = Int8WeightOnlyConfig(version=2)
    quantize_(model, config, lambda module, name: type(module) is nn.Linear and name != UNQUANTIZED)
