"""A student beside its teacher, by the threshold of certainty: ``python -m experiments.distill.thresholds``.

Prints a Markdown table: score with its 95 % interval, and tokens of an answer in each forward, of held-out questions
of the demo suite with ``sampler=dparallel``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import track

from dllm import Model, load
from dllm.tasks.mini import tasks as mini
from dllm.tasks.mini.items import Sample
from experiments.compare.kinds import line
from experiments.support import markdown
from experiments.support.held_out import comparison
from experiments.support.scripts import refusing

MODELS = ("mini-llada", "mini-llada-distilled")
THRESHOLDS = (0.1, 0.2, 0.5)  # nats; as published: 0.5


def head(models: Sequence[Model]) -> str:
    found = (f"{model.name}: {what}" for model in models for what in ("score", "tokens a forward"))
    return markdown.head(("threshold, nats", *found), words=0)


def cells(threshold: float, models: Sequence[Model], items: list[Sample]) -> Iterator[str]:
    """Of one line. Raises UserError for a model that dparallel does not fit."""
    yield f"{threshold:g}"
    for model in models:
        one = line(model, "dparallel", ("sampler=dparallel", f"sampler.threshold={threshold}"), items)
        yield markdown.percent(one.right)
        yield f"{sum(row.useful_tokens for row in one.rows) / sum(row.nfe for row in one.rows):.2f}"


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = comparison(__doc__, 20, "questions per task", MODELS)
    parser.add_argument("--thresholds", nargs="+", type=float, default=list(THRESHOLDS), metavar="NATS")
    parser.add_argument("--tasks", nargs="+", default=list(mini.TASKS), choices=mini.TASKS, metavar="TASK")
    given = parser.parse_args(arguments)
    models = [load(name) for name in given.models]
    items = [sample for task in given.tasks for sample in mini.generate(task, given.seed, given.count)]
    shown = track(given.thresholds, "decoding", console=Console(stderr=True))
    print("\n".join([head(models), *(markdown.line(cells(at, models, items)) for at in shown)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
