"""Triton at the first launch: importing a kernel's file does not import Triton.

So reference, kernel and launcher are in one file, and a CPU user never loads Triton. A ``Build`` is a configuration
that we ship. Launchers launch no other, and the tests compile each ahead of time for every kind of GPU we support.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    import triton.language as tl
else:
    tl = None  # ``triton.language`` in the files of kernels, from the first launch on


class Kernel:
    """A kernel, or a device function that kernels call. ``kernel[grid](...)`` launches it.

    varying: see ``jit``. built: Triton's own object, made at the first use.
    """

    def __init__(self, function: FunctionType, varying: tuple[str, ...] = ()) -> None:
        self.function, self.varying = function, varying

    @cached_property
    def built(self) -> Any:
        import triton
        import triton.language

        # Triton 3.10 changes this default, and with it the last bit of many sums.
        os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
        names = self.function.__globals__
        names.update(triton=triton, tl=triton.language)
        for name in self.function.__code__.co_names:  # our device functions that the body calls
            if isinstance(names.get(name), Kernel):
                names[name] = names[name].built
        return triton.jit(self.function, do_not_specialize=self.varying)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
        with device_of_arguments(args):
            self.built[grid](*args, **options)

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile what a launch with these arguments would compile. Nothing is launched."""
        with device_of_arguments(args):
            self.built.warmup(*args, grid=(1,), **options)

    def __call__(self, *args: Any) -> Any:
        raise TypeError(f"{self.function.__name__} runs inside kernels only")


def device_of_arguments(args: tuple[Any, ...]) -> AbstractContextManager[Any]:
    """Make the tensors' GPU the current one: Triton launches on the current GPU, wherever the tensors are."""
    device = next(argument.device for argument in args if isinstance(argument, Tensor))
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


def jit(*varying: str) -> Callable[[Callable[..., Any]], Kernel]:
    """``triton.jit`` at the first use. Inside the kernel, ``tl`` is ``triton.language``.

    varying: integer arguments that change during a decode. Triton specialises on all others: it notes whether each is
    1 or a multiple of 16, and compiles again (about a second) when that changes. So these are constants of the model.
    """

    def kernel(function: Callable[..., Any]) -> Kernel:
        assert isinstance(function, FunctionType)
        return Kernel(function, varying)

    return kernel


@dataclass(frozen=True)
class LaunchConfig:
    """How a launch is tiled: block sizes by their names in the kernel, warps and pipeline stages."""

    blocks: Mapping[str, int] = field(default_factory=dict)  # block sizes by their names in the kernel
    warps: int = 4  # of a program
    stages: int = 2  # of the pipeline

    @property
    def arguments(self) -> dict[str, int]:
        """Keyword arguments of a launch."""
        return {**self.blocks, "num_warps": self.warps, "num_stages": self.stages}


@dataclass(frozen=True)
class Build:
    """One configuration that we ship."""

    name: str  # of the compiled file
    kernel: Kernel  # the Triton function
    config: LaunchConfig  # how its launch is tiled
    # Triton's names of the run-time arguments' types ("*bf16", "i32", "fp32"; "i32/16": a multiple of 16; None: the
    # argument is None)
    types: Mapping[str, str | None]
    constants: Mapping[str, Any] = field(default_factory=dict)  # compile-time ones beside the block sizes
    wgmma: bool = False  # on Hopper it must compile to the warp-group matrix instruction


def each_type(types: Mapping[str, str | None]) -> dict[str, str | None]:
    """The type of each argument, for ``Build``, from types of several names in one text."""
    return {name: kind for names, kind in types.items() for name in names.split()}


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter (TRITON_INTERPRET=1): on the CPU, for tests only."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes")


def power_of_two(count: int) -> int:
    """The smallest power of two that is at least ``count``. Triton's block sizes must be powers of two."""
    return 1 << max(0, count - 1).bit_length()


def processors(device: torch.device) -> int:
    """Streaming multiprocessors of the GPU. For the interpreter 4, so that tests split rows too."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def contiguous_rows(x: Tensor) -> Tensor:
    """``x`` [..., n] as [R, n] with contiguous rows. Copies only where they are not."""
    x = x.reshape(-1, x.shape[-1])
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()
