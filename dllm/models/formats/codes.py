"""Numbers of few bits in bytes, widened: whole ones of 1 to 8 bits, and the floats of four and eight bits that the
OCP's microscaling formats 1.0 have.

| codes | numbers |
|---|---|
| uint1 to uint8 | whole; one stream of bits, the first number in the lowest ones, over the ends of bytes |
| int8 | whole, with a sign |
| e2m1 | 0, .5, 1, 1.5, 2, 3, 4, 6, and a sign in the fourth bit; the first of a byte is its low half |
| e4m3 | float8 without infinities (``torch.float8_e4m3fn``) |
| e8m0 | 2^(code - 127); 255 is not a number |
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_HALVES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FLOAT4 = torch.tensor([*_HALVES, *(-half for half in _HALVES)])  # of each code of e2m1
_DTYPES = {"int8": torch.int8, "e4m3": torch.float8_e4m3fn, "e8m0": torch.float8_e8m0fnu}


def from_codes(data: Tensor, codes: str, count: int) -> Tensor:
    """The first ``count`` numbers, float32 [..., count], of bytes [..., b]."""
    if codes in _DTYPES:
        return data[..., :count].contiguous().view(_DTYPES[codes]).float()
    if codes == "e2m1":
        return looked_up(data, FLOAT4)[..., :count]
    return unsigned(data, int(codes.removeprefix("uint")), count).float()


def unsigned(data: Tensor, bits: int, count: int) -> Tensor:
    """The first ``count`` whole numbers, uint8 [..., count], of a stream of bits in bytes [..., b]."""
    mask = 2**bits - 1
    if 8 % bits == 0:
        shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
        return (data[..., None] >> shifts).bitwise_and_(mask).flatten(-2)[..., :count]
    # Eight numbers take as many bytes as one takes bits.
    groups = F.pad(data, (0, -data.shape[-1] % bits)).unflatten(-1, (-1, bits)).long()
    whole = (groups << torch.arange(0, 8 * bits, 8)).sum(-1, keepdim=True)
    return (whole >> torch.arange(0, 8 * bits, bits)).bitwise_and_(mask).to(torch.uint8).flatten(-2)[..., :count]


def looked_up(data: Tensor, table: Tensor, high_first: bool = False) -> Tensor:
    """The numbers [..., 2 b] that codes of four bits in bytes [..., b] have in ``table`` [16]. high_first: the first of
    a byte is its high half."""
    byte = torch.arange(256)
    low, high = table[byte & 15], table[byte >> 4]  # of a whole byte at once: half as many look-ups
    pairs = torch.stack([high, low] if high_first else [low, high], -1)
    return F.embedding(data.int(), pairs).flatten(-2)
