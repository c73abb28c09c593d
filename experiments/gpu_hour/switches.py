"""What a decode runs with or without: a switch that is turned, and on a CPU a stand-in for recordings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.nn.attention.varlen as varlen
import torch.nn.functional as F
from torch import Tensor, nn

from dllm.kernels.skinny_product import SKINNY_ROWS, skinny_product
from dllm.kernels.split_attention import BUILT_HEAD, PROGRAMS, split_attention


class Switch(NamedTuple):
    """What is replaced while the switch is turned."""

    module: str  # where
    attribute: str  # its name there
    value: Any  # what takes its place


def plainly(stage: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Run a stage of a turn as it is."""
    return stage(*args, **named)


LINEAR, VARLEN = F.linear, varlen.varlen_attn


def own_product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear``, by our kernel where it takes the rows."""
    width, plain = weight.shape[-1], type(weight) in (Tensor, nn.Parameter)
    fits = weight.is_cuda and rows.dtype == weight.dtype == torch.bfloat16 and width % 16 == len(weight) % 16 == 0
    if bias is not None or not fits or not plain or rows.numel() > SKINNY_ROWS * width:
        return LINEAR(rows, weight, bias)
    return skinny_product(rows.reshape(-1, width), weight, True).view(*rows.shape[:-1], len(weight))


def own_attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **named: Any) -> Any:
    """``varlen_attn``, by our kernels where few programs of the library's would read the keys."""
    _, first_keys, _, longest = rest
    few = (len(first_keys) - 1) * query.shape[1] <= PROGRAMS // 2
    if query.shape[2] != BUILT_HEAD or query.dtype != torch.bfloat16 or not few:
        return VARLEN(query, key, value, *rest, **named)
    return split_attention(query, key, value, first_keys[:-1], named["seqused_k"], longest, True)


RECORDED = "dllm.loop.recorded"
PLAIN_STAGES = "compiled stages off"
# Both ways of a switch are timed in one process.
SWITCHES: dict[str, Switch] = {
    PLAIN_STAGES: Switch(RECORDED, "CompiledStages", lambda: plainly),
    "own products": Switch("torch.nn.functional", "linear", own_product),
    "split attention": Switch("torch.nn.attention.varlen", "varlen_attn", own_attention),
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
