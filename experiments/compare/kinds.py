"""The mini models of all kinds of attention on held-out items: ``python -m experiments.compare.kinds``.

Prints a Markdown table with a row for each way to decode each model: the autoregressive one from left to right, those
of WeDLM and NBDiff by their published decoders, LLaDA's with its caches. The exit code is 1 when a model takes more
forwards from left to right than there are tokens, an answer's end counted.

Query tokens: rows that the network computes for an item. Useful: tokens of the answers over query tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import track

from dllm import Model, Result, load
from dllm.tasks.mini import tasks as mini
from dllm.tasks.mini.items import Sample
from experiments.mini.decoders import decoder, settings_of
from experiments.support import markdown
from experiments.support.held_out import answered_by_length, comparison
from experiments.support.markdown import percent
from experiments.support.scripts import refusing

MODELS = ("mini-ar", "mini-wedlm", "mini-nbdiff", "mini-llada")
BATCH = 52
HEAD = markdown.head(("model, decoding", "score", "NFE", "TPF", "query tokens", "useful"))


@dataclass(frozen=True)
class Line:
    """What one way to decode did on all items. right: the score of each."""

    label: str
    rows: list[Result]
    right: list[float]

    def __str__(self) -> str:
        sums = (sum(getattr(row, key) for row in self.rows) for key in ("nfe", "query_tokens", "useful_tokens"))
        (nfe, queries, useful), count = sums, len(self.rows)
        cells = (self.label, percent(self.right), f"{nfe / count:.1f}", f"{useful / nfe:.2f}", f"{queries / count:.0f}",
                 f"{100 * useful / queries:.1f} %")  # fmt: skip
        return markdown.line(cells)


def line(model: Model, label: str, words: Sequence[str], items: list[Sample]) -> Line:
    """Raises UserError for words that do not fit the model."""
    found = answered_by_length(lambda length: decoder(model, words, length, BATCH), items)
    return Line(f"{model.name}, {label}", *found)


def lines(names: Sequence[str], items: list[Sample]) -> list[Line]:
    """Every way to decode every model. Raises UserError for a model that there is not."""
    asked = [(model, *one) for model in map(load, names) for one in settings_of(model).items()]
    return [line(model, label, words, items)
            for model, label, words in track(asked, "decoding", console=Console(stderr=True))]  # fmt: skip


def one_forward_each(one: Line) -> bool:
    """Whether no row took more forwards than its tokens, its end included."""
    return all(row.nfe <= row.useful_tokens + (row.stop_reason == "eos") for row in one.rows)


@refusing
def main(arguments: list[str] | None = None) -> int:
    parser = comparison(__doc__, 16, "items per task", MODELS)
    parser.add_argument("--tasks", nargs="+", default=list(mini.TASKS), choices=mini.TASKS, metavar="TASK")
    given = parser.parse_args(arguments)
    items = [sample for task in given.tasks for sample in mini.generate(task, given.seed, given.count)]
    found = lines(given.models, items)
    print("\n".join([HEAD, *map(str, found)]))
    return int(not all(one_forward_each(one) for one in found if one.label.endswith("left to right")))


if __name__ == "__main__":
    sys.exit(main())
