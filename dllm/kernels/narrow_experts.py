"""Routed experts with weights in eight or four bits, on a CPU: each expert's rows through ``narrow_linear``'s products.

A token of a mixture reads few of its experts (8 of 256 in LLaDA2-mini), so most products have a row or two and take the
time of reading their weights: a half or a quarter of bfloat16's bytes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dllm.kernels.narrow_linear import cpu_product, laid_out, scale_of_cpu
from dllm.kernels.narrow_product import narrowed
from dllm.kernels.silu_times import silu_times


class NarrowExperts(nn.Module):
    """``StackedExperts`` of gate_up [E, 2 I, D] and down [E, D, I], narrowed expert by expert to ``bits`` (8 or 4)."""

    gate_up: Tensor
    gate_up_scale: Tensor
    down: Tensor
    down_scale: Tensor

    def __init__(self, gate_up: Tensor, down: Tensor, bits: int) -> None:
        super().__init__()
        self.bits = bits
        for name, weights in (("gate_up", gate_up), ("down", down)):
            narrow, scale = stacked_narrow(weights, bits)
            self.register_buffer(name, narrow)
            self.register_buffer(f"{name}_scale", scale)

    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        """Rows [T, D], sorted by expert, through the expert of each. ends [E]: the row behind each expert's last."""
        out, begin = torch.empty_like(rows), 0
        for expert, end in enumerate(ends.tolist()):
            if end > begin:
                inner = cpu_product(rows[begin:end], self.gate_up[expert], self.gate_up_scale[expert], self.bits)
                gate, up = inner.chunk(2, -1)
                inner = silu_times(gate, up, False)
                out[begin:end] = cpu_product(inner, self.down[expert], self.down_scale[expert], self.bits)
            begin = end
        return out


def stacked_narrow(weights: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Weights [E, N, D] as a CPU's operators read them, with their scales, expert by expert."""
    narrow: Tensor | None = None
    for number, weight in enumerate(weights):
        steps, scale = narrowed(weight, bits)
        steps = laid_out(steps, scale) if bits == 4 else steps
        scale = scale_of_cpu(scale, bits)
        if narrow is None:
            narrow, scales = steps.new_empty(len(weights), *steps.shape), scale.new_empty(len(weights), *scale.shape)
        narrow[number], scales[number] = steps, scale
    assert narrow is not None, "a mixture has experts"
    return narrow, scales
