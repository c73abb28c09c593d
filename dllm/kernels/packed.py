"""Linear layers on the CPU in oneDNN's own layout.

PyTorch hands float32 products to MKL, which repacks the weights in every call and leaves AVX-512 unused on AMD. With
the weights packed once, oneDNN does 2.2 times as many FLOP/s at 16 to 48 rows and at 512 (one EPYC core: 42 to 100
GFLOP/s at 16 rows, 96 to 220 at 512). The same operators serve torch.compile's frozen graphs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS = 32  # what the layout is chosen for: the queries of a block; other numbers work as well


class PackedLinear(nn.Module):
    """x W^T + b with packed weights; ``F.linear`` on the original ones is its definition."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
        self.bias = linear.bias
        self.in_features, self.out_features, self.weight = linear.in_features, linear.out_features, None

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether packing helps here: float32 on a CPU, and a PyTorch whose oneDNN operators give the right numbers."""
    if device.type != "cpu" or dtype != torch.float32 or not torch.backends.mkldnn.is_available():
        return False
    linear, x = nn.Linear(24, 40), torch.linspace(-1, 1, 3 * 24).view(3, 24)
    try:
        packed = PackedLinear(linear)(x)
    except (RuntimeError, AttributeError):  # another build, or the operators have changed
        return False
    return torch.allclose(packed, F.linear(x, linear.weight, linear.bias), atol=1e-5)


@torch.inference_mode(False)
def pack(model: nn.Module) -> None:
    """Pack every plain linear layer, and drop the original weights. For decoding only: nothing trains or saves them."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, PackedLinear(child))
