"""Where a run took place: versions, hardware and commit, which tell why two runs of one configuration differ."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dllm.common.machine_note import CPU_INFO
from dllm.common.versions import version_of
from dllm.record.stopwatch import machine_load

if TYPE_CHECKING:
    from dllm.models.network.transformer import Transformer

PACKAGES = ("dllm", "torch", "triton", "safetensors", "tokenizers", "jinja2", "hydra-core")
PACKAGE = Path(__file__).resolve().parents[1]


def environment_stamp(device: torch.device, dtype: torch.dtype, seed: int) -> dict[str, Any]:
    """Versions, hardware, seed, and the commit with whether the package differs from it (``dirty``), ready for JSON."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "python": platform.python_version(),
        "versions": {name: version_of(name) for name in PACKAGES},
        "platform": platform.platform(),
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "gpus": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
        "dtype": str(dtype).removeprefix("torch."),
        "seed": seed,
        "load": machine_load(),
        **dict(zip(("commit", "dirty"), checkout_state(PACKAGE), strict=True)),
    }


@lru_cache
def processor_name(cpuinfo: Path = CPU_INFO) -> str:
    """The processor as its maker calls it, where Linux tells; else its architecture."""
    with suppress(OSError):
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def environment_of(network: Transformer, seed: int) -> dict[str, Any]:
    """The stamp of a run with this network, its width, its architecture, and how many ranks hold it."""
    stamp = environment_stamp(network.device, next(network.parameters()).dtype, seed)
    config = network.config
    return {**stamp, "width": config.width, "architecture": config.architecture, "ranks": config.ranks.size}


@lru_cache  # once for all cells of a sweep
def checkout_state(package: Path) -> tuple[str | None, bool | None]:
    """The commit of the checkout that holds ``package``, and whether the package differs from it: by an edited file, or
    by one that git does not know, such as a part of one's own. (None, None) outside a checkout."""
    if not (package.parent / ".git").exists():
        return None, None
    try:
        return _git(package, "rev-parse", "HEAD"), bool(_git(package, "status", "--porcelain", "--", "."))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
