"""Weights that come on sixteen steps, as published files of four bits have them, on their way to ``NarrowLinear``.

A step and a least value for 32 columns is the form that int4 products take: the steps stay as they are, and only what
a step is and stands for is rounded, to bfloat16. A weight moves by at most a 16th of a step, as bfloat16 moves it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dllm.kernels.narrow_experts import NarrowExperts
from dllm.kernels.narrow_linear import NarrowLinear, in_blocks, placed
from dllm.kernels.narrow_product import OUTPUTS_AT_ONCE, in_bytes, rounded_steps

STEP_BITS = 4


class SteppedLinear(nn.Module):
    """Weights [N, D] and a bias before they have a layout; nothing multiplies with it."""

    steps: Tensor
    sizes: Tensor

    def __init__(self, steps: Tensor, sizes: Tensor, bias: Tensor | None) -> None:
        """steps: int8 [N, D], from -8 to 7. sizes: what a step is, and what step 0 stands for, [N, D / 32, 2]."""
        super().__init__()
        self.register_buffer("steps", steps)
        self.register_buffer("sizes", sizes.to(torch.bfloat16))
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    @staticmethod
    def of(linear: nn.Module) -> SteppedLinear:
        """A linear layer, its weights rounded where they are not on steps yet."""
        if isinstance(linear, SteppedLinear):
            return linear
        assert isinstance(linear, nn.Linear)
        return SteppedLinear(*rounded_steps(linear.weight.detach(), STEP_BITS), linear.bias)

    @staticmethod
    def joined(linears: Sequence[nn.Module]) -> SteppedLinear:
        """One layer with the outputs of all, in order."""
        parts = [SteppedLinear.of(linear) for linear in linears]
        biases: list[Tensor] = [part.bias for part in parts if part.bias is not None]
        return SteppedLinear(
            torch.cat([part.steps for part in parts]),
            torch.cat([part.sizes for part in parts]),
            torch.cat(biases) if biases else None,
        )

    def form(self, triton: bool, as_stored: bool) -> tuple[Tensor, Tensor]:
        """Weights and scales as our kernel (triton), files (as_stored) or this CPU's operators have them."""
        layout = in_bytes if triton else in_blocks
        narrow = torch.cat([layout(part) for part in self.steps.split(OUTPUTS_AT_ONCE)])
        if triton:
            return narrow, self.sizes
        stored = narrow, self.sizes.transpose(0, 1).contiguous()
        return stored if as_stored else placed(*stored, False)

    def narrow(self, triton: bool, as_stored: bool) -> NarrowLinear:
        """The layer that multiplies."""
        return NarrowLinear(*self.form(triton, as_stored), self.bias, STEP_BITS, triton)


def stepped_experts(pairs: Sequence[tuple[nn.Module, nn.Module]], triton: bool, as_stored: bool) -> NarrowExperts:
    """Routed experts of their gate over up, and down, each."""
    (gate_up, gate_up_scale), (down, down_scale) = (
        map(torch.stack, zip(*(SteppedLinear.of(linear).form(triton, as_stored) for linear in linears), strict=True))
        for linears in zip(*pairs, strict=True)
    )
    return NarrowExperts(gate_up, gate_up_scale, down, down_scale, STEP_BITS, triton=triton)


def has_steps(part: nn.Module) -> bool:
    """Whether a part has weights that came on sixteen steps."""
    return any(isinstance(module, SteppedLinear) for module in part.modules())
