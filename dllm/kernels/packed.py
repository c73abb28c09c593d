"""Linear layers on the CPU with weights in oneDNN's layout: y = x W^T + b, W packed once.

PyTorch passes float32 products to MKL. MKL repacks the weights in every call, and does not use AVX-512 on AMD. With
packed weights oneDNN reaches 2.2 times the FLOP/s at 16 to 48 rows and at 512 rows (one EPYC core: 100 instead of 42
GFLOP/s at 16 rows, 220 instead of 96 at 512). The operators are those of torch.compile's frozen graphs. On a Xeon,
where MKL uses AVX-512, packing gains from 0.5 M weights on alone (768 -> 2304 at 8 rows 390 instead of 750 us, 128 ->
384 at 32 rows 37 instead of 26), and would cost mini models 9 to 15 % of a turn; on an EPYC it saves them up to 20 %.
So the least size is measured once on each machine.

In bfloat16 PyTorch asks oneDNN, with weights that are not packed. Packed ones take one row from 11.2 to 5.5 ms of CPU
(a weight of 24,576 x 4,096 on one EPYC core: 37 GB/s, all that it reads), 32 rows from 24 to 18, 256 from 113 to 107.

oneDNN makes code for every number of rows that it meets: 0.56 MB for each layer shape; its cache of primitives
bounds one half and nothing the other (5 shapes, 320 numbers of rows: 450 MB). So numbers of rows are rounded up. That
costs 2 to 15 % of a product between such numbers (one Xeon core), 7 % of a decode of mini-llada over 147 columns.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dllm.common.machine_note import least_seconds, noted

# Of a try; numbers are below 2, their halves of a step 2^-8.
PACKED_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
TIMED_SHAPES = ((128, 128), (384, 128), (512, 512), (1024, 1024))  # outputs and columns of matrices that are timed
WEIGHTS_OF_A_RUN = 1 << 18  # of a run: small ones are multiplied several times
LAYOUT_ROWS = 32  # oneDNN chooses the layout for that many rows, the queries of a block; others work as well


class PackedLinear(nn.Module):
    """x W^T + b [..., out] of x [..., in], with packed weights. ``F.linear`` with the original ones defines it."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.packed = in_layout(linear.weight.detach())
        self.bias = linear.bias
        self.in_features, self.out_features, self.weight = linear.in_features, linear.out_features, None

    def repack(self, weight: Tensor) -> None:
        """Replace the weights."""
        self.packed.copy_(in_layout(weight))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        count = rows.shape[0]
        spare = padded_rows(count) - count
        padded = torch.constant_pad_nd(rows, (0, 0, 0, spare)) if spare else rows
        out = torch.ops.mkldnn._linear_pointwise(padded, self.packed, self.bias, "none", [], "")
        return out[:count].view(*x.shape[:-1], self.out_features)


def in_layout(weight: Tensor) -> Tensor:
    """A matrix in oneDNN's layout."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, LAYOUT_ROWS)


def padded_rows(rows: int) -> int:
    """The least number from ``rows`` on that has four significant binary digits: 17 is 18, 33 is 36, 130 is 144.
    Octaves have eight of them, so at most an eighth is added; blocks of 8 or 32 in up to 8 rows stay as they are."""
    step = 1 << max(0, rows.bit_length() - 4)
    return -(-rows // step) * step


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether weights can be packed: float32 on a CPU, or bfloat16 on one that multiplies it, and oneDNN operators in
    this PyTorch that compute correctly."""
    if device.type != "cpu" or dtype not in PACKED_TOLERANCE or not torch.backends.mkldnn.is_available():
        return False
    linear, x = nn.Linear(24, 40, dtype=dtype), torch.linspace(-1, 1, 3 * 24).view(3, 24).to(dtype)
    try:
        if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        product = PackedLinear(linear)(x)
    except (RuntimeError, AttributeError):  # a PyTorch without these operators, or with others
        return False
    return torch.allclose(product, F.linear(x, linear.weight, linear.bias), atol=PACKED_TOLERANCE[dtype])


def packed_from(dtype: torch.dtype) -> int:
    """Weights of the smallest matrix for which packing pays on this processor."""
    if dtype == torch.bfloat16:
        return 0
    return int(noted("packed from", measured_packing))


@torch.inference_mode()
def measured_packing() -> int:
    """Measure it in float32, about 90 ms: twice the weights of the largest of ``TIMED_SHAPES`` that is faster plain."""
    slower = [0]
    for outputs, columns in TIMED_SHAPES:
        linear, rows = nn.Linear(columns, outputs), torch.randn(LAYOUT_ROWS, columns)
        calls = 1 + WEIGHTS_OF_A_RUN // linear.weight.numel()
        plain, packed = (least_seconds(partial(layer, rows), calls) for layer in (linear, PackedLinear(linear)))
        if plain < packed:
            slower.append(2 * linear.weight.numel())
    return max(slower)


@torch.inference_mode(False)
def pack_weights(model: nn.Module) -> None:
    """Pack the plain linear layers for which it pays, in place: the model can no longer be trained or saved."""
    places = [
        (module, name, child)
        for module in model.modules()
        for name, child in module.named_children()
        if type(child) is nn.Linear
    ]
    least = packed_from(places[0][2].weight.dtype) if places else 0
    for module, name, child in places:
        if child.weight.numel() >= least:
            setattr(module, name, PackedLinear(child))
