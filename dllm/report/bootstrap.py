"""95 % intervals of AUP: what it would be had other items been drawn, by the percentile bootstrap (Efron 1979)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dllm.report.figures import aup
from dllm.report.methods import Method, each_setting
from dllm.report.pooling import SampleRow, SettingResults

RESAMPLES = 400  # of the items; the ends of an interval then move by about a tenth of its width from seed to seed
QUANTILES = (0.025, 0.975)


@dataclass(frozen=True)
class ItemSums:
    """The samples of a setting on one sub-task, summed over each item."""

    scores: Tensor  # [items] of the judged answers, each in [0, 1]
    judged: Tensor  # [items] how many answers were judged
    tokens: Tensor  # [items] useful tokens
    forwards: Tensor  # [items]

    @staticmethod
    def of(rows: Sequence[SampleRow], places: dict[str, int]) -> ItemSums:
        """places: of the sub-task's items, by id."""
        sums = torch.zeros(4, len(places), dtype=torch.float64)
        for row in rows:
            score = row["scores"].get("score")
            counted = (score or 0.0, float(score is not None), row["useful_tokens"], row["nfe"])
            sums[:, places[str(row["id"])]] += torch.tensor(counted, dtype=torch.float64)
        return ItemSums(*sums)

    def points(self, weights: Tensor) -> Tensor:
        """[resamples, 2] useful tokens per forward, and the score in percent; NaN where no answer was judged. weights
        [resamples, items]: how often each item was drawn."""
        speed = weights @ self.tokens / (weights @ self.forwards).clamp(min=1)
        return torch.stack([speed, 100 * (weights @ self.scores) / (weights @ self.judged)], dim=1)


def aup_intervals(found: Sequence[Method], seed: int = 0) -> list[tuple[float, float] | None]:
    """The interval of each method's ``mean_aup``. None: a sub-task has one item, which says nothing of others.

    Items are drawn within each sub-task, the same for all methods; all samples of an item go together. Curves and the
    best score that weighs them are those of the drawn items.
    """
    settings = [one for _, one in each_setting(found)]
    tasks = sorted({task for one in settings for task in one.scores})
    places = {task: _places(settings, task) for task in tasks}
    if not tasks or any(len(items) < 2 for items in places.values()):
        return [None] * len(found)
    generator = torch.Generator().manual_seed(seed)
    drawn = sum(_one_task(found, task, places[task], generator) for task in tasks)
    assert isinstance(drawn, Tensor)
    low, high = (drawn / len(tasks)).quantile(torch.tensor(QUANTILES, dtype=torch.float64), dim=0)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def _places(settings: Sequence[SettingResults], task: str) -> dict[str, int]:
    ids = dict.fromkeys(str(row["id"]) for one in settings for row in one.tasks.get(task, ()))
    return {name: place for place, name in enumerate(ids)}


def _one_task(found: Sequence[Method], task: str, places: dict[str, int], generator: torch.Generator) -> Tensor:
    """[resamples, methods] AUP on one sub-task."""
    chosen = torch.randint(len(places), (RESAMPLES, len(places)), generator=generator)
    weights = torch.zeros(RESAMPLES, len(places), dtype=torch.float64)
    weights.scatter_add_(1, chosen, torch.ones_like(chosen, dtype=torch.float64))
    curves = [
        [ItemSums.of(one.tasks[task], places).points(weights) for one in method.settings if task in one.scores]
        for method in found
    ]
    out = torch.zeros(RESAMPLES, len(found), dtype=torch.float64)
    for number in range(RESAMPLES):
        drawn = [[point[number].tolist() for point in curve] for curve in curves]
        here = [[(speed, score) for speed, score in curve if score == score] for curve in drawn]
        best = max((score for curve in here for _, score in curve), default=0.0)
        out[number] = torch.tensor([aup(curve, best) if curve else 0.0 for curve in here], dtype=torch.float64)
    return out
