"""A mode of torch that notes each operation which makes the host wait for the device."""

from __future__ import annotations

import sys

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

ASKING = (
    "item",
    "is_nonzero",
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "unique",
    "bincount",
    "repeat_interleave",
)


class Trap(TorchDispatchMode):
    """Notes every copy to the host by the function of ours that caused it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def note(self) -> None:
        frame = sys._getframe(1)
        while "/dllm/" not in frame.f_code.co_filename:
            assert frame.f_back is not None
            frame = frame.f_back
        self.asked.append(frame.f_code.co_name)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.overloadpacket.__name__
        index = args[1] or () if name in ("index", "index_put", "index_put_") and len(args) > 1 else ()
        by_mask = any(isinstance(one, Tensor) and one.dtype == torch.bool for one in index)
        if by_mask or name.startswith(ASKING):
            self.note()
        return func(*args, **(kwargs or {}))
