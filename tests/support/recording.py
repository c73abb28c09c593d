"""A CUDA graph's stand-in on the CPU: every operation and every kernel of ours is noted with its very tensors, and
replayed on the same ones.

No Python of the recorded work runs again, and results go where they went when it was recorded: what was read from a
fresh tensor then is stale now. As on a GPU, recording computes nothing that could be used, and asking for a value is an
error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo  # importing it within a recording would keep the recording's frames in a cycle
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from dllm.common import debug
from dllm.parts import Forward, Kernel, Parts, Rows, RunStage, StaticBuffers, Turn, take_turn, turn_into

ASKING = ("item", "_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "unique", "bincount")


@dataclass
class Call:
    function: Any
    args: Any
    kwargs: Any
    results: list[Tensor]  # made by the call, neither a view of its arguments nor one of them


class Notes(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = function.overloadpacket.__name__
        if name.startswith(ASKING) or (name == "_to_copy" and "device" in (kwargs or {})):
            raise RuntimeError(f"operation not permitted while recording: {name}")
        result = function(*args, **(kwargs or {}))
        known = {one.untyped_storage().data_ptr() for one in tree_leaves((args, kwargs)) if storage_of(one)}
        made = [one for one in tree_leaves(result) if isinstance(one, Tensor)]
        self.calls.append(Call(function, args, kwargs or {}, [one for one in made if storage_of(one) not in known]))
        return result


class NoNumbers(TorchFunctionMode):
    """Refuses to assign a number by an index: CUDA copies it from the host's memory, which cannot be recorded."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is Tensor.__setitem__ and not isinstance(args[2], Tensor) and indexed(args[1]):
            raise RuntimeError("operation not permitted while recording: a number assigned by an index")
        return func(*args, **(kwargs or {}))


def indexed(index: Any) -> bool:
    """Whether an index holds a tensor of positions (a mask becomes ``masked_fill``)."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(one, Tensor) and one.dtype != torch.bool for one in parts)


def storage_of(value: Any) -> int:
    """0 for what has none that could be looked at (numbers; oneDNN's packed weights)."""
    return value.untyped_storage().data_ptr() if isinstance(value, Tensor) and not value.is_mkldnn else 0


@dataclass
class FakeGraph:
    """Counts what happens to it in ``log``."""

    log: list[str]
    calls: list[Call] = field(default_factory=list)

    def record(self, work: Callable[[], None], reset: Callable[[], None] = lambda: None) -> None:
        self.log.append("record")
        reset()
        work()  # as CudaGraph does: what is made once and kept is made now
        reset()
        launch, notes = Kernel._launch, Notes()

        def noted(kernel: Kernel, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
            notes.calls.append(Call(partial(launch, kernel, grid), args, options, []))
            with _disable_current_modes():  # the interpreter's own operations are none of the recording's
                launch(kernel, grid, *args, **options)

        with patch.object(Kernel, "_launch", noted), patch.object(debug, "ON", False), notes, NoNumbers():
            work()  # without assertions, which ask
        self.calls = notes.calls
        for call in self.calls:
            for result in call.results:
                result.fill_(torch.nan) if result.is_floating_point() else result.zero_()

    def replay(self) -> None:
        self.log.append("replay")
        for call in self.calls:
            leaves = tree_leaves(call.function(*call.args, **call.kwargs))
            for one in leaves:
                if isinstance(one, torch.ScriptObject) and hasattr(one, "wait"):  # an exchange between ranks
                    one.wait()
            made = [one for one in leaves if isinstance(one, Tensor)]
            if call.results:
                for fixed, fresh in zip(call.results, made, strict=True):
                    fixed.copy_(fresh)

    def release(self) -> None:
        self.log.append("release")
        self.calls = []


def as_recorded(stage: RunStage, rows: Rows, forward: Forward, parts: Parts) -> tuple[Rows, Turn]:
    """A turn as it is recorded, on buffers of its own; as there, the first one runs as it is."""
    if not int(rows.blocks.turn.max()):
        return take_turn(rows, forward, parts)
    rows = rows.bounded()
    inputs, outputs = ([one.clone() for one in rows.tensors()] for _ in range(2))
    buffers = StaticBuffers(inputs, outputs, torch.arange(len(rows)))
    _, turn, numbers = turn_into(buffers, rows, replace(forward, stage=stage), parts)
    after, finished = rows.with_tensors(buffers.outputs).reported(numbers)
    return after, replace(turn, finished=finished)
