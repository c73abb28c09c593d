"""Blocks in a pipeline and mixtures on held-out items of the mini models: ``python -m experiments.compare.pipeline``.

Prints a Markdown table per model: the score, forwards and query rows of ``sampler=d2f``, ``dmax`` and ``remix`` beside
``confidence``, ``joint_threshold`` and ``d3llm``, each in blocks of 8 with the cache made for it. The models were
trained with full attention: none attends by blocks as D2F's adapters and DMax's weights do, replaces tokens, has seen
mixtures, or was distilled for several blocks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from dllm import Decoder, Model, load, part
from dllm.models.visibility import BlockCausal
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
    attention: str = "full"  # untrained but for that: ``pipelined`` and ``block-causal`` go by blocks of 8

    @property
    def words(self) -> str:
        share = self.options.get("opening_share")
        return f"{self.sampler}, {self.blocks}{'' if share is None else f' at {share}'}, {self.cache}"


LINES = (
    Line("confidence", "fixed", "dual"), Line("joint_threshold", "fixed", "dual"),
    Line("d3llm", "ahead", "delayed", {"opening_share": 0.1}), Line("remix", "fixed", "prefix"),
    Line("confidence", "fixed", "finished", attention="pipelined"),
    *(Line("d2f", "pipelined", "finished", {"opening_share": share}, "pipelined") for share in (0.1, 0.7)),
    Line("confidence", "fixed", "finished", attention="block-causal"),
    Line("dmax", "fixed", "finished", attention="block-causal"),
)  # fmt: skip


def cells(line: Line, model: Model, items: Sequence[Sample]) -> tuple[str, ...]:
    blocks = part("blocks", line.blocks, block_length=BLOCK, **line.options)
    decoder = Decoder(
        model, line.sampler, blocks, line.cache, "fill_after_block", gen_length=mini.longest(items[0].task),
        batch_size=BATCH,
    )  # fmt: skip
    rows, right = answered(decoder, items)
    return (line.words, line.attention, percent(right), interval([row.nfe for row in rows], 1),
            f"{fmean(row.query_tokens for row in rows):.0f}")  # fmt: skip


def block_causal(name: str) -> Model:
    """The model, whose columns see their own block and those before it, counted from column 0, as DMax's do."""
    model = load(name)
    model.transformer.config = replace(model.config, attention=BlockCausal(BLOCK))
    return replace(model, config=model.transformer.config)


def table(name: str, count: int, seed: int) -> str:
    items = [item for task in mini.SHORT_ANSWERS for item in mini.generate(task, seed, count)]
    models = {"full": load(name), "pipelined": load(name, attention_block=BLOCK), "block-causal": block_causal(name)}
    found = markdown.table(HEADS, [cells(line, models[line.attention], items) for line in LINES])
    return f"### {name}, {len(items)} items in blocks of {BLOCK}: pipeline and mixtures, untrained\n\n{found}"


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    given = comparison(__doc__, 8, "items of each of the 13 tasks with short answers").parse_args(arguments)
    for name in given.models:
        print(table(name, given.count, given.seed), end="\n\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
