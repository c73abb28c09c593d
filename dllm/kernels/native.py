"""``bytes.c``, compiled by this machine's C compiler at first use: passes that torch makes in six sweeps, made in one.

Where there is no compiler, or it fails, there is no library, and the torch functions that define the passes run. The
library is kept beside the notes of ``dllm.common.machine_note``, by its source, compiler and processor.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from dllm.common.atomic_write import whole_file
from dllm.common.machine_note import note, processor

C_FILE = Path(__file__).with_name("bytes.c")
# A product is rounded before it is added, as torch does it. Without traps and errno rounding is one instruction.
COMPILER_FLAGS = (
    "-O3",
    "-march=native",
    "-mprefer-vector-width=512",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-shared",
    "-fPIC",
)
COMPILER_SECONDS = 60  # of the compiler


class Library:
    """The functions of ``bytes.c``."""

    def __init__(self, file: Path) -> None:
        self.functions = ctypes.CDLL(str(file))
        self.has_tiles = bool(self.functions.has_tiles())  # a matrix unit of bytes (AMX), which the system lends

    def call(self, name: str, *arguments: Tensor | float | int) -> int:
        """Call a function. Tensors are passed as the address of their first number."""
        return int(getattr(self.functions, name)(*map(_passed, arguments)))


def _passed(argument: Tensor | float | int) -> ctypes.c_void_p | ctypes.c_float | ctypes.c_long:
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    return ctypes.c_float(argument) if isinstance(argument, float) else ctypes.c_long(argument)


def compiler() -> str | None:
    """The C compiler of this machine."""
    return shutil.which(os.environ.get("CC") or "cc")


@cache
def library() -> Library | None:
    """The compiled functions; None: nothing compiles them here."""
    program = compiler()
    if program is None:
        return None
    made_of = (C_FILE.read_text(), COMPILER_FLAGS, program, processor())
    target = note().parent / f"bytes-{hashlib.sha256(repr(made_of).encode()).hexdigest()[:32]}.so"
    with suppress(OSError):
        return Library(target)
    with suppress(OSError, subprocess.SubprocessError), TemporaryDirectory() as folder:
        file = Path(folder) / target.name
        words = [program, *COMPILER_FLAGS, "-o", str(file), str(C_FILE), "-lm"]
        subprocess.run(words, capture_output=True, timeout=COMPILER_SECONDS, check=True)
        with suppress(OSError):
            target.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(target) as scratch:
                shutil.copy(file, scratch)
        return Library(file)
    return None


def passes() -> str:
    """Which passes run here, for the names of what is measured with them."""
    native = library()
    return "passes of torch" if native is None else "compiled passes, tiles" if native.has_tiles else "compiled passes"


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "bytes")


def in_threads(count: int, act: Callable[[int, int], object]) -> None:
    """Call ``act(begin, end)`` on parts of ``count`` items, by as many threads as torch has."""
    threads = min(torch.get_num_threads(), count)
    if threads <= 1:
        act(0, count)
        return
    ends = [count * at // threads for at in range(threads + 1)]
    list(_pool(threads).map(act, ends[:-1], ends[1:]))
