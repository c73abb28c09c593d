"""Rollouts for verl's main branch (verl-project/verl): an engine of its own whose weights the trainer sends.

Registered as ``(name, mode) -> "dllm.bridges.trainers.verl.VerlRollout"``. The batch is that of ``dare`` without a
trajectory, one row for each that was sent: verl's driver repeats the prompts.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import Any

from torch import Tensor

from dllm.bridges.trainers.dare import TRAJECTORIES, WITHOUT_TRAJECTORY, DareRollout
from dllm.common.errors import UserError
from dllm.models.bundle import load
from dllm.scoring.rl.live_weights import WeightWriter
from dllm.scoring.rl.rollout_checks import refuse_copies

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
            raise UserError(
                f"dllm.algorithm={self.algorithm} needs trajectories, which verl's main branch does not "
                f"read. Use DARE, or dllm.algorithm={WITHOUT_TRAJECTORY[0]}."
            )

        refuse_copies(self.decoder(False).parts, int(config.get("n", 1)), [float(config["temperature"])])

    def answers_to_a_row(self, validate: bool) -> int:
        return 1

    async def resume(self, tags: list[str]) -> None:
        """Do nothing: the weights stay where they are."""

    async def release(self) -> None:
        """Do nothing: the weights stay where they are."""

    async def update_weights(
        self,
        weights: Iterable[tuple[str, Tensor]] | AsyncIterable[tuple[str, Tensor]],
        wire_format: str = WIRE_FORMAT,
        **_: Any,
    ) -> None:
        """Write the trainer's weights, by their published names. Raises UserError for another format, or a name
        that the model lacks."""
        if wire_format != WIRE_FORMAT:
            raise UserError(f"wire_format={wire_format!r} is not read. Send {WIRE_FORMAT}.")
        with WeightWriter(self.model) as writer:  # one tensor at a time: senders use the memory of a bucket again
            if isinstance(weights, AsyncIterable):
                async for name, tensor in weights:
                    writer.write(name, tensor)
            else:
                for name, tensor in weights:
                    writer.write(name, tensor)
