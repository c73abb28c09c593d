"""Compare ``scout`` with every published rule at its best setting: ``python -m experiments.compare.own_sampler``.

The items of several seeds are pooled, and every second one of a task is of the other half. A method's setting is chosen
on one half, and its figures are those of the other half. It is the one of the fewest forwards among those that score at
most ``SLACK`` below one token per forward. Both halves take both parts.
Prints Markdown tables: for each model and half the methods, what single splits say, what more items to choose on would
change, what each ingredient of ``scout`` gives, and perfect models of list operations.

Every sampler that ships takes part, with what it remasks or replaces. The demo models were not trained to replace
tokens, which ``joint_threshold`` needs; it runs all the same.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from dllm import Decoder, Model, UserError, load, part
from dllm.contract import State
from dllm.contract.canvas import Canvas
from dllm.report.differences import paired_difference
from dllm.samplers.base import Sampler
from dllm.samplers.confidence import Confidence
from dllm.samplers.eb import EntropyBound
from dllm.samplers.freedave import FreeDave
from dllm.samplers.oracle import Oracle
from dllm.samplers.scout import Scout
from dllm.samplers.static import Static
from dllm.tasks.mini import tasks as mini
from dllm.tasks.mini.items import Sample
from dllm.tasks.parallelbench.ideal import PROMPT, ideal, length
from dllm.tasks.parallelbench.theory import outputs
from experiments.compare.choosing import DRAWS, Column, Place, Pool, mean_at, saving
from experiments.support import markdown
from experiments.support.held_out import answered
from experiments.support.scripts import counted, refusing

ANSWER, BATCH = 32, 52
SHOWN = 6  # methods in a table, those of the fewest forwards
Grid = Mapping[str, Sequence[Any]]  # values of each option, around the published ones; all combinations are tried
# Rules that go by the scores of one forward, so they fit into every wrapper that knows what they go by.
BARS: dict[str, Grid] = {
    "confidence": {"threshold": (0.8, 0.9, 0.95)},
    "localleap": {"threshold": (0.9,), "relaxed_threshold": (0.75, 0.85)},
    "frechet": {"margin": (0.25, 0.5, 0.75)},
    "eb": {"gamma": (0.05, 0.1, 0.2)},
}
FEWER: dict[str, Grid] = BARS | {  # for scout
    "confidence": {"threshold": (0.9,)}, "localleap": {"threshold": (0.9,), "relaxed_threshold": (0.85,)},
    "frechet": {"margin": (0.5,)}, "eb": {"gamma": (0.05, 0.1)},
}  # fmt: skip
ROWS = (8, 16)
PUBLISHED: list[tuple[str, Grid]] = [
    *BARS.items(),
    ("factor", {"factor": (0.25, 0.75), "commit_last": (True, False)}),
    ("dparallel", {"threshold": (0.1, 0.2, 0.45)}),
    ("d3llm", {"threshold": (0.1, 0.45)}),  # as dparallel: there is one block
    ("static", {"per_step": (2, 4)}),
    ("dream", {"alg": ("maskgit_plus",), "steps": (8, 16)}),
    ("order", {"positions": ("left_to_right",), "per_step": (2, 4)}),
    ("groups", {"steps": (8, 16)}),
    ("pc", {"steps": (8, 16)}),
    ("dus", {"levels": ("binary", "dilated")}),
    ("entropy_distance", {"threshold": (0.4, 0.8), "penalty": (0.005, 0.02)}),
    ("easing", {"threshold": (0.9, 0.95), "alpha": (0.1, 0.3)}),
    ("bacd", {"lower": (0.6, 0.8), "upper": (0.9, 0.95)}),
    ("klass", {"threshold": (0.6, 0.9), "kl": (0.1,), "history": (1,)}),
    ("tacg", {"floor": (0.72, 0.8), "streak": (2,), "escape": (0.9,)}),
    ("tacg", {"form": ("extras",), "ratio": (0.1,), "most": (1,), "without_base": (False,), "escape": (0.97,)}),
    ("dawn", {"threshold": (0.9,), "induced_threshold": (0.7, 0.85), "low_threshold": (0.75, 0.85)}),
    ("learn2pd", {"threshold": (0.9, 0.96, 0.99)}),
    ("lopa", {"threshold": (0.9, 0.95), "branching_factor": (2, 4)}),
    ("lopa", {"threshold": (0.9,), "score": ("confidence",), "share": (0.5,), "alpha": (0.5,)}),
    ("ete", {"threshold": (0.9,), "explore_min_commit": (1, 2)}),
    ("wino", {"threshold": (0.8,), "back_threshold": (0.5, 0.9)}),
    ("saber", {"minimum": (4, 8), "backtrack": (8,)}),
    ("rcr", {"per_step": (2, 4)}),
    ("remdm", {"per_step": (2, 4), "extra": (1,), "number": (1,)}),
    ("joint_threshold", {"threshold": (0.7, 0.9), "edit_threshold": (0.5, 0.9)}),
    ("slowfast", {"high": (0.85, 0.9), "explore": (6, 8)}),
    ("remix", {"threshold": (0.8, 0.9), "mix": (0.5,)}),
]
# Wrappers: the rules that each is tried over, besides its own options.
SURE: Grid = {"threshold": (0.8, 0.9)}
WRAPPERS: list[tuple[str, Grid, Mapping[str, Grid]]] = [
    ("freedave", {"draft_steps": (4, 8)}, BARS),
    ("credit", {"alpha": (0.3, 0.65)}, {"confidence": {"threshold": (0.8, 0.9, 0.95)}}),
    ("adas", {"weight": (1, 4)}, {"confidence": SURE, "eb": {"gamma": (0.1, 0.2)}}),
    ("frontier", {"width": (8, 16)}, {"confidence": SURE}),
    ("prophet", {"thresholds": ([7.5, 5.0, 2.5], [15.0, 10.0, 5.0])}, {"confidence": SURE}),
    ("prophet", {"region": ("offset",), "start": (0,), "length": (5, 16)}, {"confidence": SURE}),
    ("spaced", {"start_stride": (4, 8)}, {"confidence": {"threshold": (0.8,)}}),
    ("prior", {"sigma": (10,)}, {"static": {"per_step": (2, 4)}}),
    ("prior", {"over_thresholds": (True,)}, {"confidence": {"threshold": (0.5,)}}),
]
HEADS = ("method", "setting", "score", "score less that of the best", "NFE", "fewer than the best", "oracle / NFE",
         "rows", "CPU ms")  # fmt: skip


def combinations(grid: Grid) -> Iterator[dict[str, Any]]:
    """Every combination of the options' values."""
    yield from (dict(zip(grid, values, strict=True)) for values in product(*grid.values()))


def said(options: Mapping[str, Any]) -> str:
    return ", ".join(f"`{option}` {value}" for option, value in options.items())


def wrapped(grid: Grid, rules: Mapping[str, Grid]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is said of each setting of a wrapper over some rules with theirs, and its options."""
    for outer, (rule, bars) in product(combinations(grid), rules.items()):
        for inner in combinations(bars):
            words = f"{said(outer)} over `{rule}` {', '.join(map(str, inner.values()))}"
            yield words, {**outer, "inner": {"name": rule, **inner}}


def methods() -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Every method, the words for a setting of it, and its sampler with its options."""
    for rule, grid in PUBLISHED:
        yield from ((rule, said(options), rule, options) for options in combinations(grid))
    for rule, grid, rules in WRAPPERS:
        yield from ((rule, words, rule, options) for words, options in wrapped(grid, rules))
    for rows in ROWS:
        own = wrapped({"candidates": (rows,)}, FEWER)
        yield from ((f"**scout**, {rows} rows", words, "scout", options) for words, options in own)


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
    "scout over `eb` 0.05": Scout(INNER), "one token a position": Scout(INNER, top_k=1),
    "two tokens a position": Scout(INNER, top_k=2), "chance of a token p^2, not (p1 p)^2": Flat(INNER),
    "chance of a repeated step 1/5, not learned": Fixed(INNER), "no repeated steps": Unrepeated(INNER),
    "repeated steps alone (freedave)": FreeDave(INNER, 8), "2 rows": Scout(INNER, 2), "4 rows": Scout(INNER, 4),
    "min_probability 0.05": Scout(INNER, min_probability=0.05),
    "min_probability 0.002": Scout(INNER, min_probability=0.002), "the inner rule alone": INNER,
}  # fmt: skip


class Bench:
    """All methods on the items of one model. pool: the seed and the half of each item."""

    def __init__(self, model: Model, count: int, seeds: Sequence[int]) -> None:
        self.model = model
        drawn = [(Place(seed, at % 2), item) for seed in seeds for task in mini.SHORT_ANSWERS
                 for at, item in enumerate(mini.generate(task, seed, count))]  # fmt: skip
        self.items, places = [item for _, item in drawn], [place for place, _ in drawn]
        static = self.column("static", "one token", Static())
        reference = [row.canvas for row in static.results]
        self.oracle = self.column("oracle", "told the answer", Oracle(reference))
        self.columns: list[Column] = []
        self.refused: dict[str, str] = {}
        for method, words, rule, options in track(list(methods()), model.name, console=Console(stderr=True)):
            try:
                self.columns.append(self.column(method, words, part("sampler", rule, **options)))
            except UserError as error:
                self.refused[method] = str(error)
        self.pool = Pool(places, static, self.columns)

    def column(self, method: str, setting: str, sampler: Sampler, items: Sequence[Sample] | None = None) -> Column:
        """items: others than all."""
        asked = self.items if items is None else items
        decoder = Decoder(self.model, sampler, eos="none", gen_length=ANSWER, batch_size=BATCH)
        begun = time.process_time()
        results, right = answered(decoder, asked)
        return Column(method, setting, results, right, time.process_time() - begun)

    def table(self, half: int) -> str:
        """Settings chosen on the other half, shown on ``half``."""
        on, shown = self.pool.of(1 - half), self.pool.of(half)
        found = self.pool.chosen(on)
        best = self.pool.best_published(found, on)
        order = sorted(found.values(), key=lambda one: mean_at(shown, one.nfe))
        lines = [self.line(shown, one, best) for one in [self.oracle, *order[:SHOWN], self.pool.static]]
        return markdown.table(HEADS, lines)

    def line(self, shown: Sequence[int], one: Column, best: Column) -> list[str]:
        nfe = mean_at(shown, one.nfe)
        gains: dict[str, list[float]] = {}
        for at in shown:
            gains.setdefault(self.items[at].task, []).append(one.right[at] - best.right[at])
        score = paired_difference(list(gains.values()))
        against = [f"{100 * score.mean:+.1f} ({100 * score.low:+.1f} to {100 * score.high:+.1f})",
                   saving([one.nfe[at] for at in shown], [best.nfe[at] for at in shown])]  # fmt: skip
        if one is best:
            against = ["the best published", ""]
        return [
            one.method, one.setting, f"{100 * mean_at(shown, one.right):.1f}", against[0], f"{nfe:.2f}",
            against[1], f"{mean_at(shown, self.oracle.nfe) / nfe:.3f}",
            f"{mean_at(shown, one.rows):.1f}", f"{1000 * one.seconds / len(self.items):.0f}",
        ]  # fmt: skip

    def ablation(self) -> tuple[int, str]:
        """On the items of the first seed: their number, and the table."""
        first = self.pool.places[0].seed
        items = [item for item, place in zip(self.items, self.pool.places, strict=True) if place.seed == first]
        lines = []
        for words, sampler in ABLATIONS.items():
            one = self.column("", words, sampler, items)
            lines.append([words, f"{100 * fmean(one.right):.1f}", f"{fmean(one.nfe):.2f}", f"{fmean(one.rows):.1f}"])
        return len(items), markdown.table(("what differs", "score", "NFE", "rows"), lines)


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
        decoders = [Decoder(model, rule, eos="none", gen_length=length(operation, n)) for rule in RULES.values()]
        rows = [decoder(PROMPT)[0] for decoder in decoders]
        cells = [f"{row.nfe}" if tuple(row.canvas) in valid else f"{row.nfe}, wrong" for row in rows]
        lines.append([f"{operation}, {n} items", *cells])
    return markdown.table(("task", *RULES), lines)


def sections(models: Sequence[str], count: int, seeds: Sequence[int]) -> Iterator[str]:
    """The tables in Markdown, each as soon as it is made."""
    for name in models:
        bench = Bench(load(name), count, seeds)
        pool = bench.pool
        for half, words in enumerate(("first", "second")):
            yield f"### {bench.model.name}, {words} half, {len(pool.of(half))} items\n\n{bench.table(half)}"
        yield from (f"Not run: {reason}" for reason in bench.refused.values())
        size = len(pool.of(0, seeds[0]))
        yield f"### {bench.model.name}, chosen on a half of a seed, {size} items\n\n{pool.splits()}"
        yield f"### {bench.model.name}, by the items to choose on, {DRAWS} draws\n\n{pool.sizes()}"
        items, table = bench.ablation()
        yield f"### {bench.model.name}, ingredients, {items} items\n\n{table}"
    yield f"### Forwards on perfect models\n\n{perfect()}"


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["mini-llada", "mini-dream"], help="names or folders")
    parser.add_argument("--count", type=counted, default=4, help="items per task and seed; there are 13 tasks")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of the held-out items")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    for section in sections(options.models, options.count, options.seeds):
        print(section, end="\n\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
