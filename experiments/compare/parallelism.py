"""Accuracy under parallelism (AUP) of every sampler: ``python -m experiments.compare.parallelism``.

Each sampler runs at several values of its main knob, on held-out items, in one block of 32 without a cache. Its curve
begins at one token per forward, which every rule falls back to, and ends at its fastest setting that scores no more
than 5 points less. Prints a Markdown table for each model, with 95 % intervals from items drawn again. The number is
the d3LLM leaderboard's (``dllm.report.figures``), of all tasks together.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from dllm import Decoder, Model, Result, UserError, load, part
from dllm.errors import name_of
from dllm.record.measures import quantile
from dllm.report.figures import Points, accuracy_under_parallelism, fast_enough
from dllm.samplers.base import Sampler
from dllm.samplers.oracle import Oracle
from dllm.tasks.mini import tasks as mini
from experiments.support import markdown
from experiments.support.held_out import answered, comparison
from experiments.support.scripts import refusing

ANSWER, BATCH, DRAWS = 32, 52, 400
DROP = 5.0  # points, the leaderboard's
SURE, OFTEN = (0.95, 0.9, 0.8, 0.6), (2, 4, 8)  # confidences; tokens per forward
FORWARDS = tuple(ANSWER // count for count in OFTEN)


@dataclass(frozen=True)
class Knob:
    """What is varied of a sampler, from safe to bold. fixed: what else differs from its defaults. inner: the rule that
    a wrapper is tried over; its option is then the inner rule's, if ``option`` begins with ``inner.``."""

    option: str
    values: Sequence[Any]
    fixed: Mapping[str, Any] | None = None
    inner: str = ""

    def settings(self) -> Iterator[dict[str, Any]]:
        """The options of each setting."""
        for value in self.values:
            varied = {self.option.removeprefix("inner."): value}
            rule = {"inner": {"name": self.inner}} if self.inner else {}
            if self.option.startswith("inner."):
                rule["inner"] |= varied
                varied = {}
            yield {**(self.fixed or {}), **varied, **rule}

    def __str__(self) -> str:
        """As the table says it."""
        ends = f"`{self.option}` {self.values[0]} to {self.values[-1]}"
        fixed = "".join(f", `{name}` {value}" for name, value in (self.fixed or {}).items())
        return f"{ends}{fixed}" + (f", over `{self.inner}`" if self.inner else "")


OVER_CONFIDENCE = Knob("inner.threshold", SURE, inner="confidence")
KNOBS: dict[str, Knob] = {
    "adas": OVER_CONFIDENCE,
    "bacd": Knob("upper", SURE),
    "confidence": Knob("threshold", SURE),
    "credit": OVER_CONFIDENCE,
    "d3llm": Knob("threshold", (0.1, 0.2, 0.5, 1.0)),
    "dawn": Knob("low_threshold", (0.85, 0.75, 0.65, 0.5)),
    "dparallel": Knob("threshold", (0.1, 0.2, 0.5, 1.0)),
    "dream": Knob("steps", FORWARDS),
    "dus": Knob("base", (2, 4, 8), {"levels": "dilated"}),
    "easing": Knob("threshold", SURE),
    "eb": Knob("gamma", (0.05, 0.1, 0.2, 0.5)),
    "entropy_distance": Knob("threshold", (0.2, 0.4, 0.8, 1.6)),
    "ete": Knob("threshold", SURE),
    "factor": Knob("factor", (0.125, 0.25, 0.5, 1.0)),
    "flash_verify": Knob("threshold", SURE),
    "frechet": Knob("margin", (0.75, 0.5, 0.25, 0.1)),
    "freedave": OVER_CONFIDENCE,
    "frontier": OVER_CONFIDENCE,
    "groups": Knob("steps", FORWARDS),
    "joint_threshold": Knob("threshold", SURE),
    "klass": Knob("threshold", SURE),
    "learn2pd": Knob("threshold", (0.99, 0.96, 0.9, 0.7)),
    "linear_spec": Knob("threshold", (0.3, 0.6, 0.9)),
    "localleap": Knob("relaxed_threshold", (0.85, 0.75, 0.6, 0.4)),
    "lopa": Knob("threshold", SURE),
    "order": Knob("per_step", OFTEN, {"positions": "left_to_right"}),
    "pc": Knob("steps", FORWARDS),
    "prior": Knob("inner.per_step", OFTEN, inner="static"),
    "prophet": Knob("thresholds", ([30.0, 20.0, 10.0], [15.0, 10.0, 5.0], [7.5, 5.0, 2.5]), inner="confidence"),
    "rcr": Knob("per_step", OFTEN),
    "remdm": Knob("per_step", OFTEN),
    "remix": Knob("threshold", SURE),
    "saber": Knob("minimum", OFTEN),
    "scout": OVER_CONFIDENCE,
    "slowfast": Knob("high", SURE),
    "spaced": Knob("start_stride", (8, 4, 2), inner="confidence"),
    "static": Knob("per_step", OFTEN),
    "tacg": Knob("floor", (0.88, 0.8, 0.7, 0.5)),
    "wino": Knob("threshold", (0.8, 0.7, 0.6, 0.5)),
}
HEADS = ("sampler", "AUP", "score at its end", "TPF there", "settings kept", "what is varied")


@dataclass(frozen=True)
class Setting:
    """What one setting did on each item: scores, useful tokens and forwards, float64 [items]."""

    right: Tensor
    tokens: Tensor
    forwards: Tensor

    @staticmethod
    def of(rows: Sequence[Result], right: Sequence[float]) -> Setting:
        counts = ([row.useful_tokens for row in rows], [row.nfe for row in rows])
        return Setting(*(torch.tensor(values, dtype=torch.float64) for values in (right, *counts)))

    def points(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens per forward and score in per cent [draws], of items that count ``weights`` [draws, items] times."""
        return weights @ self.tokens / (weights @ self.forwards), 100 * weights @ self.right / weights.sum(1)


@dataclass(frozen=True)
class Curve:
    """The settings of one sampler, one token per forward first."""

    name: str
    varied: str
    settings: Sequence[Setting]

    def points(self, weights: Tensor) -> list[list[tuple[float, float]]]:
        """Of each draw."""
        found = [setting.points(weights) for setting in self.settings]
        speeds, scores = (torch.stack(each, 1).tolist() for each in zip(*found, strict=True))
        return [list(zip(*draw, strict=True)) for draw in zip(speeds, scores, strict=True)]


class Sweep:
    """All samplers on the items of one model."""

    def __init__(self, model: Model, count: int, seed: int) -> None:
        self.model = model
        self.items = [item for task in mini.SHORT_ANSWERS for item in mini.generate(task, seed, count)]
        rows, one = self._decoded(part("sampler", "static"))
        oracle = self._decoded(Oracle([row.canvas for row in rows]))[1]
        self.curves, self.refused = [Curve("*oracle*", "told the answer", [one, oracle])], list[str]()
        for name, knob in track(list(KNOBS.items()), model.name, console=Console(stderr=True)):
            try:
                found = [self._decoded(part("sampler", name, **options))[1] for options in knob.settings()]
                self.curves.append(Curve(name, str(knob), [one, *found]))
            except UserError as error:
                self.refused.append(f"{name}: {error}")

    def _decoded(self, sampler: Sampler) -> tuple[list[Result], Setting]:
        cache = name_of(sampler) if sampler.traits.verifies else "none"
        decoder = Decoder(self.model, sampler, cache=cache, eos="none", gen_length=ANSWER, batch_size=BATCH)
        rows, right = answered(decoder, self.items)
        return rows, Setting.of(rows, right)

    def table(self) -> str:
        found = zip(self.curves, areas_of(self.curves, draws_of(len(self.items))), strict=True)
        order = sorted(found, key=lambda one: -one[1][0])
        return markdown.table(HEADS, [line(curve, areas) for curve, areas in order])


def draws_of(count: int) -> Tensor:
    """How often each of ``count`` items counts [1 + DRAWS, count]: once in the first draw, in the others as drawn with
    putting back."""
    noise = torch.Generator().manual_seed(0)
    drawn = torch.randint(0, count, (DRAWS, count), generator=noise)
    once = torch.ones(1 + DRAWS, count, dtype=torch.float64)
    once[1:] = torch.zeros(DRAWS, count, dtype=torch.float64).scatter_add_(1, drawn, once[1:])
    return once


def areas_of(curves: Sequence[Curve], weights: Tensor) -> list[list[float]]:
    """AUP of each curve in each draw; what no setting of any sampler scores more than is the best."""
    drawn = [curve.points(weights) for curve in curves]
    best = [max(score for points in draw for _, score in points) for draw in zip(*drawn, strict=True)]
    return [[area_of(points, top) for points, top in zip(draws, best, strict=True)] for draws in drawn]


def area_of(points: Points, best: float) -> float:
    """The leaderboard's number of the curve up to its end; it refuses a curve that goes further down."""
    return accuracy_under_parallelism(fast_enough(points, DROP), best, drop=DROP) or 0.0


def line(curve: Curve, areas: Sequence[float]) -> list[str]:
    """The first area is that of the items themselves, the others of draws."""
    points = curve.points(torch.ones(1, len(curve.settings[0].right), dtype=torch.float64))[0]
    kept = [point for point in fast_enough(points, DROP) if point[1] >= points[0][1] - DROP]  # as the area counts them
    speed, score = kept[-1]
    low, high = (quantile(areas[1:], share) for share in (0.025, 0.975))
    cells = [f"{areas[0]:.0f} ({low:.0f}-{high:.0f})", f"{score:.1f}", f"{speed:.2f}"]
    return [curve.name, *cells, f"{len(kept) - 1} of {len(points) - 1}", curve.varied]


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    options = comparison(__doc__, 5, "items per task; there are 13 tasks").parse_args(arguments)
    for name in options.models:
        sweep = Sweep(load(name), options.count, options.seed)
        print(f"### AUP, {sweep.model.name}, {len(sweep.items)} items\n\n{sweep.table()}\n", flush=True)
        print(*(f"- not run: {reason}" for reason in sweep.refused), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
