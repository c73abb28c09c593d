"""All files of kernels, and all configurations that are shipped."""

from __future__ import annotations

from importlib import import_module

_FILES = (
    "row_statistics", "head_statistics", "credit", "slot_logits", "add_norm", "silu_times", "grouped_product",
    "narrow_product", "grouped_narrow_product", "rope_scatter", "gumbel_argmax", "attention_scores", "drift_sums",
)  # fmt: skip
KERNELS = tuple(import_module(f"dllm.kernels.{name}") for name in _FILES)
BUILDS = tuple(build for kernel in KERNELS for build in kernel.BUILDS)
