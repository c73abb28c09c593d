"""Block schedules on held-out items of both mini models: ``python -m experiments.compare.blocks``.

Prints Markdown tables for short answers (32 tokens) and long ones (128) of each model:

- AdaBlock against fixed blocks of each length, under one sampler, and how confidence varies over the answer
  (``experiments.compare.confidence_band``);
- several blocks at once (``ahead``), TCCF and the sliding window against fixed blocks of the same length, under the
  same sampler, with and without a cache.

Every schedule has the same end-of-text policy, ``fill_at_once``, since one that waits for a block's end would favour
some lengths. Differences and savings are paired over items, with 95 % intervals. late: forwards in which a mask of the
text that is not open reaches the threshold. forced: forwards that commit a token which does not. rows: query rows.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

from rich.console import Console
from rich.progress import track

from dllm import Decoder, Model, Result, UserError, load, part
from dllm.report.differences import paired_difference
from dllm.samplers.base import Sampler
from dllm.samplers.confidence import Confidence
from dllm.samplers.d3llm import D3LLM
from dllm.tasks.mini import tasks as mini
from dllm.tasks.mini.items import Sample
from experiments.compare.choosing import saving
from experiments.compare.confidence_band import BandRecorder, Seen, Watched, by_distance, regions, text_length
from experiments.compare.samplers import interval
from experiments.support import markdown
from experiments.support.held_out import answered, comparison
from experiments.support.markdown import percent
from experiments.support.scripts import counted, refusing

T = TypeVar("T")
BATCH, THRESHOLD = 52, 0.9
LENGTHS = {"short": (4, 8, 16, 32), "long": (8, 16, 32, 64)}  # of fixed blocks, and AdaBlock's without a delimiter
BAND_BLOCK = 32  # AdaBlock's own default, in which its paper looks at the confidences
AHEAD_BLOCK, WIDE = {"short": 8, "long": 16}, 4  # columns of a block; one that is as wide as this many
MARKER = {"short": '", "', "long": '"}, {"'}  # what TCCF takes for the end of the thought: the first item's end
SEPARATORS = ("\n", '", "', '"}, {"')  # what ends a line, a name of a list, a record
# As published for LLaDA and for Dream, by the model's shift: AdaBlock's delimiter threshold, d3LLM's form of its rule.
SURE, FORM = {0: 0.3, 1: 0.5}, {0: "llada", 1: "dream"}
BESIDE = ("score", "score less that of fixed", "NFE", "forwards saved")
ADA_HEADS = ("blocks", *BESIDE, "blocks an answer", "late", "forced")
AHEAD_HEADS = ("sampler, blocks", *BESIDE, "rows", "rows saved")


@dataclass(frozen=True)
class Column:
    """What one setting did on all items. seen: the forwards of each, where they were watched."""

    rows: list[Result]
    right: list[float]
    seen: list[list[Seen]]

    @property
    def nfe(self) -> list[int]:
        return [row.nfe for row in self.rows]

    @property
    def queries(self) -> list[int]:
        return [row.query_tokens for row in self.rows]


@dataclass(frozen=True)
class Schedule:
    """A sampler in blocks, with a cache. words: what a table calls it."""

    words: str
    sampler: Sampler
    blocks: str
    options: dict[str, object]
    cache: str = "none"


class Bench:
    """A model on items whose answers have one canvas. name: ``short`` or ``long``."""

    def __init__(self, model: Model, name: str, seed: int, count: int) -> None:
        self.model, self.name = model, name
        tasks = mini.SHORT_ANSWERS if name == "short" else mini.LONG_ANSWERS
        self.items: list[Sample] = [item for task in tasks for item in mini.generate(task, seed, count)]
        self.length = mini.longest(tasks[0])

    def column(self, one: Schedule) -> Column:
        blocks, recorder = part("blocks", one.blocks, **one.options), BandRecorder()
        decoder = Decoder(
            self.model, one.sampler, blocks, one.cache, "fill_at_once", gen_length=self.length, batch_size=BATCH
        )
        watched = isinstance(one.sampler, Watched)
        rows, right = answered(decoder, self.items, observe=recorder if watched else None)
        return Column(rows, right, [recorder.requests[number] for number in range(len(rows))] if watched else [])

    def difference(self, one: Column, base: Column) -> str:
        """How many points ``one`` scores more than ``base``."""
        gains: dict[str, list[float]] = {}
        for item, mine, other in zip(self.items, one.right, base.right, strict=True):
            gains.setdefault(item.task, []).append(mine - other)
        found = paired_difference(list(gains.values()))
        return f"{100 * found.mean:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"

    def against(self, one: Column, base: Column) -> list[str]:
        """The cells of score and forwards, beside those of ``base``."""
        same = one is base
        return [percent(one.right), "" if same else self.difference(one, base), interval(one.nfe, 1),
                "" if same else saving(one.nfe, base.nfe)]  # fmt: skip

    def ada(self) -> Iterator[str]:
        """The table of AdaBlock, then those of the confidences in fixed blocks."""
        lines, bases = [], {length: self.column(fixed(length)) for length in LENGTHS[self.name]}
        for length, base in self.tracked(bases.items(), "AdaBlock"):
            lines.append([f"fixed {length}", *self.against(base, base), *watched_cells(base)])
            for words, texts in self.delimiters().items():
                one = self.column(self.adablock(words, length, texts))
                lines.append([f"AdaBlock {length}, {words}", *self.against(one, base), *watched_cells(one)])
        yield self.titled("AdaBlock", markdown.table(ADA_HEADS, lines))
        seen, rows = bases[BAND_BLOCK].seen, bases[BAND_BLOCK].rows
        yield self.titled(f"regions of confidence in blocks of {BAND_BLOCK}", regions(seen, rows))
        yield self.titled(f"confidence by distance in blocks of {BAND_BLOCK}", by_distance(seen, rows))

    def delimiters(self) -> dict[str, tuple[str, ...]]:
        """Long answers have no newline, so that one never ends a block there."""
        found: dict[str, tuple[str, ...]] = {"newline": SEPARATORS[:1], "separators": SEPARATORS}
        return found if self.name == "short" else {"separators": SEPARATORS}

    def adablock(self, words: str, length: int, texts: Sequence[str]) -> Schedule:
        ids = [self.token(text) for text in texts]
        sure = SURE[self.model.config.prediction_shift]
        options = {"block_length": length, "delimiter_ids": ids, "delimiter_threshold": sure}
        return Schedule(words, Watched(THRESHOLD), "adablock", options)

    def token(self, text: str) -> int:
        if self.model.tokenizer is None:
            raise UserError(f"{self.model.name} has no tokenizer, and its answers are judged as text. Name another.")
        return self.model.tokenizer.encode(text)[-1]

    def several(self) -> str:
        """The table of several blocks at once, and of the schedules beside it; every group's first is its base."""
        lines = []
        for group in self.tracked(self.groups().values(), "several blocks"):
            columns = [self.column(one) for one in group]
            base = columns[0]
            for one, found in zip(group, columns, strict=True):
                saved = "" if found is base else saving(found.queries, base.queries)
                cells = [*self.against(found, base), f"{fmean(found.queries):.0f}", saved]
                lines.append([f"{one.words}", *cells])
        title = f"several blocks at once, blocks of {AHEAD_BLOCK[self.name]}"
        return self.titled(title, markdown.table(AHEAD_HEADS, lines))

    def groups(self) -> dict[str, list[Schedule]]:
        found = {f"confidence {bar}": self.group(f"confidence {bar}", Confidence(bar)) for bar in (THRESHOLD, 0.7)}
        found |= {f"d3llm {bar}": self.group(f"d3llm {bar}", self.d3llm(bar)) for bar in (0.5, 0.1)}
        length, sure, words = AHEAD_BLOCK[self.name], Confidence(THRESHOLD), f"confidence {THRESHOLD}"
        base: dict[str, object] = {"block_length": length}
        found[words] += [
            Schedule(f"{words}, ahead at 0.5", sure, "ahead", {**base, "opening_share": 0.5}),
            *(Schedule(f"{words}, tccf, then blocks of {fine}", sure, "tccf",
                       {**base, "fine_length": fine, "marker": MARKER[self.name]}) for fine in (4, 1)),
        ]  # fmt: skip
        cached = {words: sure, "d3llm 0.5": self.d3llm(0.5)}
        return found | {f"{words}, cached": self.cached(words, sampler) for words, sampler in cached.items()}

    def d3llm(self, threshold: float) -> D3LLM:
        return D3LLM(threshold, FORM[self.model.config.prediction_shift])

    def cached(self, words: str, sampler: Sampler) -> list[Schedule]:
        """One sampler in each schedule with the caches made for it."""
        caches = {"fixed": ("dual",), self.wide: ("dual",), "sliding": ("sliding",), "ahead": ("dual", "delayed")}
        return [
            Schedule(f"{words}, {name}, cache={cache}", sampler, name.split()[0], options, cache)
            for name, options in self.schedules().items() for cache in caches[name]
        ]  # fmt: skip

    def group(self, words: str, sampler: Sampler) -> list[Schedule]:
        """One sampler in each schedule without a cache."""
        return [Schedule(f"{words}, {name}", sampler, name.split()[0], options)
                for name, options in self.schedules().items()]  # fmt: skip

    def schedules(self) -> dict[str, dict[str, object]]:
        """Fixed blocks, those as wide as several of them, the window and several blocks at once: their options."""
        length = AHEAD_BLOCK[self.name]
        found = {"fixed": length, self.wide: WIDE * length, "sliding": length, "ahead": length}
        return {name: {"block_length": one} for name, one in found.items()}

    @property
    def wide(self) -> str:
        return f"fixed {WIDE * AHEAD_BLOCK[self.name]}"

    def tracked(self, found: Collection[T], words: str) -> Iterable[T]:
        title = f"{self.model.name}, {self.name}, {words}"
        return track(found, title, len(found), console=Console(stderr=True))

    def titled(self, words: str, table: str) -> str:
        return f"### {self.model.name}, {self.name} answers, {len(self.items)} items: {words}\n\n{table}"


def fixed(length: int) -> Schedule:
    return Schedule(f"fixed {length}", Watched(THRESHOLD), "fixed", {"block_length": length})


def watched_cells(one: Column) -> list[str]:
    """Blocks an answer, and the shares of late and forced forwards, means over items."""
    blocks = [len({seen.block for seen in forwards}) for forwards in one.seen]
    late = [fmean(float(seen.is_late(THRESHOLD, text_length(row))) for seen in forwards)
            for forwards, row in zip(one.seen, one.rows, strict=True)]  # fmt: skip
    forced = [fmean(float(seen.forced) for seen in forwards) for forwards in one.seen]
    return [f"{fmean(blocks):.1f}", *(f"{100 * fmean(share):.0f} %" for share in (late, forced))]


def sections(names: Sequence[str], seed: int, counts: dict[str, int]) -> Iterator[str]:
    """The tables in Markdown, each as soon as it is made."""
    for model in map(load, names):
        for name, count in counts.items():
            bench = Bench(model, name, seed, count)
            yield from bench.ada()
            yield bench.several()


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = comparison(__doc__, 8, "items of each of the 13 tasks with short answers")
    parser.add_argument("--long", type=counted, default=16, help="items of each of the 2 tasks with long ones")
    given = parser.parse_args(arguments)
    for section in sections(given.models, given.seed, {"short": given.count, "long": given.long}):
        print(section, end="\n\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
