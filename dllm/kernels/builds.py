"""All files of kernels, and all configurations that we ship."""

from __future__ import annotations

from dllm.kernels import (
    add_norm,
    attention_received,
    attention_similarity,
    commit,
    credit,
    head_statistics,
    rope_scatter,
    row_statistics,
    slot_logits,
)

KERNELS = (
    row_statistics, head_statistics, commit, credit, slot_logits, add_norm, rope_scatter, attention_similarity,
    attention_received,
)  # fmt: skip
BUILDS = tuple(build for kernel in KERNELS for build in kernel.BUILDS)
