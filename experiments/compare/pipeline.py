"""Blocks in a pipeline and mixtures on held-out items of the mini models: ``python -m experiments.compare.pipeline``.

Prints a Markdown table per model: the score, forwards and query rows of ``sampler=d2f``, ``dmax`` and ``remix`` beside
``confidence``, ``joint_threshold`` and ``d3llm``, each in blocks of 8 with the cache made for it. The models were
trained with full attention: none attends by blocks as D2F's adapters and DMax's weights do, replaces tokens, has seen
mixtures, or was distilled for several blocks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from dllm import Decoder, Model, load, part
from dllm.tasks.mini import tasks as mini
from dllm.tasks.mini.items import Sample
from experiments.compare.samplers import interval
from experiments.support import markdown
from experiments.support.held_out import answered, comparison
from experiments.support.markdown import percent
from experiments.support.scripts import refusing

BLOCK, BATCH = 8, 52
HEADS = ("sampler, blocks, cache", "attention", "score", "NFE", "query rows")


@dataclass(frozen=True)
class Line:
    """A decoder of the table."""

    sampler: str  # at its defaults
    blocks: str
    cache: str
    options: dict[str, Any] = field(default_factory=dict)  # of the schedule, beside its length
    by_blocks: bool = False  # the model attends by blocks, untrained

    @property
    def words(self) -> str:
        share = self.options.get("opening_share")
        return f"{self.sampler}, {self.blocks}{'' if share is None else f' at {share}'}, {self.cache}"


LINES = (
    Line("confidence", "fixed", "dual"), Line("joint_threshold", "fixed", "dual"),
    Line("d3llm", "ahead", "delayed", {"opening_share": 0.1}), Line("remix", "fixed", "prefix"),
    Line("confidence", "fixed", "finished", by_blocks=True),
    *(Line("d2f", "pipelined", "finished", {"opening_share": share}, True) for share in (0.1, 0.7)),
    Line("dmax", "fixed", "finished", by_blocks=True),
)  # fmt: skip


def cells(line: Line, model: Model, items: Sequence[Sample]) -> tuple[str, ...]:
    blocks = part("blocks", line.blocks, block_length=BLOCK, **line.options)
    decoder = Decoder(
        model, line.sampler, blocks, line.cache, "fill_after_block", gen_length=mini.longest(items[0].task),
        batch_size=BATCH,
    )  # fmt: skip
    rows, right = answered(decoder, items)
    attention = f"by blocks of {BLOCK}" if line.by_blocks else "full"
    return (line.words, attention, percent(right), interval([row.nfe for row in rows], 1),
            f"{fmean(row.query_tokens for row in rows):.0f}")  # fmt: skip


def table(name: str, count: int, seed: int) -> str:
    items = [item for task in mini.SHORT_ANSWERS for item in mini.generate(task, seed, count)]
    models = {by: load(name, attention_block=BLOCK if by else None) for by in (False, True)}
    found = markdown.table(HEADS, [cells(line, models[line.by_blocks], items) for line in LINES])
    return f"### {name}, {len(items)} items in blocks of {BLOCK}: pipeline and mixtures, untrained\n\n{found}"


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    given = comparison(__doc__, 8, "items of each of the 13 tasks with short answers").parse_args(arguments)
    for name in given.models:
        print(table(name, given.count, given.seed), end="\n\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
