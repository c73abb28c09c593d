"""On a CPU, a stand-in for recordings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

RECORDED = "dllm.loop.recorded"


def plainly(stage: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Run a stage of a turn as it is."""
    return stage(*args, **named)


@contextmanager
def stand_in(device: torch.device) -> Iterator[None]:
    """On a CPU, recordings replay their operations one by one, and nothing is compiled."""
    if device.type == "cuda":
        yield
        return
    from tests.support.recording import FakeGraph

    with ExitStack() as stack:
        for place in ("dllm.loop.runtime.graphs", RECORDED):
            stack.enter_context(patch(f"{place}.Recorder", lambda device: lambda: FakeGraph([])))
        stack.enter_context(patch(f"{RECORDED}.CompiledStages", lambda: plainly))
        yield
