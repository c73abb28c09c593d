"""What is decoded before and after training: the teacher's answers, and the measurement of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

import torch

from dllm import Decoder, Model
from dllm.contract import Turn
from dllm.parts.blocks.fixed import Fixed
from dllm.parts.samplers.base import Sampler
from dllm.parts.samplers.confidence import Confidence
from dllm.parts.samplers.dparallel import DParallel
from dllm.parts.samplers.static import Static
from dllm.prompts import Prompt
from experiments.distill.data import Example, ended
from experiments.distill.recipe import Recipe

Row = dict[str, Any]
LABELS = {
    "forwards": "forwards (NFE)",
    "equal": "equal to the teacher's answer",
    "entropy": "first entropy of masks, nats",
    "score": "score",
}


def decoder_of(model: Model, sampler: Sampler, length: int, recipe: Recipe) -> Decoder:
    blocks = Fixed(min(recipe.block_length, length))
    return Decoder(model, sampler, blocks, gen_length=length, batch_size=recipe.decode_rows)


def prompts_of(part: list[Example]) -> list[Prompt]:
    return [one.prompt for one in part]


def teacher(model: Model, recipe: Recipe) -> Callable[[list[Example]], list[list[int]]]:
    """Decodes carefully: the answers of examples, filled to the end of their canvas. All have one length."""
    rule: Sampler = Static() if recipe.teacher == "static" else Confidence(recipe.teacher_threshold)

    def answers(part: list[Example]) -> list[list[int]]:
        decoder = decoder_of(model, rule, part[0].gen_length, recipe)
        return [ended(row.canvas, len(row.canvas), model.ids) for row in decoder(prompts_of(part))]

    return answers


@dataclass
class FirstEntropies:
    """An observer: the entropies of the masks of each block in the block's first forward, by request, in nats."""

    sums: dict[int, float] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)

    def __call__(self, turn: Turn) -> None:
        view = turn.view
        first = view.open & ((view.block_step == 0) & turn.active)[:, None]
        entropy = torch.where(first, view.scores.statistic("entropy"), 0.0).sum(1)
        rows = zip(view.canvas.param_index.tolist(), entropy.tolist(), first.sum(1).tolist(), strict=True)
        for number, total, count in rows:
            self.sums[number] = self.sums.get(number, 0.0) + total
            self.counts[number] = self.counts.get(number, 0) + count


def measurement(model: Model, recipe: Recipe) -> Callable[[list[Example]], list[Row]]:
    """Decodes by entropy at ``recipe.threshold``: a row per example with its forwards, whether the answer equals the
    teacher's, the entropy in nats that the masks of its blocks begin with, and its score if there is a judge."""

    def rows(part: list[Example]) -> list[Row]:
        seen = FirstEntropies()
        decoder = decoder_of(model, DParallel(recipe.threshold), part[0].gen_length, recipe)
        found = []
        results = decoder(prompts_of(part), observe=seen)
        for number, (one, row) in enumerate(zip(part, results, strict=True)):
            answer = ended(row.canvas, one.gen_length, model.ids)
            found.append(
                {
                    "forwards": row.nfe,
                    "equal": float(answer == one.answer),
                    "entropy": seen.sums[number] / max(1, seen.counts[number]),
                    **({} if one.judge is None else {"score": one.judge(row.text)}),
                }
            )
        return found

    return rows


def means(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """Mean and half of its 95 % interval of every figure that the rows have."""
    names = [name for name in ("forwards", "equal", "entropy", "score") if rows and name in rows[0]]
    found: dict[str, tuple[float, float]] = {}
    for name in names:
        values = [float(row[name]) for row in rows]
        error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
        found[name] = (fmean(values), 1.96 * error)
    return found
