"""What parts may ask of each other before any turn: what another part is, not what it is called."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from dllm.contract.canvas import Canvas


class Schedule(Protocol):
    """What other parts may ask of a block schedule (``dllm.blocks.base.Blocks``)."""

    fixed_length: int | None
    slides: bool
    per_request: tuple[str, ...]

    def count(self, canvas: Canvas) -> Tensor | None: ...

    def widest(self, length: int) -> int: ...


class Rule(Protocol):
    """What other parts may ask of a sampler (``dllm.samplers.base.Sampler``)."""

    stateless: bool
    revocable: bool
    edits: bool
    branches: bool
    tempered: bool
    announces: bool
    verifies: bool
    lookahead: int
