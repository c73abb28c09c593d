"""Every cache at its defaults on held-out items of both mini models: ``python -m experiments.compare.caches``.

Prints a Markdown table per model: the score, how many answers are those of ``cache=none`` in the same blocks, forwards,
and the share of the query rows that remains; at one token per step and with the default sampler. ``--count 16``
takes 16 items of each task; ``--tasks`` others than the thirteen of 32 tokens, the long ones with answers of 128. The
exit code is 1 when a cache computes much more than none does.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from statistics import fmean

from rich.console import Console
from rich.progress import track

from dllm import Decoder, Model, Result, UserError, load, part
from dllm.cache.base import Cache
from dllm.compose.parts import choices
from dllm.tasks.mini import tasks as mini
from dllm.tasks.mini.items import Sample
from experiments.support import markdown
from experiments.support.held_out import answered_by_length, comparison
from experiments.support.markdown import percent
from experiments.support.scripts import refusing

BATCH = 52
HEADS = ("cache", "score", "as none", "NFE", "query rows", "FLOPs")
# Policies published without blocks bring their own schedule, as on the command line.
BLOCKS_OF = {"elastic": "whole", "flash_dllm": "whole", "window": "whole", "sliding": "sliding"}


@dataclass(frozen=True)
class Column:
    """What one cache did on all items, with one sampler."""

    rows: list[Result]
    right: list[float]


def schedule_of(cache: str | Cache) -> str:
    return BLOCKS_OF.get(cache, "fixed") if isinstance(cache, str) else "fixed"


def column(
    model: Model, cache: str | Cache, sampler: str, block: int, items: list[Sample], schedule: str = "fixed"
) -> Column:
    """Raises UserError for parts that refuse each other."""
    blocks = part("blocks", schedule) if schedule == "whole" else part("blocks", schedule, block_length=block)
    eos = "stop_at_eos" if schedule == "sliding" else "fill_after_block"  # a window that slides closes no block

    def decoder_of(length: int) -> Decoder:
        return Decoder(model, sampler, blocks, cache, eos, gen_length=length, batch_size=BATCH)

    return Column(*answered_by_length(decoder_of, items))


def line(name: str, one: Column, none: Column) -> str:
    same = [float(row.tokens == other.tokens) for row, other in zip(one.rows, none.rows, strict=True)]
    nfe = fmean(row.nfe for row in one.rows)
    rows, flops = (
        sum(getattr(row, key) for row in one.rows) / sum(getattr(row, key) for row in none.rows)
        for key in ("query_tokens", "flops")
    )
    cells = (name, percent(one.right), percent(same), f"{nfe:.1f}", f"{100 * rows:.0f} %", f"{100 * flops:.0f} %")
    return markdown.line(cells)


def table(model: Model, sampler: str, block: int, items: list[Sample]) -> tuple[list[str], bool]:
    """The rows, and whether no cache computes more than half again as much as none does in the same blocks. Those that
    bring a schedule of their own come after none in that schedule."""
    caches: dict[str, str | Cache] = {name: name for name in choices("cache") if name != "none"}
    if model.config.prediction_shift == 1:
        caches["dkv, un as published"] = part("cache", "dkv", shift_type="un")
    schedules = ("fixed",) if sampler == "order" else ("fixed", "whole", "sliding")
    nones = {name: column(model, "none", sampler, block, items, name) for name in schedules}
    lines = {name: [line(label(name), none, none)] for name, none in nones.items()}
    ok = True
    for name, cache in track(caches.items(), f"{model.name}, {sampler}", len(caches), console=Console(stderr=True)):
        schedule = schedule_of(cache)
        if (name == "dkv_greedy") != (sampler == "order"):
            continue  # caches that serve their own sampler alone are refused below
        try:
            one = column(model, cache, sampler, block, items, schedule)
        except UserError:
            continue  # for another alignment or kind of attention: docs/compatibility.md
        lines[schedule].append(line(name, one, nones[schedule]))
        ok &= sum(row.query_tokens for row in one.rows) <= sum(row.query_tokens for row in nones[schedule].rows) * 1.5
    return [row for rows in lines.values() for row in rows], ok


def label(schedule: str) -> str:
    return "none" if schedule == "fixed" else f"none, blocks={schedule}"


@refusing
def main(arguments: list[str] | None = None) -> int:
    parser = comparison(__doc__, 16, "items per task")
    parser.add_argument("--tasks", nargs="+", default=list(mini.SHORT_ANSWERS), choices=mini.TASKS, metavar="TASK")
    parser.add_argument("--samplers", nargs="+", default=["static", "confidence", "order"])
    parser.add_argument("--block", type=int, default=8, help="block length, for the caches that go by blocks")
    given = parser.parse_args(arguments)
    good = True
    for name in given.models:
        model = load(name)
        items = [sample for task in given.tasks for sample in mini.generate(task, given.seed, given.count)]
        for sampler in given.samplers:
            lines, ok = table(model, sampler, given.block, items)
            good &= ok
            if len(lines) == 1:
                continue  # no cache for this sampler
            print(f"\n### {model.name}, sampler={sampler}, {len(items)} items\n")
            print(markdown.head(HEADS), *lines, sep="\n", flush=True)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
