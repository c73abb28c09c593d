"""Triton compiles a kernel once more when an integer becomes 1 or a multiple of 16: no decode may run into that.

The keys are Triton's own, from its binder for an sm_90; nothing is launched, the definitions compute.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import cache, wraps
from types import ModuleType
from typing import Any

import pytest
import torch
from harness import Combination, forward_of, model, parts_of, requests

from dllm.kernels import head_statistics as head
from dllm.parts import Canvas, Kernel, Sampling, Transformer, denoise
from tests.kernels.builds import BUILDS

pytest.importorskip("triton")
LAUNCHERS = (
    "add_norm",
    "silu_times",
    "grouped_product",
    "rope_scatter",
    "head_statistics",
    "row_statistics",
    "slot_logits",
    "sparse_credit",
    "gumbel_argmax",
    "attention_scores",
    "drift_sums",
)
Key = tuple[tuple[str, Any], ...]  # one entry per parameter: its type, and what Triton learns of its value


@cache
def binder(kernel: Kernel) -> tuple[Callable[..., Any], set[int]]:
    """What makes a key of arguments, and which of them are constants."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import JITFunction, create_function_from_signature

    assert kernel.built is not None
    function = JITFunction(kernel.function, do_not_specialize=kernel.varying)
    backend = make_backend(GPUTarget("cuda", 90, 32))
    return create_function_from_signature(function.signature, function.params, backend), set(function.constexprs)


class Launches:
    """Every launch of a decode, as the key that Triton looks it up by; by kernel, its constants and absent tensors."""

    def __init__(self) -> None:
        self.keys: dict[tuple[str, Key], set[Key]] = {}

    def note(self, kernel: Kernel, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
        bind, constants = binder(kernel)
        key = tuple(map(tuple, bind(*args, **options)[1]))
        fixed = [(at, entry) for at, entry in enumerate(key) if at in constants or entry == ("constexpr", None)]
        known = tuple((f"{at}", entry) for at, entry in fixed)
        self.keys.setdefault((kernel.function.__name__, known), set()).add(key)

    def noting(self, launcher: Callable[..., Any]) -> Callable[..., Any]:
        """The launcher, which notes what it would launch and then computes by its definition."""
        signature = inspect.signature(launcher)

        @wraps(launcher)
        def call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            if bound.arguments.get("triton"):
                launcher(*bound.args, **bound.kwargs)
                bound.arguments["triton"] = False
            return launcher(*bound.args, **bound.kwargs)

        return call


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    noted = Launches()
    monkeypatch.setattr(Kernel, "_launch", lambda *args, **options: noted.note(*args, **options))
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and module.__name__.startswith("dllm"):
            for name in LAUNCHERS:
                if callable(launcher := vars(module).get(name)):
                    monkeypatch.setattr(module, name, noted.noting(launcher))
    return noted


@pytest.fixture
def network() -> Iterator[Transformer]:
    """With kernels, and its weights where a GPU would have them: at multiples of 16 bytes."""
    found = model("tiny-llada", torch.float32)
    for weight in found.parameters():
        weight.data = weight.data.clone()
    found.use_kernels(True)
    yield found
    found.use_kernels(False)


COMBINATIONS = [
    Combination("confidence", "fixed", "none", "fill_after_block"),
    Combination("credit", "fixed", "dual"),
    Combination("confidence", "whole", "elastic", "stop_at_eos"),
    Combination("static", "fixed", "dkv"),
]


@pytest.mark.parametrize("combination", COMBINATIONS, ids=str)
def test_one_kernel_serves_all_sizes_of_a_decode(
    combination: Combination, launches: Launches, network: Transformer
) -> None:
    """Three requests, whose rows leave, and one: of each kernel, what Triton knows of the integers is the same in
    all launches."""
    parts, counts = parts_of(combination), set()
    forward = forward_of(network, parts, Sampling())
    for batch in (requests(), requests()[:1]):
        with torch.inference_mode():
            for turn in denoise(Canvas.of(batch, 61), forward, parts):
                counts.add(int(turn.view.open.sum()))
    assert len(counts) > 8 and counts & {1, 16, 17, 32} and len(launches.keys) >= 3
    assert {name: keys for name, keys in launches.keys.items() if len(keys) > 1} == {}


def test_what_is_launched_is_what_was_compiled_ahead_of_time() -> None:
    """``i32`` in a build says that Triton must not look, ``i32/16`` that it may: a number that belongs to the model."""
    for build in BUILDS:
        plain = {name for name, kind in build.types.items() if kind == "i32"}
        assert plain == set(build.kernel.varying), build.name


def test_every_tile_of_the_head_is_compiled_before_the_first_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []
    monkeypatch.setattr(Kernel, "compile", lambda self, *args, **options: compiled.append(options["BLOCK_R"]))
    monkeypatch.setattr(head, "_COMPILED", set())
    hidden, weight = torch.randn(5, 8), torch.randn(40, 8)
    for rows in (5, 3):
        head.fused_head(hidden[:rows], weight)
        assert sorted(compiled) == sorted(head.CONFIGS)
    head.fused_head(hidden.double(), weight.double())
    assert len(compiled) == 2 * len(head.CONFIGS)
