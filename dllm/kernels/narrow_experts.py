"""Routed experts with weights in eight or four bits.

A token of a mixture reads few of its experts (8 of 256 in LLaDA2-mini), so most products have a row or two and take the
time of reading their weights: a half or a quarter of bfloat16's bytes. On a CPU each expert's rows go through
``narrow_linear``'s products one expert after the other, on a GPU all through ``grouped_narrow_product``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dllm.common.ranks import ALONE, Ranks
from dllm.kernels.grouped_narrow_product import grouped_narrow_product
from dllm.kernels.grouped_product import by_group
from dllm.kernels.narrow_linear import cpu_product, largest_of, narrow_here, packs_by_64, placed, stored
from dllm.kernels.narrow_product import narrowed
from dllm.kernels.silu_times import GATES


class NarrowExperts(nn.Module):
    """``StackedExperts`` in ``bits`` (8 or 4) bits: gate_up [E, 2 I, D] and down [E, D, I], each as ``placed``."""

    gate_up: Tensor
    gate_up_scale: Tensor
    down: Tensor
    down_scale: Tensor

    def __init__(
        self,
        gate_up: Tensor,
        gate_up_scale: Tensor,
        down: Tensor,
        down_scale: Tensor,
        bits: int,
        activation: str = "silu",
        triton: bool = False,
    ) -> None:
        super().__init__()
        self.bits, self.times, self.triton = bits, GATES[activation], triton
        named = {"gate_up": gate_up, "gate_up_scale": gate_up_scale, "down": down, "down_scale": down_scale}
        for name, tensor in named.items():
            self.register_buffer(name, tensor)

    @staticmethod
    def of(
        gate_up: Tensor,
        down: Tensor,
        bits: int,
        triton: bool,
        as_stored: bool = False,
        activation: str = "silu",
        sharing: Ranks = ALONE,
    ) -> NarrowExperts:
        """Narrowed expert by expert. as_stored: in the form of files. sharing: ranks that hold columns of ``down``."""
        narrow = narrowed if triton else stored if as_stored else narrow_here
        largest = largest_of(down.detach(), bits, sharing)
        stacks = *each(gate_up.detach(), narrow, bits), *each(down.detach(), narrow, bits, largest)
        return NarrowExperts(*stacks, bits, activation, triton)

    def place(self, triton: bool) -> None:
        """As ``NarrowLinear.place``, without a copy where the layout is the same."""
        self.triton = triton
        for name in ("gate_up", "down"):
            narrow, scale = getattr(self, name), getattr(self, f"{name}_scale")
            if self.bits == 8:
                scale = scale[:, :, None] if triton else scale
            elif triton or not packs_by_64():
                pairs = [placed(*pair, triton) for pair in zip(narrow, scale, strict=True)]
                narrow, scale = map(torch.stack, zip(*pairs, strict=True))
            self.register_buffer(name, narrow)
            self.register_buffer(f"{name}_scale", scale)

    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        """Rows [T, D], sorted by expert, through the expert of each. ends [E]: the row after each expert's last."""
        if self.triton:
            gate, up = grouped_narrow_product(rows, self.gate_up, self.gate_up_scale, ends, True).chunk(2, -1)
            return grouped_narrow_product(self.times(gate, up, triton=True), self.down, self.down_scale, ends, True)
        return by_group(self._of_expert, rows, ends, rows.shape[1])

    def _of_expert(self, expert: int, rows: Tensor) -> Tensor:
        inner = cpu_product(rows, self.gate_up[expert], self.gate_up_scale[expert], self.bits)
        inner = self.times(*inner.chunk(2, -1))
        return cpu_product(inner, self.down[expert], self.down_scale[expert], self.bits)


def each(
    weights: Tensor,
    narrow: Callable[[Tensor, int, Tensor | None], tuple[Tensor, Tensor]],
    bits: int,
    largest: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Weights [E, N, D] narrowed expert by expert, with their scales. largest [E, N]: as in ``rounded_steps``."""
    first, size = narrow(weights[0], bits, None)
    steps, scales = first.new_empty(len(weights), *first.shape), size.new_empty(len(weights), *size.shape)
    for number, weight in enumerate(() if weights.is_meta else weights):
        steps[number], scales[number] = narrow(weight, bits, None if largest is None else largest[number])
    return steps, scales
