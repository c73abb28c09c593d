"""What a training by rewards depends on. Options are the fields of ``Recipe`` and ``Where``, and what ``dllm`` takes
for a decode (``sampler=``, ``sampling.temperature=``, ``model=``, ...), written NAME=VALUE."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from inspect import getsource
from typing import Any

from dllm.app.command_line.options import checked_settings
from dllm.app.lm_eval.configuration import overridden_settings
from dllm.app.runs.plan import RunPlan
from dllm.common.coerce import coerce
from dllm.common.errors import UserError, in_choices, in_range, nearest
from dllm.tasks.mini import tasks
from experiments.distill.recipe import only, read


@dataclass(frozen=True)
class Recipe:
    """What a run learns from."""

    task: str = ""  # what is learnt, of the mini suite
    count: int = 2000  # prompts to learn from
    held_out: int = 64  # prompts of the test split that are scored before and after
    groups: int = 8  # prompts of an update
    updates: int = 60  # at most
    # Where nearly all of a group are right, one failure weighs much.
    stop_reward: float = 0.8  # mean reward of five updates at which training ends
    learning_rate: float = 5e-5  # of AdamW
    law: str = "own"  # or drawn: the distribution whose log-probabilities are learnt
    shrink: int = 1  # forwards of a decode that share a canvas
    draws: bool = False  # learn from every proposal, committed or not: the policy's own log-probability
    scale: bool = True  # advantages over the deviation of their group
    rows: int = 32  # canvases at once in the backward pass
    tune: str | None = None  # lora or full (null: by size)
    rank: int = 32  # of an adapter
    alpha: float = 32.0  # over the rank, an adapter's scale

    def __post_init__(self) -> None:
        """Raises UserError for a value that no run can have."""
        if not self.task:
            raise UserError(f"task= is missing: give one of {', '.join(tasks.TASKS)}.")
        in_choices("task", self.task, tasks.TASKS)
        in_choices("law", self.law, ("own", "drawn"))
        for name in ("count", "held_out", "groups", "updates", "shrink", "rows", "rank"):
            in_range(name, getattr(self, name), 1)
        for name in ("stop_reward", "learning_rate", "alpha"):
            in_range(name, getattr(self, name), 0)
        if self.tune is not None:
            in_choices("tune", self.tune, ("lora", "full"))
        if self.count < self.groups:
            raise UserError(f"count={self.count} prompts are fewer than groups={self.groups} of an update. Raise it.")


@dataclass(frozen=True)
class Where:
    """Where and how a run runs, which does not change what it learns."""

    out: str = "runs/rl"  # the run's folder
    threads: int = 1  # of a CPU
    save_every: int = 10  # updates between states
    stop_at: int = 0  # end at this update (0: at the end); the same command goes on later

    def __post_init__(self) -> None:
        for name, least in (("threads", 1), ("save_every", 1), ("stop_at", 0)):
            in_range(name, getattr(self, name), least)


def described() -> str:
    """A line for each option: its name, its default and the comment after it."""
    found = []
    for kind in (Recipe, Where):
        entries = re.findall(r"^    (\w+): [^=\n]+ = (.+?)  # (.+)$", getsource(kind), re.MULTILINE)
        found += [f"  {f'{name}={default}':<24}{note}" for name, default, note in entries]
    return "\n".join(found)


def parse(arguments: Sequence[str]) -> tuple[Recipe, Where, RunPlan]:
    """Raises UserError for what is not an option, no value of its kind, or fits nothing else."""
    kinds = {entry.name: str(entry.type) for kind in (Recipe, Where) for entry in fields(kind)}
    own: dict[str, Any] = {}
    decode: list[str] = []
    for argument in arguments:
        name, sign, value = argument.removeprefix("--").partition("=")
        if name in kinds:
            own[name] = coerce(name, read(value, kinds[name]), kinds[name])
        elif sign:
            decode.append(argument)
        else:
            raise UserError(f"{argument!r} is not an option; write NAME=VALUE.{nearest(name, kinds)}")
    recipe = Recipe(**only(own, Recipe))
    return recipe, Where(**only(own, Where)), decode_plan(recipe, decode)


def decode_plan(recipe: Recipe, overrides: list[str]) -> RunPlan:
    """How rollouts are decoded. Raises UserError for what no decode takes, and for groups that would be alike."""
    usual = {
        "sampler": "static",
        "sampling.temperature": "1",
        "samples": "8",
        "gen_length": str(tasks.longest(recipe.task)),
        "batch_size": "64",
    }
    given = {one.partition("=")[0] for one in overrides}
    if "sampler" not in given:
        usual["sampler.steps"] = "4"
    words = [*(f"{name}={value}" for name, value in usual.items() if name not in given), *overrides]
    try:
        plan = RunPlan.of(checked_settings(overridden_settings(words)))
    except UserError as error:
        if "is unknown" not in str(error):
            raise
        raise UserError(f"{error} Options of the training: python -m experiments.rl --help.") from None
    if plan.options.samples < 2:
        raise UserError(f"samples={plan.options.samples}: rewards are compared within a prompt's group. Use 8, say.")
    if plan.sampling.plain:
        raise UserError("sampling.temperature=0 gives a prompt the same answer each time. Use 1.")
    return plan
