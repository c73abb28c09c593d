"""How large tensors are: the largest that an operation returns, and the most bytes that are alive at once."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

LARGE = 1 << 20  # bytes
MAPPED = 1 << 26  # bytes; the C library asks the system for memory as large, and gets zeros


class TensorSizes(TorchDispatchMode):
    """Bytes of the tensors that operations return.

    Attributes:
        computed: large tensors are computed; else they are zeros, so that sizes of an hour's forward take seconds.
        largest: bytes of the largest tensor.
        most: bytes that were alive at once.
    """

    def __init__(self, computed: bool = True) -> None:
        super().__init__()
        self.computed, self.largest, self.alive, self.most = computed, 0, 0, 0
        self.known = weakref.WeakSet[Any]()  # storages that are counted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:  # operations that are made of others count as these, which inference mode hides
            if (parts := func.decompose(*args, **kwargs)) is not NotImplemented:
                return parts
        out = None if self.computed else left_out(func, args, kwargs)
        out = func(*args, **kwargs) if out is None else out
        given = {one.untyped_storage() for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
        for storage in {one.untyped_storage() for one in tree_leaves(out) if isinstance(one, Tensor)} - given:
            self._count(storage, storage.nbytes())  # what shares memory with what was given takes none
        return out

    def _count(self, storage: Any, size: int) -> None:
        if storage in self.known:
            return
        self.known.add(storage)
        weakref.finalize(storage, self._freed, size)
        self.alive += size
        self.most, self.largest = max(self.most, self.alive), max(self.largest, size)

    def _freed(self, size: int) -> None:
        self.alive -= size


def left_out(func: Any, args: Any, kwargs: Any) -> Any:
    """Zeros in the place of what an operation computes of large tensors of numbers; None: it has to run. The system
    takes no memory for zeros that nobody writes."""
    given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
    if not any(one.is_floating_point() and one.nbytes >= LARGE for one in given):
        return None
    if func._schema.is_mutable:  # what it writes to stays as it is
        return given[0] if given[0] is args[0] and given[0].is_floating_point() else None
    if any(one.alias_info for one in func._schema.returns):
        return None
    shapes = tree_map_only(Tensor, without_numbers, (args, kwargs))
    try:
        found = func(*shapes[0], **shapes[1])
    except (RuntimeError, NotImplementedError):  # what it returns depends on the numbers
        return None
    small = [one for one in tree_leaves(found) if not (isinstance(one, Tensor) and one.is_floating_point())]
    return None if small else tree_map_only(Tensor, zeros, found)


def without_numbers(one: Tensor) -> Tensor:
    return torch.empty_strided(one.size(), one.stride(), dtype=one.dtype, device="meta")


def zeros(one: Tensor) -> Tensor:
    made = torch.empty_strided(one.size(), one.stride(), dtype=one.dtype)
    return made.zero_() if made.nbytes < MAPPED else made
