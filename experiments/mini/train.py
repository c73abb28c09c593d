"""Train a mini model: ``python -m experiments.mini.train mini-llada --out runs/mini-llada``.

What a model learns from is its objective (``objectives``). mini-wedlm and mini-nbdiff begin with mini-ar's weights,
mini-dream with those of mini-llada, which its command trains first, in ``--out``/base, unless ``--base`` gives them.

The same command goes on where it was stopped, at whatever moment, and ends with the same weights bit for bit (on one
machine), with ``--threads 2`` in 60 to 70 % of the time and with up to 15 % more of the processors'. ``--out`` gets the
checkpoint folder (bfloat16), log.jsonl, and training.pt, the state.
``--device cuda`` runs the same recipe on the same data faster, with other rounding.

Muon on the matrices of the blocks, Adam on the rest; unit-variance embeddings and small output projections. With
AdamW alone or embeddings of std 0.02 the models stay on the plateau where nothing is copied from the prompt.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

import dllm
from dllm.models.arithmetic import parse_device
from dllm.models.network.transformer import Transformer
from dllm.models.weights.weights import save_model
from dllm.record.environment import checkout_state, environment_stamp
from experiments.mini import data, tokenizer
from experiments.mini.evaluate import weights_digest
from experiments.mini.objectives import OBJECTIVES
from experiments.mini.objectives.base import Group
from experiments.mini.recipe import (
    Recipe,
    add_vocabulary,
    base_of,
    build_model,
    build_optimizers,
    cut_vocabulary,
    rate_factor,
    recipe_of,
)
from experiments.mini.redraw import redraw_of
from experiments.support.course import LOG, STATE, cut_log, refuse_changes, whole_file
from experiments.support.scripts import refusing

REPORT = "training.json"
BASE = "base"  # the folder of the base that a command trains first
TRAINED_FIRST = "mini-llada"  # a base that a command trains by itself
SAVE_EVERY = 100  # steps between states, each with a line of the log


@dataclass
class Sums:
    """Weighted losses since the last line of the log, in all and by task."""

    loss: dict[str, float] = field(default_factory=dict)
    weight: dict[str, float] = field(default_factory=dict)

    def add(self, batch: Group, losses: Tensor) -> None:
        rows, weight = batch.counted()
        for kept, values in ((self.loss, losses * weight), (self.weight, weight)):
            per_row = torch.zeros(len(batch.tasks), device=values.device).index_add(0, rows, values)
            for task, value in zip(batch.tasks, per_row.tolist(), strict=True):
                kept[task] = kept.get(task, 0.0) + value

    def means(self) -> dict[str, float]:
        found = {"all": sum(self.loss.values()) / max(sum(self.weight.values()), 1e-9)}
        return found | {task: self.loss[task] / max(self.weight[task], 1e-9) for task in sorted(self.loss)}


@dataclass
class State:
    """What a run that goes on needs besides the recipe. seconds: of wall clock and of the processor."""

    model: Transformer
    optimizers: list[torch.optim.Optimizer]
    step: int = 0
    starts: int = 0
    wall: float = 0.0
    cpu: float = 0.0

    def save(self, file: Path, made_from: dict[str, Any]) -> None:
        content = {
            "model": self.model.state_dict(),
            "optimizers": [o.state_dict() for o in self.optimizers],
            "step": self.step,
            "starts": self.starts,
            "wall": self.wall,
            "cpu": self.cpu,
            "made_from": made_from,
        }
        with whole_file(file, "wb") as out:
            torch.save(content, out)

    def load(self, content: dict[str, Any]) -> None:
        self.model.load_state_dict(content["model"])
        for optimizer, saved in zip(self.optimizers, content["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.starts, self.wall, self.cpu = (content[key] for key in ("step", "starts", "wall", "cpu"))


def train_step(
    state: State,
    recipe: Recipe,
    batches: Sequence[Group],
    sums: Sums,
    held: Tensor | None = None,
    each: Callable[..., Iterable[Any]] = map,
) -> None:
    """One update from all groups of rows; what a token weighs does not depend on its group.

    each: maps a function over the groups, in this thread or in several. Gradients are added in the groups' order, so
    that the weights are the same. held: ids whose embeddings and rows of the head stay as they began. Copying then has
    to work for vectors that were drawn, so that it works for words that training never sees: without, 95 of 100 fell to
    4 for those.
    """
    model, objective = state.model, OBJECTIVES[recipe.model]
    parameters = [*model.parameters()]
    batches = [batch.to(model.device) for batch in batches]
    seeds = range(1_000 * state.step, 1_000 * state.step + len(batches))

    def hardened(batch: Group, seed: int) -> Group:
        return objective.hardened(model, batch, recipe, seed)

    hard = [*each(hardened, batches, seeds)]
    total = torch.stack([batch.share().sum() for batch in hard]).sum()

    def gradients(batch: Group) -> tuple[Tensor, tuple[Tensor, ...]]:
        losses = objective.losses(model, batch)
        return losses.detach(), torch.autograd.grad((losses * batch.share()).sum() / total, parameters)

    for batch, (losses, found) in zip(hard, each(gradients, hard), strict=True):
        for parameter, one in zip(parameters, found, strict=True):
            parameter.grad = one if parameter.grad is None else parameter.grad.add_(one)
        sums.add(batch, losses)
    if held is not None:
        for matrix in (model.embed.weight, model.lm_head.weight):
            assert matrix.grad is not None
            matrix.grad[held] = 0
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer, peak in zip(state.optimizers, (recipe.muon_rate, recipe.adam_rate), strict=True):
        for group in optimizer.param_groups:
            group["lr"] = peak * rate_factor(state.step, recipe.steps)
        optimizer.step()
        optimizer.zero_grad()
    state.step += 1


def export(model: Transformer, name: str, folder: Path) -> None:
    """A checkpoint folder in bfloat16 that any loader of the published format opens."""
    save_model(copy.deepcopy(model).to(torch.bfloat16), folder)
    (folder / "model.safetensors").chmod(0o644)  # safetensors writes files only their owner can read
    tokenizer.save(name, folder)


class Run:
    """One training run: data, state and the folder that log, checkpoint and training state go to."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        save_every: int = SAVE_EVERY,
        device: str = "cpu",
        each: Callable[..., Iterable[Any]] = map,
    ) -> None:
        self.each = each
        folder.mkdir(parents=True, exist_ok=True)
        self.recipe, self.folder, self.save_every, self.sums = recipe, folder, save_every, Sums()
        self.tokenizer = tokenizer.build(recipe.model)
        seen = min(tokenizer.new_ids(self.tokenizer))
        self.held = torch.tensor([one for one in tokenizer.item_ids(self.tokenizer) if one < seen], device=device)
        model = build_model(recipe, tokenizer.texts(self.tokenizer)).to(device)
        self.redraw = redraw_of(self.tokenizer, model.embed.weight.detach())
        self.unseen = cut_vocabulary(model, seen)
        self.state = State(model, build_optimizers(model, recipe, each))
        self.made_from = made_from(recipe, tokenizer.digest(self.tokenizer))
        self._go_on()
        self.state.starts += 1
        self.began = time.monotonic() - self.state.wall, time.process_time() - self.state.cpu

    def _go_on(self) -> None:
        """Take over a state that is there, and forget what was logged after it. Raises UserError."""
        if not (self.folder / STATE).is_file():
            cut_log(self.folder, -1)
            return
        content = torch.load(self.folder / STATE, map_location=self.state.model.device, weights_only=True)
        refuse_other(self.folder, content["made_from"], self.made_from)
        self.state.load(content)
        cut_log(self.folder, self.state.step)

    def step(self) -> None:
        recipe, state = self.recipe, self.state
        batches = OBJECTIVES[recipe.model].batches(self.tokenizer, recipe, state.step)
        share = recipe.redrawn if data.stage_at(recipe.progress(state.step)).late else 0.0
        with self.redraw.drawn(state.model, share, f"{recipe.seed}/{state.step}"):
            train_step(state, recipe, batches, self.sums, self.held, self.each)
        if state.step % self.save_every == 0 or state.step == recipe.steps:
            self.save()

    def save(self) -> None:
        """The log's line first: a kill in between writes it again."""
        state = self.state
        state.wall, state.cpu = time.monotonic() - self.began[0], time.process_time() - self.began[1]
        line = {"step": state.step, "wall_minutes": state.wall / 60, "cpu_minutes": state.cpu / 60}
        rounded = {task: round(loss, 4) for task, loss in self.sums.means().items()}
        with (self.folder / LOG).open("a") as file:
            file.write(json.dumps({**line, "loss": rounded}) + "\n")
        self.sums = Sums()
        state.save(self.folder / STATE, self.made_from)

    def export(self) -> Transformer:
        """Leave the checkpoint folder and what made it; the model with its whole vocabulary."""
        model = copy.deepcopy(self.state.model)
        add_vocabulary(model, self.unseen)
        export(model, self.recipe.model, self.folder)
        place = environment_stamp(self.state.model.device, torch.float32, self.recipe.seed)
        report = {
            "recipe": asdict(self.recipe),
            **{key: self.made_from[key] for key in ("data", "tokenizer")},
            "base": self.made_from.get("base"),
            "earlier": report_of(base_of(self.recipe)) if self.recipe.base else None,
            "step": self.state.step,
            "starts": self.state.starts,
            "wall_minutes": self.state.wall / 60,
            "cpu_minutes": self.state.cpu / 60,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "bytes": (self.folder / "model.safetensors").stat().st_size,
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
            **{key: place[key] for key in ("versions", "platform", "processor", "device")},
            **dict(zip(("commit", "dirty"), checkout_state(Path(dllm.__file__).parent), strict=True)),
        }
        (self.folder / REPORT).write_text(json.dumps(report, indent=1) + "\n")
        return model


def planned(recipe: Recipe, spelling: str) -> dict[str, Any]:
    """What decides a run's weights, but for its base; spelling: the tokenizer's digest."""
    found = {**asdict(recipe), "data": data.digest(recipe.seed, data.MIXES[recipe.requests]), "tokenizer": spelling}
    del found["base"]
    return found


def made_from(recipe: Recipe, spelling: str) -> dict[str, Any]:
    """Everything that decides a run's weights. A base counts by its weights, wherever they are."""
    found = planned(recipe, spelling)
    return {**found, "base": weights_digest(base_of(recipe))} if recipe.base else found


def spelling_of(recipe: Recipe) -> str:
    return tokenizer.digest(tokenizer.build(recipe.model))


def report_of(folder: Path) -> dict[str, Any] | None:
    """What a run that ended left of itself in its folder."""
    file = folder / REPORT
    found: dict[str, Any] | None = json.loads(file.read_text()) if file.is_file() else None
    return found


def refuse_other(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises UserError for a state made from something else."""
    named = {"data": "other data", "tokenizer": "another tokenizer", "base": "another base"}
    refuse_changes(f"--out={str(folder)!r}", before, now, named, "the recipe and the commit of that run")


def train(
    recipe: Recipe, folder: Path, stop_at: int = 0, save_every: int = SAVE_EVERY, device: str = "cpu", threads: int = 1
) -> Transformer:
    """Run the recipe, from the state in ``folder`` on if there is one, and leave the checkpoint there. ``stop_at`` ends
    a part of it early. ``threads`` share the groups of a step: the weights are the same. Raises UserError for a state
    of another recipe."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with ThreadPoolExecutor(threads) as pool, Progress(*columns, disable=not sys.stderr.isatty()) as bar:
        run = Run(recipe, folder, save_every, device, pool.map if threads > 1 else map)
        shown = bar.add_task(recipe.model, total=recipe.steps, completed=run.state.step)
        while run.state.step < (stop_at or recipe.steps):
            run.step()
            loss = run.sums.means()["all"] if run.sums.loss else float("nan")
            text = f"{recipe.model} step {run.state.step} loss {loss:.3f}"
            bar.update(shown, completed=run.state.step, description=text)
        if run.sums.loss:  # stopped between two states
            run.save()
        return run.export()


def parts_of(recipe: Recipe, folder: Path) -> list[tuple[Recipe, Path]]:
    """The runs of a command and their folders, in their order: that of its base, if it trains one, and its own."""
    if recipe.base != TRAINED_FIRST:
        return [(recipe, folder)]
    return [(recipe_of(TRAINED_FIRST), folder / BASE), (replace(recipe, base=str(folder / BASE)), folder)]


def train_parts(recipe: Recipe, folder: Path, stop_at: int = 0, **how: Any) -> None:
    """All runs of the recipe's command, but for those that ended before. ``stop_at`` counts the steps of all. Raises
    UserError for a folder of another recipe, before anything is trained."""
    runs, before = parts_of(recipe, folder), 0
    for one, place in runs:
        if (place / STATE).is_file():
            content = torch.load(place / STATE, map_location="cpu", weights_only=True)
            refuse_other(place, content["made_from"], planned(one, spelling_of(one)))
    for one, place in runs:
        if not has_ended(one, place):
            train(one, place, max(0, min(stop_at - before, one.steps)), **how)
        before += one.steps
        if 0 < stop_at <= before:
            return


def has_ended(recipe: Recipe, folder: Path) -> bool:
    """Whether the recipe's run ended there. Raises UserError where another one did."""
    report = report_of(folder)
    if report is None:
        return False
    before = {**report["recipe"], **{key: report[key] for key in ("data", "tokenizer", "base")}}
    refuse_other(folder, before, made_from(recipe, spelling_of(recipe)))
    return bool(report["step"] == recipe.steps)


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=list(OBJECTIVES))
    for one in fields(Recipe)[1:]:
        parser.add_argument(f"--{one.name.replace('_', '-')}", type=type(one.default))
    parser.add_argument("--out", type=Path, required=True, help="folder of checkpoint, log and training state")
    parser.add_argument("--stop-at", type=int, default=0, help="end at this step; the same command goes on later")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=1, help="that share each step's rows; the weights are the same")
    given = vars(parser.parse_args(arguments))
    torch.set_num_threads(1)
    out, stop_at, device, threads = (given.pop(name) for name in ("out", "stop_at", "device", "threads"))
    recipe = recipe_of(**{name: value for name, value in given.items() if value is not None})
    train_parts(recipe, out, stop_at, device=parse_device(device), threads=threads)
    return 0


if __name__ == "__main__":
    sys.exit(main())
