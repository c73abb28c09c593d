"""What was measured on this machine, in a file of the user's cache folder, so that it is measured once.

``$XDG_CACHE_HOME/dllm/processors`` (``~/.cache``) has a file for each processor, PyTorch and number of threads:

    {"processor": {"torch": "2.13.0", "threads": 1, ...}, "values": {"bytes": {"value": ..., "busy": false}}}

A value may decide what is fast and not what is right: folders are lost, shared, and written by others. Values of the
file ``DLLM_MACHINE_NOTE`` hold as they are on any machine, so that replicas, or tests, take the same ways.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from dllm.common.cache_folder import cache_folder
from dllm.common.errors import UserError

NOTE_FORMAT = 3  # raise it when the file changes its form
RUNS = 5  # the fastest counts: others on the machine only add
CPU_INFO = Path("/proc/cpuinfo")


def noted(name: str, measure: Callable[[], Any]) -> Any:
    """The value ``name`` of this machine, as JSON has it: as noted, or measured now. A value from a time when other
    programs ran is measured again when none does."""
    pinned = _pinned()
    if name in pinned:
        return pinned[name]["value"]
    file, busy = note(), is_busy()
    entry = _values(file).get(name)
    if isinstance(entry, Mapping) and "value" in entry and (busy or not entry.get("busy", True)):
        return entry["value"]
    with torch.random.fork_rng(devices=[]):
        value = json.loads(json.dumps(measure()))  # as it will be read
    values = {**_values(file), name: {"value": value, "busy": busy}}
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        own = file.with_suffix(f".{os.getpid()}")
        own.write_text(json.dumps({"processor": machine_fingerprint(), "values": values}, indent=1))
        own.replace(file)
    return value


def _values(file: Path) -> dict[str, Any]:
    """The entries of a note; none where it is missing, broken, or another machine's."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        whole = json.loads(file.read_text())
        if whole["processor"] == machine_fingerprint():
            return dict(whole["values"])
    return {}


def _pinned() -> dict[str, Any]:
    """The entries of the user's own file. Raises UserError where it is no note."""
    file = os.environ.get("DLLM_MACHINE_NOTE")
    if not file:
        return {}
    try:
        entries = json.loads(Path(file).read_text())["values"]
        return {name: {"value": entry["value"]} for name, entry in entries.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"DLLM_MACHINE_NOTE={file} is no note of a machine ({error!r}). Give a file of "
            f"{note().parent}, or unset it."
        ) from None


def note() -> Path:
    """The file of this processor, this PyTorch and this number of threads."""
    digest = hashlib.sha256(json.dumps(machine_fingerprint()).encode()).hexdigest()
    return cache_folder() / "processors" / f"{digest[:32]}.json"


def machine_fingerprint() -> dict[str, Any]:
    """What tells machines apart."""
    return {
        "format": NOTE_FORMAT,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "processor": processor(),
    }


def processor() -> list[str]:
    """The processor: on Linux its model and flags."""
    with suppress(OSError):
        lines = CPU_INFO.read_text(errors="replace").splitlines()
        return sorted({line for line in lines if line.startswith(("model", "flags", "Features"))})
    return [platform.machine(), platform.processor()]


def is_busy() -> bool:
    """Whether other programs take this machine's caches and threads: they change what is faster, by CPU time too."""
    try:
        return os.getloadavg()[0] > max(1, (os.cpu_count() or 1) / 2)
    except (AttributeError, OSError):  # a system that does not say
        return False


def least_seconds(act: Callable[[], object], calls: int = 1) -> float:
    """CPU seconds of all threads for a call, the least of ``RUNS``, after one that does not count. calls: of each run,
    for what takes microseconds."""
    act()
    found = []
    for _ in range(RUNS):
        began = time.process_time()
        for _ in range(calls):
            act()
        found.append((time.process_time() - began) / calls)
    return min(found)
