"""How large tensors are: the largest that an operation returns, and the most bytes that are alive at once."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ATEN = torch.ops.aten


class TensorSizes(TorchDispatchMode):
    """Bytes of the tensors that operations return. products: products and attention are computed; without them they
    are zeros of the same shapes, so that sizes of an hour's forward take seconds.

    Attributes: ``largest``, bytes of the largest tensor; ``most``, bytes that were alive at once.
    """

    def __init__(self, products: bool = True) -> None:
        super().__init__()
        self.products, self.largest, self.alive, self.most = products, 0, 0, 0
        self.known = weakref.WeakSet[Any]()  # storages that are counted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:  # operations that are made of others count as these, which inference mode hides
            if (parts := func.decompose(*args, **kwargs)) is not NotImplemented:
                return parts
        out = None if self.products else left_out(func, args)
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


def left_out(func: Any, args: Any) -> Any:
    """Zeros in the place of a product; None: it is none."""
    if func in (ATEN.mm.default, ATEN.bmm.default):
        return args[0].new_zeros(*args[0].shape[:-1], args[1].shape[-1])
    if func is ATEN.addmm.default:
        return args[1].new_zeros(len(args[1]), args[2].shape[1])
    if func is ATEN._scaled_dot_product_flash_attention_for_cpu.default:
        query, value = args[0], args[2]
        out = query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3]).transpose(1, 2)
        return out, query.new_zeros(query.shape[:3])
    return None
