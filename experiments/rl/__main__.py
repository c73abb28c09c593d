"""Train a model by rewards that are checked: ``python -m experiments.rl task=replace_random out=runs/rl``.

Measures held-out prompts, trains, measures again, and leaves a checkpoint that ``load`` reads. The same command goes on
where it was stopped. Options are those below, and all that decoding takes on the command line of ``dllm``: sampler=,
blocks=, cache=, sampling.temperature=, model=, model.path=, gen_length=, samples= (rollouts of a prompt), seed=, ...
On several GPUs: ``accelerate launch -m experiments.rl model.device=cuda ...``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from dllm import Decoder, Model, UserError, load
from dllm.app.runs.plan import RunPlan, weights_of
from dllm.models.network.transformer import Transformer
from dllm.record.environment import environment_stamp
from dllm.tasks.mini import tasks
from experiments.distill import student
from experiments.distill.recipe import Tuning, refuse_rounding, usual_tune
from experiments.rl.recipe import Recipe, Where, described, parse
from experiments.rl.training import SHOWN, Run
from experiments.support.course import RECIPE, accelerated, device_of, refuse_other, report, write
from experiments.support.held_out import answered
from experiments.support.scripts import refusing

BEFORE = "before.json"


@dataclass(frozen=True)
class Job:
    """A run, checked, without weights."""

    recipe: Recipe
    where: Where
    decode: RunPlan  # how rollouts are decoded
    made_from: dict[str, Any]  # what decides its outcome

    @property
    def tuning(self) -> Tuning:
        recipe = self.recipe
        return Tuning(str(self.decode.config["model"]["path"]), recipe.tune, recipe.rank, recipe.alpha, self.seed)

    @property
    def seed(self) -> int:
        return self.decode.options.seed

    @staticmethod
    def of(arguments: Sequence[str]) -> Job:
        """Raises UserError for whatever cannot work."""
        recipe, where, decode = parse(arguments)
        with torch.device("meta"):
            parameters = sum(weight.numel() for weight in Transformer(decode.prompts.config).parameters())
        recipe = replace(recipe, tune=recipe.tune or usual_tune(parameters))
        kept = {key: value for key, value in decode.config.items() if key not in ("output", "name", "resume", "grids")}
        made_from = {**asdict(recipe), "decode": kept, **decode.content()}
        job = Job(recipe, where, decode, made_from)
        student.refuse_without_peft(job.tuning)
        refuse_rounding(recipe.tune, decode.config["model"]["dtype"], recipe.learning_rate)
        refuse_other(Path(where.out), made_from)
        return job

    def loaded(self, device: str, trainable: bool, path: Path | None = None, adapter: Path | None = None) -> Model:
        given = {**weights_of(self.decode.config, device), "trainable": trainable}
        return load(**{**given, "path": path or given["path"], "adapter": adapter or given["adapter"]})

    def measured(self, model: Model) -> dict[str, float]:
        """Scores of held-out prompts: drawn as rollouts are, and with the likeliest tokens."""
        likeliest = replace(self.decode, sampling=replace(self.decode.sampling, temperature=0.0))
        items = tasks.generate(self.recipe.task, self.seed, self.recipe.held_out, "test")
        found = {}
        for name, plan in (("drawn", self.decode), ("argmax", likeliest)):
            _, scores = answered(plan.decoder(model), items, seed=self.seed)
            found[name] = sum(scores) / len(scores)
        return found


def train(job: Job, accelerator: Accelerator) -> Run:
    """The training, up to its end or ``stop_at``."""
    recipe, device = job.recipe, device_of(accelerator)
    model = job.loaded(device, trainable=True)
    before = Path(job.where.out) / BEFORE
    if accelerator.is_main_process and not before.is_file():
        write(before, json.dumps(job.measured(model)))
    accelerator.wait_for_everyone()
    student.choose_learning(model.transformer, job.tuning)
    items = tasks.generate(recipe.task, job.seed + 2000, recipe.count, "train")
    decoder: Decoder = job.decode.decoder(model)
    run = Run(decoder, items, recipe, job.where, job.decode.options.samples, job.seed, accelerator)
    run.train()
    return run


def finish(job: Job, run: Run, device: str) -> None:
    """Write what was learnt, load it, measure it, and report."""
    base, out = job.decode.path, Path(job.where.out)
    student.export(run.decoder.model.transformer, job.tuning, base, out)
    path, adapter = student.exported(job.tuning, base, out)
    after, before = job.measured(job.loaded(device, False, path, adapter)), json.loads((out / BEFORE).read_text())
    place = environment_stamp(run.accelerator.device, getattr(torch, job.decode.config["model"]["dtype"]), job.seed)
    content = {
        "updates": run.step,
        "starts": run.starts,
        "before": before,
        "after": after,
        "recipe": job.made_from,
        "environment": place,
    }
    rows = [[name, f"{before[name]:.2f}", f"{after[name]:.2f}"] for name in before]
    report(out, content, f"{job.recipe.task}, {job.recipe.held_out} held-out prompts", rows, SHOWN)
    option = f"model.path={path}" if adapter is None else f"model.adapter={adapter}"
    print(f"{adapter or path}: load it with {option}")


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    if {"-h", "--help"} & set(given):
        print(__doc__, described(), f"tasks: {', '.join(tasks.TASKS)}", sep="\n\n")
        return 0
    job = Job.of(given)
    torch.set_num_threads(job.where.threads)
    out = Path(job.where.out)
    out.mkdir(parents=True, exist_ok=True)
    accelerator = accelerated(str(job.decode.config["model"]["device"]) == "cpu")
    if job.recipe.groups % accelerator.num_processes:
        raise UserError(f"groups={job.recipe.groups} must be a multiple of the {accelerator.num_processes} processes.")
    if accelerator.is_main_process:
        write(out / RECIPE, json.dumps(job.made_from, indent=1) + "\n")
    run = train(job, accelerator)
    if accelerator.is_main_process:
        if run.is_over:
            finish(job, run, device_of(accelerator))
        else:
            print(f"{out}: stopped at update {run.step} of {run.recipe.updates}; the same command goes on")
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return 0


if __name__ == "__main__":
    sys.exit(main())
