"""PyTorch's FakeTensorMode, so that it runs our code where torch was built without CUDA."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten


class FakeTensors(TorchFunctionMode):
    """Tensors of no numbers. Indexing, ``~`` and ``to`` guard the device before they reach a mode, which a build
    without CUDA cannot; here they are sent to the operations below. An index on another device is an error. Who asks
    for a number gets 0, and is counted (``asked``)."""

    def __init__(self) -> None:
        super().__init__()
        self.mode, self.asked = FakeTensorMode(), 0

    def fake(self, tensor: Tensor, device: torch.device) -> Tensor:
        """A tensor of the same shape without its numbers."""
        return FakeTensor(self.mode, tensor.detach().to("meta"), device)

    def __enter__(self) -> FakeTensors:
        self.mode.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.mode.__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.__name__, kwargs or {}
        if name == "__getitem__":
            return item(*args)
        if name in ("__invert__", "bitwise_not"):
            return aten.bitwise_not(args[0])
        if name == "contiguous":
            return aten.clone(args[0], memory_format=torch.contiguous_format)
        if name in ("to", "cuda"):
            return moved(*args, **kwargs) if name == "to" else moved(args[0], "cuda:0")
        if name == "__setitem__":
            return assign(*args)
        if name in ("tensor", "as_tensor") and kwargs.get("device") is not None:
            made = func(*args, **{key: value for key, value in kwargs.items() if key != "device"})
            return torch.empty(made.shape, dtype=made.dtype, device=kwargs["device"])
        if name in ("__int__", "__bool__", "item"):
            self.asked += 1
            return name != "__bool__" and 0
        return func(*args, **kwargs)


def moved(tensor: Tensor, *args: Any, device: Any = None, dtype: Any = None, **kwargs: Any) -> Tensor:
    """``tensor.to(...)``."""
    for one in args:
        if isinstance(one, Tensor):
            device, dtype = one.device, one.dtype
        elif isinstance(one, torch.dtype):
            dtype = one
        elif isinstance(one, torch.device | str):
            device = one
    device, dtype = torch.device(device or tensor.device), dtype or tensor.dtype
    if device == tensor.device and dtype == tensor.dtype:
        return tensor
    return aten._to_copy(tensor, device=device, dtype=dtype)


def assign(tensor: Tensor, index: Any, value: Any) -> None:
    """``tensor[index] = value``."""
    value = value if isinstance(value, Tensor) else torch.full((), value, dtype=tensor.dtype, device=tensor.device)
    if any(isinstance(one, Tensor) for one in (index if isinstance(index, tuple) else (index,))):
        item(tensor, index)  # refuses an index on another device
        aten.index_put_(tensor, [None if isinstance(one, slice) else one for one in index], value)
    else:
        aten.copy_(item(tensor, index), value)


def item(tensor: Tensor, index: Any) -> Tensor:
    """``tensor[index]`` by operations that a mode sees."""
    entries, at, indices = index if isinstance(index, tuple) else (index,), 0, []
    for entry in entries:
        if entry is None:
            tensor, at = aten.unsqueeze(tensor, at), at + 1
        elif entry is Ellipsis:
            at = tensor.dim() - sum(one is not None for one in entries[entries.index(Ellipsis) + 1 :])
        elif isinstance(entry, slice):
            tensor, at = aten.slice(tensor, at, entry.start, entry.stop, entry.step or 1), at + 1
        elif isinstance(entry, Tensor):
            assert entry.device == tensor.device, f"an index on {entry.device} of a tensor on {tensor.device}"
            indices += [None] * (at - len(indices)) + [entry]
            at += entry.dim() if entry.dtype == torch.bool else 1
        else:
            tensor = aten.select(tensor, at, entry)
    return aten.index(tensor, indices) if indices else tensor
