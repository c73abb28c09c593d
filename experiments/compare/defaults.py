"""Every part at its default, beside its own best published setting: ``python -m experiments.compare.defaults``.

Each setting decodes held-out items of the 13 tasks with short answers. The published setting that scores best on the
items of ``--seed`` is the one compared. Where it is ahead of the default by ``--bar`` points on any model, both decode
other items, ``--again`` of each task from the next seed, and these count alone.

Prints a Markdown table per model, with 95 % intervals: of the difference Bonett and Price's, of paired scores. What a
part brings along comes with it as on the command line; caches have blocks of 8, all others one of 32. The exit code is
1 when a default is more than five points worse, surely worse at all, and warns of nothing. ``--keep FILE`` keeps what
was decoded, and goes on from there.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import torch
from rich.console import Console
from rich.progress import track

from dllm import Decoder, Model, UserError, load
from dllm.compose.parts import build_part, choices, composed, configurations
from dllm.errors import SettingWarning, first_line, warn_once
from dllm.report.differences import PairedDifference, paired_difference
from dllm.tasks.mini import tasks as mini
from dllm.tasks.mini.items import Sample
from experiments.compare.published_settings import GROUPS, LENGTH, published_settings
from experiments.support import markdown
from experiments.support.held_out import answered
from experiments.support.markdown import percent
from experiments.support.scripts import counted, refusing

BATCH, WORST, TOO_FAR = 52, 0.05, "**too far**"
HEADS = ("part", "default", "NFE", "best published setting", "its score", "NFE", "difference", "items", "so")
PARTS_WITHOUT = ("sampler=oracle", "cache=finished")  # needs the answer; is for causal models


@dataclass(frozen=True)
class Scores:
    """Of one setting. words: of the command line. right, nfe: by item. warning: what the setting warns of. refused: why
    it was not decoded."""

    model: str
    words: str
    seed: int
    right: list[float]
    nfe: list[int]
    warning: str = ""
    refused: str = ""


class Bench:
    """A model on held-out items. kept: a file with all that was decoded before, to which every setting is added."""

    def __init__(self, model: Model, kept: Path | None) -> None:
        self.model, self.kept = model, kept
        lines = kept.read_text().splitlines() if kept is not None and kept.exists() else []
        self.known = {key_of(one): one for one in (Scores(**json.loads(line)) for line in lines)}

    def scores(self, words: str, seed: int, count: int) -> Scores:
        """Of a setting on ``count`` items of each task."""
        found = self.known.get((self.model.name, words, seed, count * len(mini.SHORT_ANSWERS)))
        if found is None:
            items = [sample for task in mini.SHORT_ANSWERS for sample in mini.generate(task, seed, count)]
            found = self.decoded(words, seed, items)
            self.known[key_of(found)] = found
            if self.kept is not None and not found.refused:
                with self.kept.open("a") as file:
                    file.write(json.dumps(asdict(found)) + "\n")
        return found

    def decoded(self, words: str, seed: int, items: Sequence[Sample]) -> Scores:
        config = composed([f"model={self.model.name}", f"gen_length={LENGTH}", *shlex.split(words)])
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always", SettingWarning)
            warn_once.cache_clear()
            try:
                parts = {group: build_part(group, config[group]) for group in GROUPS}
                rows, right = answered(Decoder(self.model, **parts, gen_length=LENGTH, batch_size=BATCH), items)
            except UserError as error:
                return Scores(self.model.name, words, seed, [], [], refused=first_line(error))
        doubts = [str(one.message) for one in heard if issubclass(one.category, SettingWarning)]
        return Scores(self.model.name, words, seed, right, [row.nfe for row in rows], " ".join(doubts))


def key_of(one: Scores) -> tuple[str, str, int, int]:
    return one.model, one.words, one.seed, len(one.right)


def beside(part: str) -> str:
    """What is beside a part, in words of the command line. Caches differ where there are several blocks."""
    group, _, name = part.partition("=")
    if group != "cache":
        return ""
    rules = {"dkv_greedy": "order", "flash_verify": "flash_verify", "linear_spec": "linear_spec"}
    rule = [f"sampler={rules[name]}"] if name in rules else []
    return " ".join([*rule, *["blocks.block_length=8"] * ("block_length" in configurations(group, name)["blocks"])])


@dataclass(frozen=True)
class Row:
    """A part's default and the published setting that was best on the first items, on the items that count."""

    part: str
    default: Scores
    setting: str
    best: Scores

    def difference(self) -> PairedDifference:
        """The default's score less that of the published setting; each task is a sub-task."""
        each = [one - other for one, other in zip(self.default.right, self.best.right, strict=True)]
        size = len(each) // len(mini.SHORT_ANSWERS)
        return paired_difference([each[at : at + size] for at in range(0, len(each), size)])

    def verdict(self) -> str:
        """A default that loses more than five points, and surely some, must warn."""
        found = self.difference()
        if found.mean >= -WORST:
            return "stays"
        if self.default.warning:
            return "warns"
        return TOO_FAR if found.high < 0 else "stays, not surely worse"

    def __str__(self) -> str:
        found = self.difference()
        points = f"{100 * found.mean:+.0f} ({100 * found.low:+.0f} to {100 * found.high:+.0f})"
        return markdown.line((
            self.part, percent(self.default.right), f"{fmean(self.default.nfe):.1f}", f"`{self.setting}`",
            percent(self.best.right), f"{fmean(self.best.nfe):.1f}", points, str(found.items), self.verdict(),
        ))  # fmt: skip


def first_row(bench: Bench, part: str, settings: Sequence[str], seed: int, count: int) -> Row | str:
    """The part on the first items, or why there is nothing to compare."""
    words = f"{part} {beside(part)}".strip()
    default = bench.scores(words, seed, count)
    if default.refused:
        return f"{words}: {default.refused}"
    tried = {one: bench.scores(f"{words} {one}", seed, count) for one in settings}
    right = {one: sum(found.right) for one, found in tried.items() if not found.refused}
    if not right:
        return f"{words} ({percent(default.right)}): no other setting is published"
    best = max(right, key=lambda one: right[one])
    return Row(words, default, best, tried[best])


def first_rows(bench: Bench, parts: Sequence[str], seed: int, count: int) -> dict[str, Row | str]:
    """By part."""
    published = published_settings()
    return {
        part: first_row(bench, part, published.get(part, []), seed, count)
        for part in track(parts, f"{bench.model.name}, first items", console=Console(stderr=True))
    }


def counting(bench: Bench, found: dict[str, Row | str], doubted: set[str], seed: int, count: int) -> list[Row | str]:
    """The rows that count: of the ``doubted`` parts, on other items."""
    return [
        one if isinstance(one, str) or part not in doubted else Row(
            one.part, bench.scores(one.part, seed, count), one.setting,
            bench.scores(f"{one.part} {one.setting}", seed, count))
        for part, one in track([*found.items()], f"{bench.model.name}, other items", console=Console(stderr=True))
    ]  # fmt: skip


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    known = [f"{group}={name}" for group in GROUPS for name in choices(group) if f"{group}={name}" not in PARTS_WITHOUT]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["mini-llada", "mini-dream"], help="names")
    parser.add_argument("--count", type=counted, default=4, help="items per task to choose by")
    parser.add_argument("--again", type=counted, default=16, help="other items per task where the bar is reached")
    parser.add_argument("--bar", type=float, default=3.5, help="in points; 3.5 are two items of 52")
    parser.add_argument("--seed", type=int, default=0, help="seed of the items to choose by")
    parser.add_argument("--parts", nargs="+", default=known, choices=known, metavar="GROUP=NAME")
    parser.add_argument("--keep", type=Path, help="a file for what was decoded; remove it when code or defaults change")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    benches = [Bench(load(name), given.keep) for name in given.models]
    first = [first_rows(bench, given.parts, given.seed, given.count) for bench in benches]
    doubted = {part for found in first for part, one in found.items()
               if isinstance(one, Row) and one.difference().mean <= -given.bar / 100}  # fmt: skip
    good = True
    for bench, chosen in zip(benches, first, strict=True):
        found = counting(bench, chosen, doubted, given.seed + 1, given.again)
        shown = [one for one in found if isinstance(one, Row)]
        good &= not any(one.verdict() == TOO_FAR for one in shown)
        print(f"\n### {bench.model.name}\n\n{markdown.head(HEADS)}", *shown, "", sep="\n")
        print(*(f"- {one}" for one in found if isinstance(one, str)), sep="\n", flush=True)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
