"""The network's layers through ``torch.compile``: ``runtime=compile``.

One layer is compiled, and the result serves all layers, which differ in weights and buffers only. The second time that
a size changes, torch.compile makes it a variable. So a decode compiles two or three times, however many turns and
prompts follow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import Tensor

from dllm.models.network.attention import Visible
from dllm.models.network.layer import Layer
from dllm.models.network.memory import KeyValues, Memory, StaticMemory
from dllm.models.network.rope import Angles
from dllm.models.network.transformer import Transformer

MAX_VARIANTS = 16  # with and without mask, one row and several, and each size once more as a variable
NUMBERS = count()
R = TypeVar("R")


class CompiledNetwork:
    """The network as ``Forward`` calls it. backend: that of torch.compile; tests use cheaper ones."""

    def __init__(self, model: Transformer, backend: str = "inductor") -> None:
        self.model, self.layer = model, torch.compile(copy_of(run_alone), fullgraph=True, backend=backend)

    def __call__(
        self, tokens: Tensor, positions: Tensor, memory: Memory, columns: Tensor | None, **more: Any
    ) -> tuple[Tensor, Tensor | None]:
        lacking = memory.lacking
        if lacking and lacking.missing_buffers():  # the first forward of a decode, which makes them, runs as it is
            return self.model(tokens, positions, memory, columns, **more)
        with torch._dynamo.config.patch(recompile_limit=MAX_VARIANTS):
            return self.model(tokens, positions, memory.access(), columns, self._run, **more)

    def _run(
        self,
        layer: Layer,
        x: Tensor,
        residual: Tensor | None,
        angles: Angles,
        columns: Tensor | None,
        memory: Memory,
        index: int,
    ) -> tuple[Tensor, Tensor]:
        assert isinstance(memory, StaticMemory)
        store = memory.stores[index] if memory.stores else None
        residual = torch.zeros_like(x) if residual is None else residual  # None in one layer would be another variant
        return self.layer(layer, x, residual, angles, memory.visible, memory.slots, memory.reach, store, memory.rows)


def run_alone(
    layer: Layer,
    x: Tensor,
    residual: Tensor | None,
    angles: Angles,
    visible: Visible,
    slots: Tensor | None,
    reach: int,
    store: KeyValues | None,
    rows: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Run a layer with tensors alone, so that compiled code does not depend on the layer's index."""
    memory = StaticMemory(visible, slots, reach, () if store is None else (store,), rows)
    return layer(x, residual, angles, slots, partial(memory.attend, 0))


def copy_of(function: Callable[..., R]) -> Callable[..., R]:
    """The function under a name of its own. torch.compile records which sizes change by name: with one name for two
    models, it would make their widths variables. What it has compiled of a function it counts by code object."""
    assert isinstance(function, FunctionType)
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(NUMBERS)}")
    return FunctionType(code, function.__globals__)
