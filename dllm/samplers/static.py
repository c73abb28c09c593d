"""Commit a fixed number of positions per forward, the best-scoring first (LLaDA, arXiv 2502.09992, App. B.4)."""

from __future__ import annotations

import torch

from dllm.canvas import Canvas
from dllm.common.noise import uniform
from dllm.common.ranking import top
from dllm.contract import Need, Schedule, State, Step, View
from dllm.errors import UserError, in_choices, in_range
from dllm.samplers.base import Sampler, margin, quota
from dllm.setting import Setting

SCORES = ("low_confidence", "random", "margin", "entropy")


class Static(Sampler):
    """``steps`` is the number of forwards for the whole answer. It is split evenly over the blocks, and each block's
    masks over the block's forwards.

    steps None: ``per_step`` positions per forward, or one fewer where a block's masks do not divide evenly. score:
    ``low_confidence`` (highest probability first), ``margin`` (largest p1 - p2 first), ``entropy`` (lowest first) or
    ``random``.
    """

    def __init__(self, steps: int | None = None, score: str = "low_confidence", per_step: int = 1) -> None:
        in_choices("sampler.score", score, SCORES)
        in_range("sampler.steps", steps, 1, advice="null is one token per step.")
        check_per_step(per_step, steps)
        self.steps, self.score, self.per_step = steps, score, per_step
        self.stateless = self.deterministic = score != "random"
        self.by_confidence = score in ("low_confidence", "margin")

    def needs(self) -> tuple[Need, ...]:
        wanted = {"margin": {"first", "second"}, "entropy": {"entropy"}}.get(self.score, set())
        return (Need(statistics=frozenset(wanted)),)

    def check(self, setting: Setting) -> None:
        setting.require_steps("sampler.steps", self.steps)

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        return {"steps": steps_per_block(self.steps, canvas, blocks)}

    def turns(self, canvas: Canvas) -> torch.Tensor:
        return scheduled(canvas, self.steps, self.per_step)

    def step(self, view: View, state: State) -> Step:
        steps = block_steps(view, state, self.per_step)
        return view.step(top(self.rate(view), view.open, quota(view, steps)))

    def rate(self, view: View) -> torch.Tensor:
        """The ranking score [B, L], higher first."""
        scores = view.scores
        if self.score == "margin":
            return margin(scores)
        if self.score == "entropy":
            return -scores.stat("entropy")
        if self.score == "random":
            return uniform(view.canvas.seed[:, None], view.canvas.positions, view.blocks.turn[:, None], 1)
        return scores.confidence


def steps_per_block(steps: int | None, canvas: Canvas, blocks: Schedule) -> torch.Tensor:
    """Forwards of each block [B], its share of ``steps``; 0: ``block_steps`` counts them by the block's masks."""
    count = blocks.count(canvas)
    if steps is None or count is None:
        return torch.zeros_like(canvas.start)
    return (steps // count).clamp(min=1)


def block_steps(view: View, state: State, per_step: int = 1) -> torch.Tensor:
    """Forwards in the schedule of the current block [B]: its share of ``steps``, or one per ``per_step`` masks."""
    return torch.where(state["steps"] > 0, state["steps"], -(-view.blocks.masks.clamp(min=1) // per_step))


def scheduled(canvas: Canvas, steps: int | None, per_step: int = 1) -> torch.Tensor:
    """``Sampler.turns`` of such a schedule [B]: its ``steps``, or one per ``per_step`` masks."""
    masks = canvas.undecided.sum(1)
    return -(-masks // per_step) if steps is None else torch.full_like(masks, steps)


def check_per_step(per_step: int, steps: int | None = None) -> None:
    """Raise UserError for a ``per_step`` below 1, or one given beside ``steps``."""
    in_range("sampler.per_step", per_step, 1)
    if steps is not None and per_step != 1:
        raise UserError(f"sampler.steps={steps} and sampler.per_step={per_step} say the same thing twice. Drop one.")
