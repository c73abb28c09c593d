"""Counts the operations of PyTorch that a device would launch."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class Launches(TorchDispatchMode):
    """Counts operations that a GPU would launch: all but views, and memory that is only set aside."""

    FREE = ("view", "expand", "expand_as", "slice", "select", "transpose", "t", "unsqueeze", "squeeze", "alias",
            "detach", "empty", "as_strided", "unbind", "split", "permute", "_unsafe_view", "new_empty", "empty_like",
            "lift_fresh", "unsafe_split", "reshape", "numpy_T", "resolve_conj", "resolve_neg", "flatten", "unflatten",
            "split_with_sizes", "promote_types", "broadcast_tensors")  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made, name = function(*args, **(kwargs or {})), function.overloadpacket.__name__
        if name not in self.FREE and not (name == "to" and made.data_ptr() == args[0].data_ptr()):
            self.count += 1
        return made
