"""What a decode runs with or without: a switch that is off, and on a CPU a stand-in for recordings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch


def plainly(stage: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Run a stage of a turn as it is."""
    return stage(*args, **named)


RECORDED = "dllm.loop.recorded"
# By name: module, attribute and its value when the switch is off. Both ways are timed in one process.
SWITCHES: dict[str, tuple[str, str, Any]] = {"compiled stages": (RECORDED, "CompiledStages", lambda: plainly)}


def known() -> list[str]:
    """The switches that this version has."""
    return [name for name, (module, attribute, _) in SWITCHES.items() if hasattr(import_module(module), attribute)]


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
    """On a CPU, recordings replay their operations one by one, and nothing is compiled."""
    if device.type == "cuda":
        yield
        return
    from tests.support.recording import FakeGraph

    with ExitStack() as stack:
        for place in ("dllm.runtime.graphs", RECORDED):
            stack.enter_context(patch(f"{place}.Recorder", lambda device: lambda: FakeGraph([])))
        for name in known():
            stack.enter_context(off(name))
        yield
