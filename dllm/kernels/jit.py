"""Triton kernels that cost nothing until one is launched: Triton is imported by the first launch, not by an import.

So the reference, the kernel and the launcher stand in one file, and CPU users never load Triton. ``Build`` names the
configurations that are shipped: launchers launch them and nothing else, and the tests compile each of them ahead of
time for every GPU kind we claim.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor


class Kernel:
    """A kernel or a device function. ``kernel[grid](...)`` launches it; ``built`` is Triton's own object. ``varying``:
    see ``jit``."""

    def __init__(self, function: FunctionType, varying: tuple[str, ...] = ()) -> None:
        self.function, self.varying = function, varying

    @cached_property
    def built(self) -> Any:
        import triton
        import triton.language as tl

        # Triton 3.10 changes this default, and with it the last bit of many sums.
        os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
        names = self.function.__globals__
        names.update(triton=triton, tl=tl)
        for name in self.function.__code__.co_names:  # device functions of ours that the body calls
            if isinstance(names.get(name), Kernel):
                names[name] = names[name].built
        return triton.jit(self.function, do_not_specialize=self.varying)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
        with beside(args):
            self.built[grid](*args, **options)

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile what a launch with these arguments would, and launch nothing."""
        with beside(args):
            self.built.warmup(*args, grid=(1,), **options)

    def __call__(self, *args: Any) -> Any:
        raise TypeError(f"{self.function.__name__} runs inside kernels only")


def beside(args: tuple[Any, ...]) -> AbstractContextManager[Any]:
    """Triton launches on the current GPU, whatever GPU the tensors are on: make theirs the current one."""
    device = next(argument.device for argument in args if isinstance(argument, Tensor))
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


def jit(*varying: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Like ``triton.jit``, at the first use. Inside, ``tl`` is ``triton.language``.

    varying: the integers that change while a text is decoded. Of all others Triton learns whether they are 1 and
    whether 16 divides them, and compiles once more, for about a second, when that changes: the others must belong to
    the model.
    """

    def kernel(function: Callable[..., Any]) -> Kernel:
        assert isinstance(function, FunctionType)
        return Kernel(function, varying)

    return kernel


@dataclass(frozen=True)
class Build:
    """One shipped configuration: the types of the run-time arguments, in order, and the compile-time constants.

    types: Triton's names ("*bf16", "i32", "fp32"; "i32/16": a multiple of 16). wgmma: it claims Hopper's warp-group
    matrix instruction.
    """

    name: str
    kernel: Kernel
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    warps: int = 4
    stages: int = 2
    wgmma: bool = False

    @property
    def options(self) -> dict[str, int]:
        return {"num_warps": self.warps, "num_stages": self.stages}


@dataclass(frozen=True)
class Shape:
    """How one launch is cut up: block sizes by name, warps and pipeline stages."""

    blocks: Mapping[str, int] = field(default_factory=dict)
    warps: int = 4
    stages: int = 2

    @property
    def arguments(self) -> dict[str, int]:
        return {**self.blocks, "num_warps": self.warps, "num_stages": self.stages}


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter (TRITON_INTERPRET=1), on the CPU and for tests only."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes")


def power_of_two(count: int) -> int:
    """The smallest power of two that is not below ``count``: block sizes can be nothing else."""
    return 1 << max(0, count - 1).bit_length()


def processors(device: torch.device) -> int:
    """Streaming multiprocessors of the GPU; 4 for the interpreter, so that tests split rows too."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def contiguous_rows(x: Tensor) -> Tensor:
    """``x`` [..., n] as [R, n] whose rows are contiguous; a copy only when they are not."""
    x = x.reshape(-1, x.shape[-1])
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()
