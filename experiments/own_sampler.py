"""Compare ``scout`` with every published rule at its best setting: ``python -m experiments.own_sampler``.

A method's setting is chosen on one half of the items, and its figures are those of the other half. It is the one of
the fewest forwards among those that score at most ``SLACK`` below one token per forward. Both halves take both parts.
Prints Markdown tables: for each model and half the methods, then what each ingredient of ``scout`` gives, and perfect
models of list operations. ``--write`` puts them into docs/samplers/scout.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from dllm import Decoder, Model, Result, load
from dllm.analysis.paired import paired_difference
from dllm.canvas import Canvas
from dllm.compose.parts import build_part, composed
from dllm.contract import State
from dllm.prompts import Prompt
from dllm.samplers.base import Sampler
from dllm.samplers.confidence import Confidence
from dllm.samplers.eb import EntropyBound
from dllm.samplers.freedave import FreeDave
from dllm.samplers.oracle import Oracle
from dllm.samplers.scout import Scout
from dllm.samplers.static import Static
from dllm.tasks.mini import tasks as mini
from dllm.tasks.parallelbench.ideal import PROMPT, ideal, length
from dllm.tasks.parallelbench.theory import outputs
from experiments import markdown
from experiments.marked import write_marked
from experiments.scripts import refusing

ANSWER, BATCH = 32, 52
SLACK = 0.01  # of the score: one item of a half of 104
PAGE = Path(__file__).parents[1] / "docs" / "samplers" / "scout.md"
BARS = {"confidence.threshold": (0.8, 0.9, 0.95), "eb.gamma": (0.02, 0.05, 0.1, 0.2), "frechet.margin": (0.5, 0.75)}
FEWER = {"confidence.threshold": (0.8, 0.9), "eb.gamma": (0.05, 0.1, 0.2), "frechet.margin": (0.5,)}
ROWS = (8, 16, 32)
# FEWER: the rules that scout is tried over. PUBLISHED: rules by name, with the settings that are tried.
PUBLISHED = {
    **BARS,
    "factor.factor": (0.25, 0.5, 1.0),
    "dparallel.threshold": (0.1, 0.2, 0.45),
    "localleap.threshold": (0.9, 0.95),
    "entropy_distance.threshold": (),
    "easing.alpha": (0.1, 0.3),
    "credit.alpha": (),
    "klass.threshold": (),
    "tacg.threshold": (),
    "bacd.upper": (),
    "dawn.threshold": (),
    "adas.weight": (),
    "lopa.branching_factor": (2, 4),
    "ete.threshold": (0.9, 0.95),
    "learn2pd.threshold": (),
}
HEADS = ("method", "setting", "score", "score less that of the best", "NFE", "fewer than the best", "oracle / NFE",
         "rows", "CPU ms")  # fmt: skip


@dataclass(frozen=True)
class Column:
    """One setting on all items. rows: of all its forwards, for each item. seconds: CPU time for all of them."""

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


def settings(name: str, values: Sequence[Any]) -> Iterator[tuple[str, list[str]]]:
    """What is said of each setting of a rule, and its overrides; ``name`` is the rule's and its option's."""
    rule, option = name.split(".")
    yield from ((f"`{option}` {value}", [f"sampler={rule}", f"sampler.{option}={value}"]) for value in values)
    if not values:
        yield "defaults", [f"sampler={rule}"]


def wrapped(
    wrapper: str, option: str, values: Sequence[int], rules: Mapping[str, Sequence[float]]
) -> Iterator[tuple[str, list[str]]]:
    """The settings of a wrapper over some rules with their bars."""
    for (name, bars), value in product(rules.items(), values):
        rule, bar = name.split(".")
        outer = [f"sampler={wrapper}", f"sampler/inner={rule}", f"sampler.{option}={value}"]
        yield from (
            (f"`{option}` {value} over `{rule}` {one}", [*outer, f"sampler.inner.{bar}={one}"]) for one in bars
        )


def methods() -> Iterator[tuple[str, str, list[str]]]:
    """Every method, the words for a setting of it, and its overrides."""
    for name, values in PUBLISHED.items():
        yield from ((name.split(".")[0], *setting) for setting in settings(name, values))
    yield from (("freedave", *setting) for setting in wrapped("freedave", "draft_steps", (4, 8), BARS))
    for rows in ROWS:
        yield from ((f"**scout**, {rows} rows", *setting) for setting in wrapped("scout", "rows", (rows,), FEWER))


class Fixed(Scout):
    """The inner rule goes on as on the last scores with a chance of one fifth, whatever came true."""

    def _came_true(self, now: Canvas, state: State) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(state["kept"]), torch.zeros_like(state["asked"])


class Unrepeated(Scout):
    """The inner rule is not expected to go on as on the last scores."""

    def _came_true(self, now: Canvas, state: State) -> tuple[Tensor, Tensor]:
        return torch.full_like(state["kept"], -1), torch.zeros_like(state["asked"])


class Flat(Scout):
    """A token's chance is its probability, squared."""

    def weight(self, first: Tensor, ratio: Tensor) -> Tensor:
        return (first * ratio) ** 2


INNER = EntropyBound(0.05)
ABLATIONS: dict[str, Sampler] = {
    "scout over `eb` 0.05": Scout(INNER), "one token a position": Scout(INNER, tokens=1),
    "two tokens a position": Scout(INNER, tokens=2), "chance of a token p^2, not (p1 p)^2": Flat(INNER),
    "chance of a repeated step 1/5, not learned": Fixed(INNER), "no repeated steps": Unrepeated(INNER),
    "repeated steps alone (freedave)": FreeDave(INNER, 8), "2 rows": Scout(INNER, 2), "4 rows": Scout(INNER, 4),
    "least 0.05": Scout(INNER, least=0.05), "least 0.002": Scout(INNER, least=0.002), "the inner rule alone": INNER,
}  # fmt: skip


class Bench:
    """All methods on the items of one model."""

    def __init__(self, model: Model, count: int, seed: int) -> None:
        self.model = model
        drawn = [(at, item) for task in mini.SHORT_ANSWERS for at, item in enumerate(mini.generate(task, seed, count))]
        self.items, self.half = [item for _, item in drawn], [at % 2 for at, _ in drawn]
        self.static = self.column("static", "one token", Static())
        reference = [row.canvas for row in self.static.results]
        self.oracle = self.column("oracle", "told the answer", Oracle(reference))
        self.columns: list[Column] = []
        for method, words, overrides in track(list(methods()), model.name, console=Console(stderr=True)):
            self.columns.append(self.column(method, words, build_part("sampler", composed(overrides)["sampler"])))

    def column(self, method: str, setting: str, sampler: Sampler) -> Column:
        decoder = Decoder(self.model, sampler, eos="keep", gen_length=ANSWER, batch_size=BATCH)
        prompts: list[Prompt] = [item.messages for item in self.items]
        begun = time.process_time()
        results = decoder(prompts)
        spent = time.process_time() - begun
        right = [mini.score(item, row.text)["score"] for item, row in zip(self.items, results, strict=True)]
        return Column(method, setting, results, right, spent)

    def of(self, half: int, values: Sequence[float]) -> list[float]:
        return [value for value, at in zip(values, self.half, strict=True) if at == half]

    def chosen(self, half: int) -> dict[str, Column]:
        """The best setting of each method by ``half``; without a setting that scores enough, the best-scoring one."""
        bar = fmean(self.of(half, self.static.right)) - SLACK - 1e-9
        best: dict[str, tuple[tuple[float, float], Column]] = {}
        for column in self.columns:
            score, nfe = fmean(self.of(half, column.right)), fmean(self.of(half, column.nfe))
            rank = (0.0, nfe) if score >= bar else (1 - score, nfe)
            if column.method not in best or rank < best[column.method][0]:
                best[column.method] = rank, column
        return {method: column for method, (_, column) in best.items()}

    def table(self, half: int) -> str:
        """Settings chosen on the other half, shown on ``half``."""
        found = self.chosen(1 - half)
        bar = fmean(self.of(1 - half, self.static.right)) - SLACK - 1e-9
        fit = [one for one in found.values()
               if "scout" not in one.method and fmean(self.of(1 - half, one.right)) >= bar]  # fmt: skip
        best = min(fit, key=lambda one: fmean(self.of(1 - half, one.nfe)))
        order = sorted(found.values(), key=lambda one: fmean(self.of(half, one.nfe)))
        return markdown.table(HEADS, [self.line(half, one, best) for one in [self.oracle, *order, self.static]])

    def line(self, half: int, one: Column, best: Column) -> list[str]:
        nfe, other = self.of(half, one.nfe), self.of(half, best.nfe)
        gains: dict[str, list[float]] = {}
        for item, at, mine, yours in zip(self.items, self.half, one.right, best.right, strict=True):
            if at == half:
                gains.setdefault(item.task, []).append(mine - yours)
        score = paired_difference(list(gains.values()))
        against = [f"{100 * score.mean:+.1f} ({100 * score.low:+.1f} to {100 * score.high:+.1f})", saving(nfe, other)]
        if one is best:
            against = ["the best published", ""]
        return [
            one.method, one.setting, f"{100 * fmean(self.of(half, one.right)):.1f}", against[0], f"{fmean(nfe):.2f}",
            against[1], f"{fmean(self.of(half, self.oracle.nfe)) / fmean(nfe):.3f}",
            f"{fmean(self.of(half, one.rows)):.1f}", f"{1000 * one.seconds / len(self.items):.0f}",
        ]  # fmt: skip

    def ablation(self) -> str:
        lines = []
        for words, sampler in ABLATIONS.items():
            one = self.column("", words, sampler)
            lines.append([words, f"{100 * fmean(one.right):.1f}", f"{fmean(one.nfe):.2f}", f"{fmean(one.rows):.1f}"])
        return markdown.table(("what differs", "score", "NFE", "rows"), lines)


def saving(ours: Sequence[float], other: Sequence[float]) -> str:
    """How many per cent fewer forwards, with the 95 % interval of a ratio of paired means (delta method)."""
    ratio, count = fmean(ours) / fmean(other), len(ours)
    rest = [one - ratio * two for one, two in zip(ours, other, strict=True)]
    half = 1.96 * sqrt(sum(value**2 for value in rest) / max(1, count - 1) / count) / fmean(other)
    return f"{100 * (1 - ratio):.1f} % ±{100 * half:.1f}"


LISTS = {"copy": 6, "shuffle": 6, "replace_random": 6, "insert_random": 5, "remove_random": 6}
RULES: dict[str, Sampler] = {
    "confidence 0.9": Confidence(0.9), "eb 0.05": INNER, "freedave over eb": FreeDave(INNER, 8),
    "scout over eb": Scout(INNER), "scout over confidence": Scout(Confidence(0.9)),
}  # fmt: skip


def perfect() -> str:
    """Forwards on models whose marginals are exact: there is no error but the sampler's."""
    lines = []
    for operation, n in LISTS.items():
        model, valid = ideal(operation, n), set(map(tuple, outputs(operation, n)))
        decoders = [Decoder(model, rule, eos="keep", gen_length=length(operation, n)) for rule in RULES.values()]
        rows = [decoder(PROMPT)[0] for decoder in decoders]
        cells = [f"{row.nfe}" if tuple(row.canvas) in valid else f"{row.nfe}, wrong" for row in rows]
        lines.append([f"{operation}, {n} items", *cells])
    return markdown.table(("task", *RULES), lines)


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["mini-llada", "mini-dream"], help="names or folders")
    parser.add_argument("--count", type=int, default=16, help="items per task; there are 13 tasks")
    parser.add_argument("--seed", type=int, default=1, help="seed of the held-back items")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE.name}")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    parts = []
    for name in options.models:
        bench = Bench(load(name), options.count, options.seed)
        for half, words in enumerate(("first", "second")):
            count = len(bench.of(half, bench.static.right))
            parts.append(f"### {name}, {words} half, {count} items\n\n{bench.table(half)}")
        parts.append(f"### {name}, ingredients, {len(bench.items)} items\n\n{bench.ablation()}")
    parts.append(f"### Forwards on perfect models\n\n{perfect()}")
    print("\n\n".join(parts))
    if options.write:
        write_marked(PAGE, "own_sampler", "\n\n".join(parts) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
