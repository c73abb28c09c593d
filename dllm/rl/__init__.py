"""Rollouts for reinforcement learning: what a decode drew, and its log-probabilities under other weights."""

from __future__ import annotations

from dllm.rl.live_weights import reload
from dllm.rl.rollouts import Rollouts
from dllm.rl.trajectories import trajectory_backward, trajectory_logprobs

__all__ = ["Rollouts", "reload", "trajectory_backward", "trajectory_logprobs"]
