"""Parts and their cells: what runs, in which order, within which time, and what becomes of what fails."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from dllm.common.errors import TooLarge, UserError, first_line
from experiments.gpu_hour.store import Outcome, Store

DEVICE_LOST, OUT_OF_TIME = 3, 4  # exit codes of a part's process
PATIENCE, GRACE = 5.0, 120.0  # a part may take this multiple of its estimate, and these seconds more


@dataclass(frozen=True)
class Task:
    """A cell of a part. seconds: its estimate. run: gives the figures, which are written as JSON."""

    name: str
    seconds: float
    run: Callable[[], Outcome]


@dataclass(frozen=True)
class Part:
    """tasks: in the order in which they run. start: seconds for its process, before any cell runs."""

    name: str
    tasks: Sequence[Task]
    start: float = 10.0

    @property
    def seconds(self) -> float:
        return self.start + sum(task.seconds for task in self.tasks)

    def left(self, store: Store) -> list[Task]:
        return [task for task in self.tasks if not store.done(self.name, task.name)]


@dataclass(frozen=True)
class Clock:
    """The time that a call has. seconds None: as long as it takes."""

    began: float
    seconds: float | None = None

    @property
    def left(self) -> float:
        return float("inf") if self.seconds is None else self.began + self.seconds - time.monotonic()


def work(part: Part, store: Store, clock: Clock) -> int:
    """Run what is left of a part in this process. Returns 0, DEVICE_LOST or OUT_OF_TIME."""
    total = len(part.tasks)
    for task in part.left(store):
        if clock.left < task.seconds:
            return OUT_OF_TIME
        store.write(part.name, task.name, {"begun": time.time()})
        outcome = attempt(task)
        store.write(part.name, task.name, outcome)
        print(f"{part.name} {total - len(part.left(store))} of {total}  {task.name}: {said(outcome)}", flush=True)
        if "failed" in outcome and not alive():
            return DEVICE_LOST
    return 0


def attempt(task: Task) -> Outcome:
    """The outcome of a cell: a sentence where it failed, so that the others go on."""
    began, outcome = time.monotonic(), Outcome()
    try:
        outcome["figures"] = task.run()
    except TooLarge as error:
        outcome["too_large"] = str(error)
    except torch.OutOfMemoryError as error:
        outcome["too_large"] = f"It does not fit into the GPU's memory: {first_line(error)}."
    except UserError as error:
        outcome["refused"] = str(error)
    except Exception as error:  # whatever it is, the other cells are worth measuring
        outcome["failed"] = f"{type(error).__name__}: {first_line(error)}. {place(error)}"
    tidy()
    return outcome | {"seconds": round(time.monotonic() - began, 3), "expected": round(task.seconds, 1)}


def place(error: BaseException) -> str:
    """Where our code raised it."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "/dllm/" in file or "/experiments/" in file or "/tests/" in file:
            found = f"At {'/'.join(file.rsplit('/', 3)[1:])}:{trace.tb_lineno}."
        trace = trace.tb_next
    return found


def tidy() -> None:
    """Give memory back, so that a cell does not depend on those before it."""
    gc.collect()
    if torch.cuda.is_available():
        with suppress(RuntimeError):  # the device is lost, which ``alive`` says
            torch.cuda.empty_cache()


def alive() -> bool:
    """Whether the device still computes: an illegal access leaves it useless to this process."""
    if not torch.cuda.is_available():
        return True
    try:
        return float(torch.ones(8, device="cuda").sum()) == 8.0
    except RuntimeError:
        return False


def said(outcome: Outcome) -> str:
    """One line of an outcome."""
    for kind in ("failed", "too_large", "refused"):
        if kind in outcome:
            return f"{kind}: {outcome[kind]}"
    shown = [f"{name}={value:.4g}" for name, value in outcome["figures"].items() if isinstance(value, float)]
    return f"{', '.join(shown[:4]) or 'done'} ({outcome['seconds']:.1f} s)"


def crashed(part: Part, store: Store, how: str, stuck: bool) -> None:
    """Write down, as failed, the cell that was under way when the part's process ended. stuck: no cell was done, so
    that starting it again would change nothing; then it is the first that is left, if none was under way."""
    begun = [name for name, outcome in store.cells(part.name).items() if "begun" in outcome]
    for name in begun or ([part.left(store)[0].name] if stuck else []):
        sentence = (
            f"The process of this part ended {how} while this cell ran. Run it alone: --only {part.name} --again."
        )
        store.write(part.name, name, {"failed": sentence, "seconds": 0.0})


def report_failures(store: Store, parts: Sequence[Part]) -> int:
    """Print what failed. Returns how many cells did."""
    failed = [
        (part.name, name, one["failed"])
        for part in parts
        for name, one in store.cells(part.name).items()
        if "failed" in one
    ]
    for line in failed:
        print("FAILED {} {}: {}".format(*line), file=sys.stderr)
    return len(failed)
