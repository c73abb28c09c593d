"""Routed experts with weights in eight or four bits, on a CPU: each expert's rows through ``narrow_linear``'s products.

A token of a mixture reads few of its experts (8 of 256 in LLaDA2-mini), so most products have a row or two and take the
time of reading their weights: a half or a quarter of bfloat16's bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dllm.kernels.narrow_linear import cpu_product, narrow_here, packs_by_64, placed, stored
from dllm.kernels.silu_times import GATES


class NarrowExperts(nn.Module):
    """``StackedExperts`` in ``bits`` (8 or 4) bits: gate_up [E, 2 I, D] and down [E, D, I], each as ``placed``."""

    gate_up: Tensor
    gate_up_scale: Tensor
    down: Tensor
    down_scale: Tensor

    def __init__(
        self, gate_up: Tensor, gate_up_scale: Tensor, down: Tensor, down_scale: Tensor, bits: int,
        activation: str = "silu",
    ) -> None:  # fmt: skip
        super().__init__()
        self.bits, self.times = bits, GATES[activation]
        named = {"gate_up": gate_up, "gate_up_scale": gate_up_scale, "down": down, "down_scale": down_scale}
        for name, tensor in named.items():
            self.register_buffer(name, tensor)

    @staticmethod
    def of(
        gate_up: Tensor, down: Tensor, bits: int, as_stored: bool = False, activation: str = "silu"
    ) -> NarrowExperts:  # fmt: skip
        """Narrowed expert by expert, as a CPU's operators read them. as_stored: in the form of files."""
        narrow = stored if as_stored else narrow_here
        stacks = *each(gate_up.detach(), narrow, bits), *each(down.detach(), narrow, bits)
        return NarrowExperts(*stacks, bits, activation)

    def place(self) -> None:
        """Turn experts as stored into what this CPU's operators read."""
        if self.bits == 4 and not packs_by_64():
            for name in ("gate_up", "down"):
                both = zip(getattr(self, name), getattr(self, f"{name}_scale"), strict=True)
                self.register_buffer(name, torch.stack([placed(narrow, scale, False)[0] for narrow, scale in both]))

    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        """Rows [T, D], sorted by expert, through the expert of each. ends [E]: the row behind each expert's last."""
        out, begin = torch.empty_like(rows), 0
        for expert, end in enumerate(ends.tolist()):
            if end > begin:
                inner = cpu_product(rows[begin:end], self.gate_up[expert], self.gate_up_scale[expert], self.bits)
                gate, up = inner.chunk(2, -1)
                inner = self.times(gate, up, False)
                out[begin:end] = cpu_product(inner, self.down[expert], self.down_scale[expert], self.bits)
            begin = end
        return out


def each(weights: Tensor, narrow: Callable[[Tensor, int], tuple[Tensor, Tensor]], bits: int) -> tuple[Tensor, Tensor]:
    """Weights [E, N, D] narrowed expert by expert, with their scales."""
    first, size = narrow(weights[0], bits)
    if weights.is_meta:
        return first.new_empty(len(weights), *first.shape), size.new_empty(len(weights), *size.shape)
    steps, scales = first.new_empty(len(weights), *first.shape), size.new_empty(len(weights), *size.shape)
    for number, weight in enumerate(weights):
        steps[number], scales[number] = narrow(weight, bits)
    return steps, scales
