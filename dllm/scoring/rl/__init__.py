"""Rollouts for reinforcement learning: what a decode drew, and its log-probabilities under other weights."""

from __future__ import annotations

from dllm.scoring.rl.live_weights import reload
from dllm.scoring.rl.mask_estimators import MaskEstimate, coupled, elbo, estimate, one_step, prediction, sandwich
from dllm.scoring.rl.rollouts import Rollouts
from dllm.scoring.rl.trajectories import trajectory_backward, trajectory_logprobs

__all__ = [
    "MaskEstimate",
    "Rollouts",
    "coupled",
    "elbo",
    "estimate",
    "one_step",
    "prediction",
    "reload",
    "sandwich",
    "trajectory_backward",
    "trajectory_logprobs",
]
