"""Rollouts for reinforcement learning: what a decode drew, and its log-probabilities under other weights."""

from __future__ import annotations

from dllm.rl.live_weights import reload

__all__ = ["reload"]
