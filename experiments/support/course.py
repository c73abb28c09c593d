"""What trainings share: a state from which a killed run goes on bit for bit, a log with its curves, and a report."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import nn

from dllm.common.errors import UserError
from dllm.common.installing import not_installed

if TYPE_CHECKING:
    from accelerate import Accelerator

STATE, LOG, RECIPE, REPORT = "training.pt", "log.jsonl", "recipe.json", "report.json"
CLIP = 1.0  # norm of the gradients


class Course:
    """How far the training of ``network`` is. The state is in ``folder``; the first process writes."""

    def __init__(
        self, folder: Path, network: nn.Module, optimizer: torch.optim.Optimizer, accelerator: Accelerator
    ) -> None:
        self.folder, self.network, self.optimizer, self.accelerator = folder, network, optimizer, accelerator
        self.step, self.starts = 0, 0
        self.seconds = [0.0, 0.0]  # of wall clock and of the processor, before this start
        self._go_on()
        self.starts += 1
        self.began = (time.monotonic() - self.seconds[0], time.process_time() - self.seconds[1])

    @property
    def learning(self) -> dict[str, nn.Parameter]:
        """The weights that learn, by name."""
        return learning(self.network)

    def _go_on(self) -> None:
        """Take over a state that is there, and forget what was logged after it."""
        file = self.folder / STATE
        if file.is_file():
            device = next(iter(self.learning.values())).device
            content = torch.load(file, map_location=device, weights_only=True)
            self.network.load_state_dict(content["weights"], strict=False)
            self.optimizer.load_state_dict(content["optimizer"])
            self.step, self.starts, self.seconds = content["step"], content["starts"], content["seconds"]
        if self.accelerator.is_main_process:
            cut_log(self.folder, self.step if file.is_file() else -1)

    def note(self, values: Mapping[str, float]) -> None:
        """A line of the log."""
        if not self.accelerator.is_main_process:
            return
        minutes = dict(zip(("wall_minutes", "cpu_minutes"), (one / 60 for one in self._spent()), strict=True))
        told = {name: round(value, 6) for name, value in values.items()}
        with (self.folder / LOG).open("a") as file:
            file.write(json.dumps({"step": self.step, **minutes, **told}) + "\n")

    def save(self) -> None:
        """The state. Its line of the log comes first: a kill in between writes it again."""
        if not self.accelerator.is_main_process:
            return
        content = {
            "weights": {name: weight.detach() for name, weight in self.learning.items()},
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "starts": self.starts,
            "seconds": self._spent(),
        }
        with whole_file(self.folder / STATE, "wb") as out:
            torch.save(content, out)

    def _spent(self) -> list[float]:
        return [time.monotonic() - self.began[0], time.process_time() - self.began[1]]

    @contextmanager
    def bar(self, steps: int) -> Iterator[Callable[[Mapping[str, float]], None]]:
        """A bar on a terminal; what it gives is told the figures after every step."""
        quiet = not self.accelerator.is_main_process or not sys.stderr.isatty()
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), disable=quiet) as bar:
            shown = bar.add_task("training", total=steps, completed=self.step)

            def tell(figures: Mapping[str, float]) -> None:
                told = "  ".join(f"{name} {value:.3f}" for name, value in figures.items())
                bar.update(shown, completed=self.step, description=f"step {self.step}  {told}")

            yield tell


def learning(network: nn.Module) -> dict[str, nn.Parameter]:
    """The weights of a network that learn, by name."""
    return {name: weight for name, weight in network.named_parameters() if weight.requires_grad}


def refuse_other(folder: Path, now: Mapping[str, Any]) -> None:
    """Raise UserError for a folder with a run that was made from something else than ``now``."""
    if not (folder / RECIPE).is_file():
        if (folder / STATE).exists() or (folder / LOG).exists():
            raise UserError(f"out={str(folder)!r} holds another kind of run. Give another folder.")
        return
    before, others = json.loads((folder / RECIPE).read_text()), {"questions": "questions", "checkpoint": "weights"}
    named = {key: f"other {word}" for key, word in others.items()}
    refuse_changes(f"out={str(folder)!r}", before, now, named, "the options of that run")


def refuse_changes(
    place: str, before: Mapping[str, Any], now: Mapping[str, Any], named: Mapping[str, str], way_out: str
) -> None:
    """Raise UserError where a run goes on with something else than it began with. named: entries whose values say
    nothing to a reader, in words."""
    key = next((key for key in now if before.get(key) != now[key]), None)
    if key is not None:
        begun = named.get(key, f"{key}={before.get(key)!r}, not {now[key]!r}")
        raise UserError(
            f"{place} holds a run begun with {begun}; going on would mix the two. Give {way_out}, or another folder."
        )


@contextmanager
def whole_file(file: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """A file that is written beside and moved into place: a kill leaves the old one or the new one."""
    beside = file.with_suffix(".tmp")
    with beside.open(mode) as out:
        yield out
        out.flush()
        os.fsync(out.fileno())
    beside.replace(file)


def write(file: Path, text: str) -> None:
    with whole_file(file) as out:
        out.write(text)


def cut_log(folder: Path, step: int) -> None:
    """Forget what was logged after a step, and a line that was not written to its end."""
    log, kept = folder / LOG, list[str]()
    for line in log.read_text().splitlines() if log.is_file() else ():
        try:
            kept += [line] if json.loads(line)["step"] <= step else []
        except (ValueError, KeyError, TypeError):
            continue
    log.write_text("".join(line + "\n" for line in kept))


def log_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of the log."""
    return [json.loads(line) for line in (folder / LOG).read_text().splitlines()]


def draw(folder: Path, shown: Mapping[str, str]) -> Path:
    """The curves of some figures of the log by step. shown: their titles. Raises UserError without a log or
    matplotlib."""
    if not (folder / LOG).is_file():
        raise UserError(f"{folder / LOG} is missing: give a folder that a training writes to.")
    if find_spec("matplotlib") is None:
        raise not_installed("a curve", "matplotlib", "report")
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    lines = log_of(folder)
    figure, axes = pyplot.subplots(1, len(shown), figsize=(11, 3), layout="constrained")
    for axis, (name, label) in zip(axes, shown.items(), strict=True):
        axis.plot([line["step"] for line in lines], [line[name] for line in lines])
        axis.set(xlabel="step", title=label, ylim=(0, None))
    figure.savefig(folder / "curve.svg")
    pyplot.close(figure)
    return folder / "curve.svg"


def accelerated(cpu: bool) -> Accelerator:
    """The processes of a run. They wait for each other's decodes for days."""
    from accelerate import Accelerator, InitProcessGroupKwargs

    return Accelerator(cpu=cpu, kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(days=7))])


def device_of(accelerator: Accelerator) -> str:
    """Of this process. accelerate calls a CPU cpu:0, which safetensors refuses."""
    return "cpu" if accelerator.device.type == "cpu" else str(accelerator.device)


def report(
    folder: Path, content: Mapping[str, Any], title: str, rows: Iterable[Iterable[str]], shown: Mapping[str, str]
) -> None:
    """report.json, a table of figures before and after, and the curves of ``shown``."""
    write(folder / REPORT, json.dumps(content, indent=1) + "\n")
    table = Table(title, "before", "after")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    try:
        print(draw(folder, shown), flush=True)
    except UserError as error:
        print(error, flush=True)
