"""Distil a model: ``python -m experiments.distill model=mini-llada data=mini out=runs/student``.

Teacher, measurement, training, measurement. The same command goes on where it was stopped, at whatever moment, and ends
with the same weights bit for bit (on one machine, one thread and as many processes). On several GPUs: ``accelerate
launch -m experiments.distill device=cuda ...``. ``recipe=NAME`` stands for the options of a recipe.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from dllm import Model, UserError, load
from dllm.models.arithmetic import parse_device
from dllm.models.bundle import describe
from dllm.models.config import ModelConfig
from dllm.models.fingerprint import fingerprint
from dllm.models.network.transformer import Transformer
from dllm.models.text.ids import Ids
from dllm.models.weights.checkpoint_path import locate
from dllm.prompts import Prompts
from dllm.record.environment import environment_stamp
from experiments.distill import chunks, decoding, student
from experiments.distill.data import Data, Example
from experiments.distill.recipe import RECIPES, Place, Recipe, parse
from experiments.distill.train import SHOWN, Run
from experiments.support.course import RECIPE, accelerated, device_of, log_of, refuse_other, report, write
from experiments.support.scripts import refusing


@dataclass(frozen=True)
class Plan:
    """A run, checked, without weights. made_from: what decides its outcome."""

    recipe: Recipe
    place: Place
    config: ModelConfig
    ids: Ids
    data: Data
    made_from: dict[str, Any]

    @staticmethod
    def of(arguments: Sequence[str]) -> Plan:
        """Raises UserError for whatever cannot work."""
        recipe, place = parse(arguments)
        parse_device(place.device)
        folder, config, tokenizer, ids, _ = describe(recipe.model)
        with torch.device("meta"):
            parameters = sum(weight.numel() for weight in Transformer(config).parameters())
        if ids.mask is None:
            raise UserError(
                f"model={recipe.model} has no mask: it undoes noise, and a student learns to fill masks. "
                "Use another model."
            )
        recipe = recipe.resolved(config, parameters)
        student.refuse_without_peft(recipe.tuning)
        data = Data.of(recipe, Prompts(config, tokenizer, ids, recipe.model, recipe.gen_length, recipe.chat))
        made_from = {**asdict(recipe), "questions": data.digest, "checkpoint": fingerprint(folder)}
        refuse_other(Path(place.out), made_from)
        return Plan(recipe, place, config, ids, data, made_from)


@dataclass
class Phases:
    """What a run does, in order; each phase leaves files, and is skipped once they are there."""

    plan: Plan
    accelerator: Accelerator
    model: Model | None = None

    @property
    def out(self) -> Path:
        return Path(self.plan.place.out)

    @property
    def device(self) -> str:
        return device_of(self.accelerator)

    def loaded(self) -> Model:
        """The teacher."""
        if self.model is None:
            self.model = load(self.plan.recipe.model, device=self.device, dtype=self.plan.recipe.dtype)
        return self.model

    def released(self) -> None:
        """Give the memory of the teacher back."""
        self.model = None
        if torch.cuda.is_available():
            gc.collect()
            torch.cuda.empty_cache()

    def answered(self) -> tuple[list[Example], list[Example]]:
        """The examples with the teacher's answers; those that it answers with nothing are left out."""
        recipe, data = self.plan.recipe, self.plan.data
        asked = [one for one in (*data.train, *data.held) if one.answer is None]
        parts = chunks.cut(asked, recipe.decode_rows, lambda one: one.gen_length)
        folder = self.out / "teacher"
        if not chunks.is_whole(folder, parts):
            self.work(folder, parts, decoding.teacher(self.loaded(), recipe), "the teacher answers")
        found = {id(one): answer for one, answer in chunks.found(folder, parts)}
        filled = (
            [replace(one, answer=found.get(id(one), one.answer)) for one in part] for part in (data.train, data.held)
        )
        ends = {self.plan.ids.eos, *self.plan.ids.stops}
        train, held = ([one for one in part if one.answer and one.answer[0] not in ends] for part in filled)
        left_out = len(data.train) + len(data.held) - len(train) - len(held)
        if left_out:
            self.say(f"{left_out} questions got an empty answer and are left out")
        if len(train) < recipe.batch:
            raise UserError(f"batch={recipe.batch} exceeds the {len(train)} questions that got an answer. Lower it.")
        return train, held

    def work(self, folder: Path, parts: Sequence[list[Any]], work: Any, title: str) -> None:
        accelerator = self.accelerator
        chunks.worked(folder, parts, work, title, accelerator.process_index, accelerator.num_processes)
        accelerator.wait_for_everyone()

    def measured(self, name: str, held: Sequence[Example]) -> dict[str, tuple[float, float]]:
        """Means and half-widths of the held-out examples, by figure."""
        recipe = self.plan.recipe
        parts = chunks.cut(held, recipe.decode_rows, lambda one: one.gen_length)
        folder = self.out / name
        if not chunks.is_whole(folder, parts):
            self.work(folder, parts, decoding.measurement(self.loaded(), recipe), f"measured {name}")
        return decoding.means([row for _, row in chunks.found(folder, parts)])

    def trained(self, train: Sequence[Example]) -> Run:
        plan = self.plan
        self.released()
        built = student.build(locate(plan.recipe.model), plan.config, plan.recipe, self.device)
        run = Run(built, train, plan.recipe, plan.place, plan.ids, self.accelerator)
        run.train()
        return run

    def run(self) -> None:
        plan, out = self.plan, self.out
        train, held = self.answered()
        before = self.measured("before", held)
        run = self.trained(train)
        if run.step < run.steps:
            self.say(f"{out}: stopped at step {run.step} of {run.steps}; the same command goes on")
            return
        base = locate(plan.recipe.model)
        if self.accelerator.is_main_process:
            student.export(run.student.model, plan.recipe.tuning, base, out)
        self.accelerator.wait_for_everyone()
        path, adapter = student.exported(plan.recipe.tuning, base, out)
        facts = {
            "step": run.step,
            "starts": run.starts,
            "examples": len(train),
            "processes": self.accelerator.num_processes,
        }
        del run
        self.released()
        self.model = load(path, device=self.device, dtype=plan.recipe.dtype, adapter=adapter)
        after = self.measured("after", held)
        if self.accelerator.is_main_process:
            self.report(before, after, facts)
            option = f"model.path={path}" if adapter is None else f"model.adapter={adapter}"
            self.say(f"{adapter or path}: load it with {option}")

    def report(self, before: dict[str, Any], after: dict[str, Any], facts: dict[str, Any]) -> None:
        """report.json, curve.svg, and a table."""
        recipe = self.plan.recipe
        last = log_of(self.out)[-1]
        place = environment_stamp(self.accelerator.device, getattr(torch, recipe.dtype), recipe.seed)
        content = {
            **facts,
            "log": last,
            "before": before,
            "after": after,
            "recipe": self.plan.made_from,
            "environment": place,
        }
        rows = [
            [decoding.LABELS[name], *(f"{mean:.3f} ±{half:.3f}" for mean, half in (before[name], after[name]))]
            for name in before
        ]
        report(self.out, content, f"at threshold {recipe.threshold:g} nats", rows, SHOWN)

    def say(self, text: str) -> None:
        if self.accelerator.is_main_process:
            print(text, flush=True)


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if {"-h", "--help"} & set(given):
        print(
            __doc__,
            Recipe.__doc__,
            Place.__doc__,
            f"recipes: {', '.join(RECIPES)}",
            Recipe(data="FILE"),
            Place(),
            sep="\n\n",
        )
        return 0
    plan = Plan.of(given)
    torch.set_num_threads(plan.place.threads)
    out = Path(plan.place.out)
    out.mkdir(parents=True, exist_ok=True)
    accelerator = accelerated(plan.place.device == "cpu")
    share = plan.recipe.micro * accelerator.num_processes
    if plan.recipe.batch % share:
        raise UserError(
            f"batch={plan.recipe.batch} must be a multiple of {share}, micro={plan.recipe.micro} times "
            f"{accelerator.num_processes} processes."
        )
    if accelerator.is_main_process:
        write(out / RECIPE, json.dumps(plan.made_from, indent=1) + "\n")
    Phases(plan, accelerator).run()
    accelerator.end_training()
    return 0


if __name__ == "__main__":
    sys.exit(main())
