"""Rollouts for verl's main branch (verl-project/verl): an engine of its own whose weights the trainer sends.

Registered as ``(name, mode) -> "dllm.trainers.verl.VerlRollout"``. The batch is that of ``dare`` without a
trajectory.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import Any

from torch import Tensor

from dllm.errors import UserError
from dllm.models.bundle import load
from dllm.rl.live_weights import write_weights
from dllm.trainers.dare import TRAJECTORIES, WITHOUT_TRAJECTORY, DareRollout

WIRE_FORMAT = "named_tensors"


class VerlRollout(DareRollout):
    """verl's rollout worker on our loop.

    Args:
        config: as ``DareRollout`` takes it.
        model_config: names the checkpoint: ``local_path``, or ``path``.
        device_mesh: not read: every process holds the whole model.

    Raises:
        UserError: as ``DareRollout``.
    """

    def __init__(self, config: Any, model_config: Any, device_mesh: Any = None) -> None:
        path = getattr(model_config, "local_path", None) or model_config.path
        self.prepare(load(path, device=config.get("device", "auto"), dtype=config.get("dtype", "bfloat16")), config)
        if self.algorithm in TRAJECTORIES:
            raise UserError(f"dllm.algorithm={self.algorithm} needs trajectories, which verl's main branch does not "
                            f"read. Use DARE, or dllm.algorithm={WITHOUT_TRAJECTORY[0]}.")  # fmt: skip

    async def resume(self, tags: list[str]) -> None:
        """Do nothing: the weights stay where they are."""

    async def release(self) -> None:
        """Do nothing: the weights stay where they are."""

    async def update_weights(
        self, weights: Iterable[tuple[str, Tensor]] | AsyncIterable[tuple[str, Tensor]],
        wire_format: str = WIRE_FORMAT, **_: Any,
    ) -> None:  # fmt: skip
        """Write the trainer's weights, by their published names, into the ones here. Raises UserError for another wire
        format, and for a name that the model lacks."""
        if wire_format != WIRE_FORMAT:
            raise UserError(f"wire_format={wire_format!r} is not read. Send {WIRE_FORMAT}.")
        if isinstance(weights, AsyncIterable):
            write_weights(self.model, [one async for one in weights])
        else:
            write_weights(self.model, weights)
