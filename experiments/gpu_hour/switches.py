"""What a decode runs with or without: a switch that is off, and on a CPU a stand-in for recordings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch

# By name: module, attribute and its value when the switch is off. Both ways are timed in one process.
SWITCHES: dict[str, tuple[str, str, Any]] = {}


@contextmanager
def off(name: str) -> Iterator[None]:
    """With a switch off; "" is none."""
    if not name:
        yield
        return
    module, attribute, value = SWITCHES[name]
    with patch.object(import_module(module), attribute, value):
        yield


@contextmanager
def stand_in(device: torch.device) -> Iterator[None]:
    """On a CPU, recordings replay their operations one by one."""
    if device.type == "cuda":
        yield
        return
    from tests.support.recording import FakeGraph

    with ExitStack() as stack:
        for place in ("dllm.runtime.graphs.Recorder", "dllm.loop.recorded.Recorder"):
            stack.enter_context(patch(place, lambda device: lambda: FakeGraph([])))
        yield
