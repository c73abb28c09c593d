"""Training: batches that are functions of recipe and step, and a state from which a killed run goes on bit for bit."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from dllm.errors import UserError, not_installed
from dllm.models.ids import Ids
from experiments.distill.data import Example, sequence
from experiments.distill.recipe import Place, Recipe
from experiments.distill.student import Student
from experiments.support.scripts import refusing

STATE, LOG = "training.pt", "log.jsonl"
TERMS = ("cross_entropy", "entropy", "right")
CLIP = 1.0  # norm of the gradients


def steps_of(recipe: Recipe, examples: int) -> int:
    """Steps of the run: given, or whole batches of all epochs."""
    return recipe.steps or (recipe.epochs or 1) * (examples // recipe.batch)


def rate_factor(step: int, steps: int, recipe: Recipe) -> float:
    """Linear warm-up, then constant or half a cosine down to 0."""
    warm = (recipe.warmup or 0.0) * steps
    if step < warm:
        return (step + 1) / (warm + 1)
    if recipe.schedule == "constant":
        return 1.0
    return 0.5 + 0.5 * math.cos(math.pi * (step - warm) / max(1.0, steps - warm))


def drawn(recipe: Recipe, step: int, examples: int) -> tuple[int, list[int]]:
    """The epoch of a step, and its examples: each epoch is a new permutation, without what fills no whole batch."""
    epoch, at = divmod(step, examples // recipe.batch)
    order = torch.randperm(examples, generator=seeded(recipe.seed, epoch)).tolist()
    return epoch, order[at * recipe.batch : (at + 1) * recipe.batch]


def seeded(*numbers: int) -> torch.Generator:
    """A generator for these numbers, and no others."""
    found = 0
    for number in numbers:
        found = (found * 1_000_003 + number + 1) % 2**62
    return torch.Generator().manual_seed(found)


def pack(
    examples: Sequence[Example], numbers: Sequence[int], epoch: int, recipe: Recipe, ids: Ids
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens, target, learnt and valid [2 n, L] of some examples, as ``Student`` takes them. What an example's views
    hide depends on seed, epoch and example alone. Those whose segment is empty are left out, if not all are."""
    rows = []
    for number in numbers:
        whole, one = torch.tensor(sequence(examples[number], recipe.length, ids.eos)), examples[number]
        block = recipe.block_length if recipe.segment == "block" else None
        views = complementary(whole, len(one.prompt), block, ids.placeholder, seeded(recipe.seed, epoch, number))
        rows += [(tokens, whole, learnt) for tokens, learnt in zip(views.tokens, views.loss, strict=True)]
    rows = [row for at, row in enumerate(rows) if bool((rows[at][2] | rows[at ^ 1][2]).any())] or rows[:2]
    longest = max(len(row[0]) for row in rows)
    lengths = torch.tensor([len(row[0]) for row in rows])
    tokens, target, learnt = (
        torch.stack([nn.functional.pad(one, (0, longest - len(one)), value=fill) for one in column])
        for column, fill in zip(zip(*rows, strict=True), (ids.eos, ids.eos, 0), strict=True)
    )
    return tokens, target, learnt, torch.arange(longest) < lengths[:, None]


class Run:
    """Training of one student. made_from: what its state must have been made from."""

    def __init__(
        self, student: Student, examples: Sequence[Example], recipe: Recipe, place: Place, ids: Ids,
        accelerator: Accelerator,
    ) -> None:  # fmt: skip
        self.examples, self.recipe, self.place, self.ids, self.accelerator = examples, recipe, place, ids, accelerator
        self.folder, self.steps, self.step, self.starts = Path(place.out), steps_of(recipe, len(examples)), 0, 0
        self.student = student
        weights = list(student.learning.values())
        self.optimizer = torch.optim.AdamW(weights, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
        self.sums = torch.zeros(len(TERMS) + 1, dtype=torch.float64, device=weights[0].device)
        self.seconds = [0.0, 0.0]  # of wall clock and of the processor, before this start
        self._go_on()
        self.starts += 1
        self.began = (time.monotonic() - self.seconds[0], time.process_time() - self.seconds[1])
        self.wrapped = accelerator.prepare_model(student)

    def _go_on(self) -> None:
        """Take over a state that is there, and forget what was logged after it."""
        file, log = self.folder / STATE, self.folder / LOG
        if not file.is_file():
            kept: list[str] = []
        else:
            content = torch.load(file, map_location=self.sums.device, weights_only=True)
            self.student.load_state_dict(content["weights"], strict=False)
            self.optimizer.load_state_dict(content["optimizer"])
            self.step, self.starts, self.seconds = content["step"], content["starts"], content["seconds"]
            lines = log.read_text().splitlines() if log.is_file() else []
            kept = [line for line in lines if is_complete(line) and json.loads(line)["step"] <= self.step]
        if self.accelerator.is_main_process:
            log.write_text("".join(line + "\n" for line in kept))

    def advance(self) -> None:
        """One update from ``batch`` examples; each process takes its share, ``micro`` at a time."""
        recipe, processes = self.recipe, self.accelerator.num_processes
        epoch, numbers = drawn(recipe, self.step, len(self.examples))
        mine = numbers[self.accelerator.process_index :: processes]
        groups = list(by_length(mine, self.examples, recipe.micro))
        for at, group in enumerate(groups):
            given = [one.to(self.sums.device) for one in pack(self.examples, group, epoch, recipe, self.ids)]
            waits = nullcontext() if at == len(groups) - 1 else self.accelerator.no_sync(self.wrapped)
            with waits:
                losses, terms = self.wrapped(*given)
                # Of both views of an example; accelerate takes the mean over processes.
                self.accelerator.backward(losses.sum() * processes / recipe.batch)
            self.add(given[2], terms)
        nn.utils.clip_grad_norm_(list(self.student.learning.values()), CLIP)
        for one in self.optimizer.param_groups:
            one["lr"] = recipe.learning_rate * rate_factor(self.step, self.steps, recipe)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        if self.step % self.place.save_every == 0 or self.step == self.steps:
            self.save()

    def add(self, learnt: Tensor, terms: Tensor) -> None:
        """Sums over the views that learn something, for the log."""
        counts = learnt.any(1).to(self.sums.dtype)
        self.sums += torch.cat([terms.to(self.sums.dtype) @ counts, counts.sum()[None]])

    def means(self) -> dict[str, float]:
        sums = self.sums.tolist()
        return {name: value / max(1.0, sums[-1]) for name, value in zip(TERMS, sums[:-1], strict=True)}

    def save(self) -> None:
        """The log's line first: a kill in between writes it again. The first process writes."""
        self.sums = self.accelerator.reduce(self.sums, "sum")
        means = {name: round(value, 6) for name, value in self.means().items()}
        self.sums = torch.zeros_like(self.sums)
        if not self.accelerator.is_main_process:
            return
        seconds = [time.monotonic() - self.began[0], time.process_time() - self.began[1]]
        minutes = dict(zip(("wall_minutes", "cpu_minutes"), (one / 60 for one in seconds), strict=True))
        with (self.folder / LOG).open("a") as file:
            file.write(json.dumps({"step": self.step, **minutes, **means}) + "\n")
        content = {
            "weights": {name: weight.detach() for name, weight in self.student.named_parameters()
                        if weight.requires_grad},
            "optimizer": self.optimizer.state_dict(), "step": self.step, "starts": self.starts, "seconds": seconds,
        }  # fmt: skip
        beside = (self.folder / STATE).with_suffix(".tmp")
        with beside.open("wb") as out:
            torch.save(content, out)
            out.flush()
            os.fsync(out.fileno())
        beside.replace(self.folder / STATE)

    def train(self) -> None:
        """To the end, or to ``stop_at``; a bar on a terminal."""
        until, before = min(self.place.stop_at or self.steps, self.steps), self.step
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        quiet = not self.accelerator.is_main_process or not sys.stderr.isatty()
        with Progress(*columns, console=Console(stderr=True), disable=quiet) as bar:
            shown = bar.add_task("training", total=self.steps, completed=self.step)
            while self.step < until:
                self.advance()
                told = "" if quiet else "  ".join(f"{name} {value:.3f}" for name, value in self.means().items())
                bar.update(shown, completed=self.step, description=f"step {self.step}  {told}")
        if self.step > before and self.step % self.place.save_every and self.step != self.steps:
            self.save()  # stopped between two states


def by_length(numbers: Sequence[int], examples: Sequence[Example], micro: int) -> Iterator[Sequence[int]]:
    """Groups of ``micro`` examples of like lengths: little padding."""

    def length(number: int) -> tuple[int, int]:
        return len(examples[number].prompt) + examples[number].gen_length, number

    ordered = sorted(numbers, key=length)
    yield from (ordered[at : at + micro] for at in range(0, len(ordered), micro))


def is_complete(line: str) -> bool:
    """Whether a line of the log was written to its end."""
    try:
        return "step" in json.loads(line)
    except ValueError:
        return False


def log_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of the log."""
    return [json.loads(line) for line in (folder / LOG).read_text().splitlines()]


SHOWN = {"cross_entropy": "cross entropy, nats", "entropy": "entropy where right, nats", "right": "share right"}


def draw(folder: Path) -> Path:
    """Cross entropy, entropy and the share of right tokens by step. Raises UserError without a log or matplotlib."""
    if not (folder / LOG).is_file():
        raise UserError(f"{folder / LOG} is missing: give a folder that experiments.distill writes to.")
    if find_spec("matplotlib") is None:
        raise not_installed("a curve", "matplotlib", "report")
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    lines = log_of(folder)
    figure, axes = pyplot.subplots(1, len(SHOWN), figsize=(11, 3), layout="constrained")
    for axis, (name, label) in zip(axes, SHOWN.items(), strict=True):
        axis.plot([line["step"] for line in lines], [line[name] for line in lines])
        axis.set(xlabel="step", title=label, ylim=(0, None))
    figure.savefig(folder / "curve.svg")
    pyplot.close(figure)
    return folder / "curve.svg"


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    print(*map(draw, parser.parse_args(arguments).folders), sep="\n")
    return 0


SHARE = (1 - 1e-3) * 0.5 + 1e-3  # of the segment's tokens are masked in the first view, as in the released code


@dataclass(frozen=True)
class Views:
    """tokens [2, L]: the canvas of each view. loss [2, L]: masked positions of the segment, from which it learns."""

    tokens: Tensor
    loss: Tensor


def segment(answer: int, block: int | None, generator: torch.Generator) -> tuple[int, int]:
    """First position of the segment in an answer of that many tokens, and the one after it.

    A block drawn uniformly from all that are complete and the rest after them, which may be empty. block=None: the
    whole answer, as the released code has it for Dream.
    """
    if block is None:
        return 0, answer
    last = answer // block
    drawn = int(torch.randint(last + 1, (), generator=generator))
    return block * drawn, answer if drawn == last else block * (drawn + 1)


def complementary(ids: Tensor, prompt: int, block: int | None, mask_id: int, generator: torch.Generator) -> Views:
    """Two views of a sequence ``ids`` [L] whose first ``prompt`` tokens are the prompt, as decoding in blocks meets it:
    clean before the segment, masked after it. Every position of the segment is masked in exactly one of the two."""
    start, end = (prompt + place for place in segment(len(ids) - prompt, block, generator))
    column = torch.arange(len(ids))
    inside = (column >= start) & (column < end)
    half = (torch.rand(len(ids), generator=generator) < SHARE) & inside
    loss = torch.stack([half, inside & ~half])
    return Views(torch.where(loss | (column >= end), mask_id, ids), loss)


if __name__ == "__main__":
    sys.exit(main())
