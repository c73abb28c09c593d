"""Which setting of a method some items choose, and what others show of it (``experiments.compare.own_sampler``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from random import Random
from statistics import fmean, stdev
from typing import NamedTuple

from dllm import Result
from dllm.record.measures import quantile
from experiments.support import markdown

SLACK = 0.01  # of the score: what a setting may lose against one token per forward
LOST = 0.05  # of the score: who loses more on other items was chosen by chance
DRAWS = 100  # random splits
OWN = "scout"


@dataclass(frozen=True)
class Column:
    """One setting on all items. rows: of all its forwards, for each item. seconds: CPU time for all of them, which for
    one thread of an idle machine is the time on the clock."""

    method: str
    setting: str
    results: list[Result]
    right: list[float]
    seconds: float

    @property
    def nfe(self) -> list[int]:
        return [row.nfe for row in self.results]

    @property
    def rows(self) -> list[float]:
        return [row.query_tokens / (len(row.prompt_tokens) + len(row.canvas)) for row in self.results]


class Place(NamedTuple):
    """Where an item belongs."""

    seed: int
    half: int


def mean_at(items: Sequence[int], values: Sequence[float]) -> float:
    return fmean(values[at] for at in items)


def saving(ours: Sequence[float], other: Sequence[float]) -> str:
    """How many per cent fewer forwards, with the 95 % interval of a ratio of paired means (delta method)."""
    ratio, count = fmean(ours) / fmean(other), len(ours)
    rest = [one - ratio * two for one, two in zip(ours, other, strict=True)]
    half = 1.96 * sqrt(sum(value**2 for value in rest) / max(1, count - 1) / count) / fmean(other)
    return f"{100 * (1 - ratio):.1f} % ±{100 * half:.1f}"


@dataclass(frozen=True)
class Shown:
    """What some items show of what others chose. best: the published method. lost: points that it scores less than one
    token per forward. fewer: per cent of its forwards that each of our own saves, and points that it scores more."""

    best: Column
    lost: float
    fewer: dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Pool:
    """All settings on all items. static: one token per forward."""

    places: Sequence[Place]
    static: Column
    columns: Sequence[Column]

    def of(self, half: int, seed: int | None = None) -> list[int]:
        """The items of a half, of one seed or of all."""
        return [at for at, place in enumerate(self.places) if place.half == half and seed in (None, place.seed)]

    def chosen(self, on: Sequence[int]) -> dict[str, Column]:
        """The best setting of each method by the items ``on``; without one that scores enough, the best-scoring one."""
        bar = self._bar(on)
        best: dict[str, tuple[tuple[float, float], Column]] = {}
        for column in self.columns:
            score, nfe = mean_at(on, column.right), mean_at(on, column.nfe)
            rank = (0.0, nfe) if score >= bar else (1 - score, nfe)
            if column.method not in best or rank < best[column.method][0]:
                best[column.method] = rank, column
        return {method: column for method, (_, column) in best.items()}

    def best_published(self, found: Mapping[str, Column], on: Sequence[int]) -> Column:
        """Of the chosen settings, the one of the fewest forwards that scores enough there; if none does, of those that
        score most."""
        published = [one for one in found.values() if OWN not in one.method]
        enough = min(self._bar(on), max(mean_at(on, one.right) for one in published))
        fit = [one for one in published if mean_at(on, one.right) >= enough]
        return min(fit, key=lambda one: mean_at(on, one.nfe))

    def _bar(self, on: Sequence[int]) -> float:
        return mean_at(on, self.static.right) - SLACK - 1e-9

    def shown(self, on: Sequence[int], shown: Sequence[int]) -> Shown:
        """Chosen by the items ``on``, shown on others."""
        found = self.chosen(on)
        best = self.best_published(found, on)
        score, nfe = mean_at(shown, best.right), mean_at(shown, best.nfe)
        fewer = {
            one.method: (100 * (1 - mean_at(shown, one.nfe) / nfe), 100 * (mean_at(shown, one.right) - score))
            for one in found.values() if OWN in one.method
        }  # fmt: skip
        return Shown(best, 100 * (mean_at(shown, self.static.right) - score), fewer)

    def splits(self) -> str:
        """Every half of every seed alone, its settings chosen on the other half of that seed; and their spread."""
        seeds = sorted({place.seed for place in self.places})
        found = {f"seed {seed}, {words} half": self.shown(self.of(1 - half, seed), self.of(half, seed))
                 for seed in seeds for half, words in enumerate(("first", "second"))}  # fmt: skip
        own = list(next(iter(found.values())).fewer)
        lines = [[words, f"{one.best.method}: {one.best.setting}", f"{one.lost:+.1f}", *self._cells(one, own)]
                 for words, one in found.items()]  # fmt: skip
        each = [[one.fewer[method][0] for one in found.values()] for method in own]
        lines.append(["mean, standard deviation", "", "", *(f"{fmean(one):.1f} %, {stdev(one):.1f}" for one in each)])
        return markdown.table(("shown on", "best published", "points it loses", *self._heads(own)), lines, words=2)

    def sizes(self) -> str:
        """Random halves of all items show what ever more of the others choose."""
        half = len(self.places) // 2
        lines = []
        for size in sorted({max(1, half // 4), max(1, half // 2), half}):
            found = list(self._drawn(half, size))
            own = list(found[0].fewer)
            each = ([one.fewer[method][0] for one in found] for method in own)
            lost = fmean(one.lost > 100 * LOST for one in found)
            lines.append([f"{size}", f"{100 * lost:.0f} %", *map(spread, each)])
        heads = ("items to choose on", f"best loses over {100 * LOST:.0f} points", *self._heads(own))
        return markdown.table(heads, lines)

    def _drawn(self, half: int, size: int) -> Iterator[Shown]:
        """The same halves are shown whatever the size."""
        for draw in range(DRAWS):
            order = Random(draw).sample(range(len(self.places)), len(self.places))
            yield self.shown(order[half : half + size], order[:half])

    @staticmethod
    def _heads(own: Sequence[str]) -> list[str]:
        return [f"{method}: fewer than the best" for method in own]

    @staticmethod
    def _cells(one: Shown, own: Sequence[str]) -> list[str]:
        return [f"{fewer:.1f} % at {points:+.1f} points" for fewer, points in (one.fewer[method] for method in own)]


def spread(values: Sequence[float]) -> str:
    """Mean, and where 90 % of the values lie."""
    return f"{fmean(values):.1f} % ({quantile(values, 0.05):.1f} to {quantile(values, 0.95):.1f})"
