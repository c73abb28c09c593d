"""What a decode runs with or without: a switch that is turned, and on a CPU a stand-in for recordings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, NamedTuple
from unittest.mock import patch

import torch


class Switch(NamedTuple):
    """What is replaced while the switch is turned."""

    module: str  # where
    attribute: str  # its name there
    value: Any  # what takes its place


def plainly(stage: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Run a stage of a turn as it is."""
    return stage(*args, **named)


RECORDED = "dllm.loop.recorded"
PLAIN_STAGES = "compiled stages off"
# Both ways of a switch are timed in one process.
SWITCHES: dict[str, Switch] = {
    PLAIN_STAGES: Switch(RECORDED, "CompiledStages", lambda: plainly),
}


def known() -> list[str]:
    """The switches that this version has."""
    return [name for name, one in SWITCHES.items() if hasattr(import_module(one.module), one.attribute)]


@contextmanager
def turned(name: str) -> Iterator[None]:
    """With a switch turned; "" is none."""
    if not name:
        yield
        return
    switch = SWITCHES[name]
    with patch.object(import_module(switch.module), switch.attribute, switch.value):
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
        stack.enter_context(turned(PLAIN_STAGES))
        yield
