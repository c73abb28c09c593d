"""Linear layers whose rows and weights are in few bits: y = x W^T + b on a CPU, W of a ``NarrowLinear``.

Weights of eight bits go into oneDNN's layout, once, and replace the stored ones; every number of rows is multiplied
there. Weights of four bits stay as they are. From ``four_from`` rows on a tile is widened to eight bits at a time.
Fewer rows, rounded as well, go through PyTorch's operator.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from dllm.common.ranks import ALONE, Ranks
from dllm.kernels.narrow_linear import PACK, NarrowLinear
from dllm.kernels.rounded_four import FourBitTiles
from dllm.kernels.rounded_machine import Processor
from dllm.kernels.rounded_rows import PackedBytes, in_steps


class RoundedLinear(nn.Module):
    """x W^T + b [..., N] of x [..., D]. weight: None, so that no one multiplies with it in another way."""

    weight = None

    def __init__(
        self, linear: NarrowLinear, machine: Processor, sharing: Ranks = ALONE, invariant: bool = False
    ) -> None:
        """sharing: ranks that hold columns of it each, whose rows then have one scale. invariant: rows of any number
        are multiplied in one way."""
        super().__init__()
        self.bias, self.machine, self.sharing, self.count = linear.bias, machine, sharing, len(linear.narrow)
        self.four_from = 0 if invariant else machine.four_from
        self.eight = PackedBytes(linear.narrow, linear.scale, machine.most) if linear.bits == 8 else None
        self.four = None if linear.bits == 8 else FourBitTiles(linear.narrow, linear.scale, machine.pack)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        product = self._product(rows).view(*x.shape[:-1], self.count)
        return product if self.bias is None else product + self.bias

    def _product(self, rows: Tensor) -> Tensor:
        if not len(rows):
            return rows.new_empty(0, self.count)
        steps = in_steps(rows, self.machine.most, self.sharing)
        if self.eight is not None:
            return self.eight(steps, rows.dtype)
        assert self.four is not None
        if len(rows) < self.four_from:
            return self.four.operator(steps.widened(rows.dtype))
        return self.four.product(steps, rows.dtype, self.machine.most, self.machine.plain)


def takes(linear: nn.Module, machine: Processor) -> bool:
    """Whether the rows of a product can be rounded here; a rule of sizes alone, which all ranks share."""
    if type(linear) is not NarrowLinear:
        return False
    return linear.bits == 8 or (machine.pack > 0 and len(linear.narrow) % PACK == 0)


def round_rows(model: nn.Module, machine: Processor, narrowing: tuple[str, ...], ranks: Ranks, invariant: bool) -> None:
    """Let the narrow products of ``model`` round their rows, in place. narrowing: names of those whose inputs ``ranks``
    share. Routed experts, whose products have a row or two, stay as they are."""
    owners = [part for part in model.modules() if type(part) is not NarrowLinear]  # which keeps no weights twice
    for module in owners:
        for name in [name for name, child in module.named_children() if takes(child, machine)]:
            sharing, linear = ranks if name in narrowing else ALONE, cast("NarrowLinear", getattr(module, name))
            setattr(module, name, RoundedLinear(linear, machine, sharing, invariant))


def left_wide(model: nn.Module) -> list[str]:
    """The names of narrow products that do not round their rows."""
    return [name for name, part in model.named_modules() if type(part) is NarrowLinear]
