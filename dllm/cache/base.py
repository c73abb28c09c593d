"""The contract of a cache policy.

A policy (``Cache``) is configuration; ``start`` opens a ``Session`` for one batch, which plans every forward and acts
as the model's memory during it. ``methods``: every policy is a query set, a write set and a key set per layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dllm.blocks.base import Span
from dllm.canvas import Canvas
from dllm.models.config import ModelConfig
from dllm.models.transformer import Memory


@dataclass(frozen=True)
class Plan:
    """One forward, per row and independent of the other rows.

    queries [B, n]: columns to compute, ascending, padded with L; None: every column. ready [B, L]: positions that may
    be committed from it (None: all that it predicts). only [B, L]: rows with an entry commit exactly those. shadows
    [B, x]: columns (L: none) that get an extra row, a mask that sees every column but its own and that no other sees.
    """

    queries: Tensor | None = None
    ready: Tensor | None = None
    only: Tensor | None = None
    shadows: Tensor | None = None


class Session(Memory):
    """A policy at work on one batch. State has a leading batch dimension."""

    def plan(self, canvas: Canvas, span: Span, upcoming: Tensor | None) -> Plan:
        """Plan the next forward of ``canvas`` [B]. ``upcoming`` [B, L]: what the sampler will commit next, if known."""
        raise NotImplementedError

    def begin(self, plan: Plan, candidates: Canvas, owner: Tensor | None) -> Tensor | None:
        """Ready the memory for the forward of ``candidates`` [N]; returns their query columns [N, n] or None."""
        raise NotImplementedError

    def count(self) -> Tensor:
        """Query rows of the forward just done, per candidate and layer [N, layers] (or [N, 1]: alike in all)."""
        raise NotImplementedError

    def select(self, rows: Tensor) -> Session:
        """The session of the given rows, after some finished."""
        raise NotImplementedError


class Cache:
    """Base of all policies."""

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> Session:
        """``shrinks``: the end-of-text policy may take columns off the canvas."""
        raise NotImplementedError
