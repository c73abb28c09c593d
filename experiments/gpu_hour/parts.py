"""The parts of the hour: ``machine``, ``tests``, ``kernels``, ``steps``, ``profile``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from dllm.kernels.dispatch import obstacle, use_triton
from dllm.record.cost import Machine, measured
from experiments.bench import kernels as bench_kernels
from experiments.gpu_hour.cards import peak_bytes
from experiments.gpu_hour.cells import BUILD, Cell, dry_grid, grid
from experiments.gpu_hour.profiled import PROFILED, profiled
from experiments.gpu_hour.store import Store
from experiments.gpu_hour.suite import Suite
from experiments.gpu_hour.timed import Models, accepted, time_cell
from experiments.gpu_hour.work import Part, Task

# By name: what pytest selects, and seconds. Compiling takes most of them: some 45 builds of kernels at 1 to 2 s, and
# two layers of each small model at 10 to 20 s where torch.compile runs.
TESTS: dict[str, tuple[list[str], float]] = {
    "kernels": (["tests/gpu/test_gpu_kernels.py"], 100),
    "goldens": (["tests/gpu/test_gpu_goldens.py", "-k", "[eager-"], 100),
    "goldens under runtimes": (["tests/gpu/test_gpu_goldens.py", "-k", "not [eager-"], 100),
    "laws": (["tests/gpu/test_gpu_laws.py"], 60),
    **{f"tokens under {name}": (["tests/gpu/test_gpu_runtimes.py", "-k", f"[{name}-"], seconds)
       for name, seconds in (("static", 40), ("cudagraph", 60), ("compile", 110), ("compile_cudagraph", 110))},
}  # fmt: skip
DRY_TESTS: dict[str, tuple[list[str], float]] = {"device": (["tests/gpu/test_gpu_device.py"], 5)}
KERNEL_SECONDS = 4.0  # one operation at all its shapes: the first launches compile
REPEATS = 20


@dataclass(frozen=True)
class Setup:
    """Where and what is measured. tests: whether pytest runs, in processes of its own."""

    device: torch.device
    dry: bool
    tests: bool = True

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32


def parts(setup: Setup, store: Store) -> dict[str, Part]:
    """All parts by name, in the order in which they run. ``machine`` is what the others are measured against."""
    listed = (
        Part("machine", [Task("rates", 10, partial(rates, setup))]),
        Part("tests", list(tests(setup, store))), Part("kernels", list(kernels(setup, store))),
        Part("steps", steps(setup, store)), Part("profile", profiles(setup)),
    )  # fmt: skip
    return {part.name: part for part in listed}


def rates(setup: Setup) -> dict[str, Any]:
    """The ceilings: a large product and a large copy."""
    found, gpu = measured(setup.device, setup.dtype), setup.device.type == "cuda"
    properties = torch.cuda.get_device_properties(setup.device) if gpu else None
    return {
        "flops": found.flops, "bytes": found.bytes,
        "peak": peak_bytes(torch.cuda.get_device_name(setup.device)) if gpu else None,
        "memory_gb": None if properties is None else properties.total_memory / 1e9,
        "obstacle": obstacle(setup.device),
    }  # fmt: skip


def ceilings(store: Store) -> tuple[Machine, float | None]:
    """The measured machine, and the data sheet's bandwidth."""
    found = store.cells("machine").get("rates", {}).get("figures")
    if found is None:
        raise RuntimeError("The machine's own rates were not measured. Begin again: --only machine --again")
    return Machine("this", found["flops"], found["bytes"]), found["peak"]


def tests(setup: Setup, store: Store) -> Iterable[Task]:
    chosen = DRY_TESTS if setup.dry else TESTS
    suite = Suite(chosen, setup.device.type, store.folder / "pytest")
    for name, (_, seconds) in chosen.items() if setup.tests else ():
        yield Task(name, seconds, partial(suite, name, lambda one: not store.done("tests", one)))


def kernels(setup: Setup, store: Store) -> Iterable[Task]:
    """A cell for each operation, at all its shapes: weights made for one are not kept for the next."""
    for name in ("add_norm", "sparse_credit") if setup.dry else OPERATIONS:
        yield Task(name, KERNEL_SECONDS, partial(time_kernel, name, setup, store))


OPERATIONS = (
    "row_statistics", "head, fused", "head, chunked", "add_norm", "silu_times", "rope_scatter", "grouped_product",
    "gumbel_argmax", "sparse_credit",
)  # fmt: skip


def time_kernel(name: str, setup: Setup, store: Store) -> dict[str, Any]:
    """Figures of an operation by shape and way (``torch`` or ``triton``)."""
    machine, ways = ceilings(store)[0], ["torch"] + ["triton"] * use_triton("auto", setup.device)
    found: dict[str, Any] = defaultdict(dict)
    for case in bench_kernels.cases(setup.device.type != "cuda", setup.device, setup.dtype):
        for way in ways if case.name == name else ():
            times = bench_kernels.timed(partial(case.run, way == "triton"), setup.device, 2 if setup.dry else REPEATS)
            found[case.shape][way] = bench_kernels.figures(case, times, machine)
    return dict(found)


def steps(setup: Setup, store: Store) -> list[Task]:
    """A cell for each decode. The first one of a model also makes its weights."""
    models, out, seen = Models(setup.device), list[Task](), set[tuple[str, str]]()
    for cell in dry_grid() if setup.dry else grid():
        seconds, weights = 0.0, (cell.model, cell.weights)
        if accepted(cell, setup.device):
            seconds = cell.seconds + BUILD * (weights not in seen and not setup.dry)
            seen.add(weights)
        out.append(Task(cell.name, seconds, partial(time_step, cell, models, store)))
    return out


def time_step(cell: Cell, models: Models, store: Store) -> dict[str, Any]:
    return {**vars(cell), **time_cell(cell, models, *ceilings(store))}


def profiles(setup: Setup) -> list[Task]:
    models = Models(setup.device)
    chosen = dry_grid()[:1] if setup.dry else PROFILED
    return [Task(cell.name, BUILD * (cell == chosen[0]) + cell.seconds + 2.0, partial(profiled, cell, models))
            for cell in chosen]  # fmt: skip
