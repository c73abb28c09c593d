"""Decodes on the device under a runtime. On a CPU recordings are replayed by a stand-in, and layers compiled by the
backend that only checks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from unittest.mock import patch

import torch
from flattened import load_model
from harness import DATA
from place import DEVICE, GPU
from recording import FakeGraph

from dllm.loop.runtime import compiled_layers as module
from dllm.parts import FIXED, Network, Parts, Runtime, TakeTurn, Transformer, build_runtime, run_plainly

RUNTIMES = tuple(name for name in ("static", *FIXED) if GPU or name != "compile_cudagraph")  # no stand-in compiles
CompiledNetwork = module.CompiledNetwork


@cache
def model(name: str, dtype: torch.dtype = torch.float32) -> Transformer:
    """A tiny model on the device, with our kernels there."""
    network = load_model(DATA / "models" / name, device=DEVICE.type, dtype=dtype)
    network.use_kernels(GPU)
    return network


@cache
def compiled(network: Transformer) -> Network:
    """Its layers compiled, once for all tests: that takes ten seconds."""
    return CompiledNetwork(network, "inductor" if GPU else "eager")


@contextmanager
def on_any_device() -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(patch.object(module, "CompiledNetwork", compiled))
        if not GPU:
            for place in ("dllm.loop.runtime.graphs.Recorder", "dllm.loop.recorded.Recorder"):
                stack.enter_context(patch(place, lambda device: lambda: FakeGraph([])))
            # It notes operations one by one, of which compiled code has none.
            stack.enter_context(patch("dllm.loop.recorded.CompiledStages", lambda: run_plainly))
        yield


def way(runtime: str, network: Transformer, parts: Parts) -> tuple[Network, TakeTurn]:
    """The model as the loop calls it under a runtime, and what takes its turns."""
    with on_any_device():
        return build_runtime(Runtime(runtime, 0 if runtime == "eager" else None), network, parts)
