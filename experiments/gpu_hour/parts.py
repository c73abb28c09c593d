"""The parts of the hour, in the order in which they run: what decides most comes first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dllm.kernels.dispatch import obstacle, use_triton
from dllm.record.cost import Machine, measured_rates
from experiments.bench import kernels as bench_kernels
from experiments.gpu_hour.cards import peak_bytes
from experiments.gpu_hour.cells import BUILD, REAL, TEXT, Cell, accepted, grid, lags, texts, tiny
from experiments.gpu_hour.peers import beside, pairs, seconds
from experiments.gpu_hour.profiled import profile_cells, profiled
from experiments.gpu_hour.ranks import SECONDS, two_ranks
from experiments.gpu_hour.store import Store
from experiments.gpu_hour.streams import served
from experiments.gpu_hour.suite import Suite
from experiments.gpu_hour.texts import equal_texts
from experiments.gpu_hour.timed import Models, time_cell
from experiments.gpu_hour.work import Part, Task

# By name: what pytest selects, and seconds. Compiling takes most of them: some 45 builds of kernels at 1 to 2 s, and
# two layers of each small model at 10 to 20 s where torch.compile runs.
TESTS: dict[str, tuple[list[str], float]] = {
    "kernels": (["tests/gpu/test_gpu_kernels.py"], 100),
    "goldens": (["tests/gpu/test_gpu_goldens.py", "-k", "[eager-"], 100),
    "goldens under runtimes": (["tests/gpu/test_gpu_goldens.py", "-k", "not [eager-"], 100),
    "laws": (["tests/gpu/test_gpu_laws.py"], 60),
    **{
        f"tokens under {name}": (["tests/gpu/test_gpu_runtimes.py", "-k", f"[{name}-"], seconds)
        for name, seconds in (("static", 40), ("cudagraph", 30), ("compile", 110), ("compile_cudagraph", 110))
    },
}
FIRST = ("tokens under cudagraph",)  # of the tests: what else is measured rests on them
DRY_TESTS: dict[str, tuple[list[str], float]] = {"device": (["tests/gpu/test_gpu_device.py"], 5)}
STREAMS = (1, 8, 32)
KERNEL_SECONDS = 4.0  # one operation at all its shapes: the first launches compile
REPEATS = 20


@dataclass(frozen=True)
class Setup:
    """Where and what is measured."""

    device: torch.device
    dry: bool  # tiny shapes
    tests: bool = True  # whether pytest runs, in processes of its own
    fast_dllm: Path | None = None  # a checkout of NVlabs/Fast-dLLM; None: there are no peers

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    def cells(self, wanted: Iterable[Cell]) -> list[Cell]:
        """These cells, or in a dry run what is left of them at tiny shapes."""
        return list(dict.fromkeys(map(tiny, wanted))) if self.dry else list(wanted)


def parts(setup: Setup, store: Store) -> dict[str, Part]:
    """All parts by name. ``machine`` is what the others are measured against."""
    first = DRY_TESTS if setup.dry else {name: TESTS[name] for name in FIRST}
    rest = {} if setup.dry else {name: TESTS[name] for name in TESTS if name not in FIRST}
    listed = (
        Part("machine", [Task("rates", 10, partial(rates, setup))]),
        Part("checks", tests(setup, store, "checks", first)),
        Part("texts", text_cells(setup, store)),
        Part("peers", peers(setup)),
        Part("profile", profiles(setup)),
        Part("lags", timings(setup, store, lags())),
        Part("streams", streams(setup)),
        Part("steps", timings(setup, store, grid())),
        Part("kernels", list(kernels(setup, store))),
        Part("tests", [ranks(setup), *tests(setup, store, "tests", rest)]),
    )
    return {part.name: part for part in listed}


NAMES = ("machine", "checks", "texts", "peers", "profile", "lags", "streams", "steps", "kernels", "tests")


def ranks(setup: Setup) -> Task:
    return Task("two ranks on one device", SECONDS, partial(two_ranks, setup.device))


def rates(setup: Setup) -> dict[str, Any]:
    """The ceilings: a large product and a large copy."""
    found, gpu = measured_rates(setup.device, setup.dtype), setup.device.type == "cuda"
    properties = torch.cuda.get_device_properties(setup.device) if gpu else None
    return {
        "flops": found.flops,
        "bytes": found.bytes,
        "peak": peak_bytes(torch.cuda.get_device_name(setup.device)) if gpu else None,
        "memory_gb": None if properties is None else properties.total_memory / 1e9,
        "obstacle": obstacle(setup.device),
    }


def ceilings(store: Store) -> tuple[Machine, float | None]:
    """The measured machine, and the data sheet's bandwidth."""
    found = store.cells("machine").get("rates", {}).get("figures")
    if found is None:
        raise RuntimeError("The machine's own rates were not measured. Begin again: --only machine --again")
    return Machine("this", found["flops"], found["bytes"]), found["peak"]


def tests(setup: Setup, store: Store, part: str, chosen: dict[str, tuple[list[str], float]]) -> list[Task]:
    suite = Suite(chosen, setup.device.type, store.folder / "pytest")
    return [
        Task(name, seconds, partial(suite, name, lambda one: not store.done(part, one)))
        for name, (_, seconds) in (chosen.items() if setup.tests else ())
    ]


def kernels(setup: Setup, store: Store) -> Iterable[Task]:
    """A cell for each operation, at all its shapes: weights made for one are not kept for the next."""
    for name in ("add_norm", "sparse_credit") if setup.dry else OPERATIONS:
        yield Task(name, KERNEL_SECONDS, partial(time_kernel, name, setup, store))


OPERATIONS = (
    "row_statistics",
    "head, fused",
    "head, chunked",
    "add_norm",
    "silu_times",
    "rope_scatter",
    "grouped_product",
    "gumbel_argmax",
    "sparse_credit",
)


def time_kernel(name: str, setup: Setup, store: Store) -> dict[str, Any]:
    """Figures of an operation by shape and way (``torch`` or ``triton``)."""
    machine, ways = ceilings(store)[0], ["torch"] + ["triton"] * use_triton("auto", setup.device)
    found: dict[str, Any] = defaultdict(dict)
    for case in bench_kernels.cases(setup.device.type != "cuda", setup.device, setup.dtype):
        for way in ways if case.name == name else ():
            times = bench_kernels.timed(partial(case.run, way == "triton"), setup.device, 2 if setup.dry else REPEATS)
            found[case.shape][way] = bench_kernels.figures(case, times, machine)
    return dict(found)


def timings(setup: Setup, store: Store, wanted: Iterable[Cell], models: Models | None = None) -> list[Task]:
    """A cell for each decode. The first one of a model also makes its weights."""
    seen = set[tuple[str, str]]() if models is None else {(TEXT, "bfloat16")}
    models, out = models or Models(setup.device), list[Task]()
    for cell in setup.cells(wanted):
        expected, weights = 0.0, (cell.model, cell.weights)
        if accepted(cell, setup.device):
            expected = cell.seconds + cell.build * (weights not in seen and not setup.dry)
            seen.add(weights)
        out.append(Task(cell.name, expected, partial(time_step, cell, models, store)))
    return out


def time_step(cell: Cell, models: Models, store: Store) -> dict[str, Any]:
    return {**vars(cell), **time_cell(cell, models, *ceilings(store))}


def text_cells(setup: Setup, store: Store) -> list[Task]:
    """Whether the inflated model's texts are the small one's, then decodes of them."""
    models, (cell,) = Models(setup.device), setup.cells([REAL])

    def equal() -> dict[str, Any]:
        return equal_texts(cell, models.text(cell))

    return [Task("texts are equal", BUILD + 6.0, equal), *timings(setup, store, texts(), models)]


def peers(setup: Setup) -> list[Task]:
    """Fast-dLLM beside ours, where a checkout was named."""
    models, folder = Models(setup.device), setup.fast_dllm
    return (
        []
        if folder is None
        else [
            Task(f"{cell.cache}, {cell.rule}", seconds(cell), partial(beside, cell, folder, models))
            for cell in setup.cells(pairs())
        ]
    )


def profiles(setup: Setup) -> list[Task]:
    models, chosen = Models(setup.device), setup.cells(profile_cells())
    return [
        Task(cell.name, BUILD * (cell == chosen[0]) + cell.seconds + 2.0, partial(profiled, cell, models))
        for cell in chosen
    ]


def streams(setup: Setup) -> list[Task]:
    """The server's scheduler, at several numbers of clients."""
    models, runtime = Models(setup.device), "static" if setup.dry else REAL.runtime
    return [
        Task(f"{cell.batch} streams", cell.seconds + BUILD * (cell.batch == 1), partial(served, cell, models))
        for cell in setup.cells(replace(REAL, batch=batch, runtime=runtime) for batch in STREAMS)
    ]
