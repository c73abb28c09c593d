"""Every shipped configuration of every kernel."""

from __future__ import annotations

from dllm.kernels import add_norm, commit, credit, drift, head_statistics, rope_scatter, row_statistics

BUILDS = (
    *row_statistics.BUILDS, *head_statistics.BUILDS, *commit.BUILDS, *credit.BUILDS, *add_norm.BUILDS,
    *rope_scatter.BUILDS, *drift.BUILDS,
)  # fmt: skip
