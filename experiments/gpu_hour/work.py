"""Parts and their cells: what runs, in which order, within which time, and what becomes of what fails."""

from __future__ import annotations

import faulthandler
import gc
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from dllm.errors import TooLarge, UserError, first_line
from experiments.gpu_hour.store import Outcome, Store

DEVICE_LOST, OUT_OF_TIME = 3, 4  # exit codes of a part's process
PATIENCE, GRACE = 5.0, 120.0  # a cell may take this multiple of its estimate, and these seconds more
CUTS = 2  # a cell during which the run was cut so often is given up: it may be what cuts it


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


def work(part: Part, store: Store, clock: Clock, watch: bool) -> int:
    """Run what is left of a part in this process. Returns 0, DEVICE_LOST or OUT_OF_TIME.

    watch: end the process where a cell takes far longer than its estimate, since nothing else ends a kernel that hangs.
    """
    total = len(part.tasks)
    for task in part.left(store):
        if clock.left < task.seconds:
            return OUT_OF_TIME
        cuts = store.cells(part.name).get(task.name, {"cuts": -1})["cuts"] + 1
        store.write(part.name, task.name, {"begun": time.time(), "cuts": cuts})
        if watch:
            faulthandler.dump_traceback_later(PATIENCE * task.seconds + GRACE, exit=True)
        outcome = attempt(task) if cuts < CUTS else {"failed": f"The run was cut {cuts} times during this cell."}
        if watch:
            faulthandler.cancel_dump_traceback_later()
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


def crashed(part: Part, store: Store, code: int) -> bool:
    """Write down, as failed, the cell that was under way when the part's process ended with ``code``. Whether there was
    one: if not, starting it again would change nothing."""
    for name, outcome in store.cells(part.name).items():
        if "begun" in outcome:
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            store.write(part.name, name, {
                "failed": f"The process ended {how} while this cell ran (a crash, or far beyond its time).",
                "seconds": round(time.time() - outcome["begun"], 1),
            })  # fmt: skip
            return True
    return False


def lost(part: Part, store: Store, code: int) -> None:
    """Write down all that is left of a part as failed: its process ended before a cell began."""
    for task in part.left(store):
        store.write(part.name, task.name, {
            "failed": f"The process of this part ended with exit code {code} before this cell. Run it alone: --only "
                      f"{part.name} --again.", "seconds": 0.0,
        })  # fmt: skip


def report_failures(store: Store, parts: Sequence[Part]) -> int:
    """Print what failed. Returns how many cells did."""
    failed = [(part.name, name, one["failed"]) for part in parts for name, one in store.cells(part.name).items()
              if "failed" in one]  # fmt: skip
    for line in failed:
        print("FAILED {} {}: {}".format(*line), file=sys.stderr)
    return len(failed)
