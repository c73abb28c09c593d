"""Linear layers with weights in eight or four bits: y = x W^T + b, W as ``narrow_product`` stores it.

A CPU has PyTorch's own operators for it, in bfloat16. They keep four bits in a layout of their own, which depends on
the processor.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dllm.kernels.narrow_product import GROUP, narrow_product, narrowed, stepped


class NarrowLinear(nn.Module):
    """x W^T + b [..., N] of x [..., D], with the weights of ``linear`` in ``bits`` (8 or 4) bits. triton: our kernel
    multiplies, else a CPU's operators do."""

    narrow: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear, bits: int, triton: bool) -> None:
        super().__init__()
        weight, scale = narrowed(linear.weight.detach(), bits)
        self.triton, self.bias = triton, linear.bias
        self.register_buffer("narrow", weight if triton or bits == 8 else laid_out(weight, scale))
        self.register_buffer("scale", scale if triton else scale_of_cpu(scale, bits))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2).contiguous()
        if self.triton:
            product = narrow_product(rows, self.narrow, self.scale, True)
        elif self.narrow.dtype == torch.int8:
            product = torch._weight_int8pack_mm(rows, self.narrow, self.scale)
        else:
            product = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.narrow, GROUP, self.scale)
        product = product.view(*x.shape[:-1], product.shape[-1])
        return product if self.bias is None else product + self.bias


def laid_out(weight: Tensor, scale: Tensor) -> Tensor:
    """Weights in four bits as a CPU's operator reads them."""
    steps = stepped(weight, scale).flatten(1).int()
    return torch.ops.aten._convert_weight_to_int4pack_for_cpu(steps + 8, 1)


def scale_of_cpu(scale: Tensor, bits: int) -> Tensor:
    """Scales [N, G] as a CPU's operators read them: [N], or with the zero point 0 as [G, N, 2]."""
    if bits == 8:
        return scale.flatten()
    return torch.stack([scale, torch.zeros_like(scale)], -1).transpose(0, 1).contiguous()
