"""How well the shipped Learn2PD filters judge: ``python -m experiments.distill.judge_filter``.

Labels: a proposal is right where it equals what one token per step decodes there. The filter reads the confidences of a
block, and judges its open positions; those that are committed are not judged. Prints a Markdown table for each model,
on held-out items: precision, recall and accuracy in the turns that filters are trained on (what is right is committed
at once, as an oracle would) and in the turns of ``sampler=learn2pd`` itself. Beside it a threshold on the confidence of
the position alone, which is ``sampler=confidence``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dllm import Model, load
from dllm.prompts import Prompt
from dllm.samplers.learn2pd import FILTERS, Learn2PD, read_filter
from dllm.tasks.mini import tasks as mini
from experiments.distill.filter import Options, Records, Replay, logits, records_of, reference_of
from experiments.support import markdown
from experiments.support.held_out import comparison
from experiments.support.scripts import refusing

BLOCK = 32
FILTER, CONFIDENCE = (0.5, 0.9, 0.96, 0.99), (0.8, 0.9, 0.95)  # 0.96 and 0.9 are the samplers' own
PUBLISHED = 0.96
HEADS = ("turns, rule", "precision", "recall", "accuracy", "open positions", "of them right")
# As the filters were trained: the length of the canvas, what it is called, and the tasks.
CANVASES = {BLOCK: ("one block", mini.SHORT_ANSWERS), 4 * BLOCK: ("four blocks", tuple(mini.TASKS))}


@dataclass(frozen=True)
class Judgement:
    """Of the open positions of some turns: how many are right, and of those that a rule accepts. In [0, 1]."""

    precision: float
    recall: float
    accuracy: float

    @staticmethod
    def of(accepted: Tensor, right: Tensor) -> Judgement:
        """accepted, right: bool [n]. A share of nothing is 1."""
        both = (accepted & right).sum()
        precision, recall = (float(both / count) if count else 1.0 for count in (accepted.sum(), right.sum()))
        return Judgement(precision, recall, float((accepted == right).float().mean()))

    def cells(self) -> list[str]:
        return [f"{100 * self.precision:.2f}", f"{100 * self.recall:.1f}", f"{100 * self.accuracy:.1f}"]


def lines(turns: str, records: Records, weights: dict[str, Tensor], thresholds: Sequence[float]) -> Iterator[list[str]]:
    """A row for each rule: the filter at these thresholds, and confidences."""
    open_, confidence = torch.stack(records.open), torch.stack(records.confidence)
    right = torch.stack(records.right)[open_].bool()
    chance = logits(weights, confidence).double().sigmoid()[open_]
    rules = [(f"filter above {at}", chance > at) for at in thresholds]
    rules += [(f"confidence above {at}", confidence[open_] > at) for at in CONFIDENCE]
    for words, accepted in rules:
        cells = Judgement.of(accepted, right).cells()
        yield [f"{turns}: {words}", *cells, f"{len(right):,}", f"{100 * right.float().mean():.1f} %"]


def table(model: Model, length: int, count: int, seed: int) -> str:
    """Of canvases of ``length``, on ``count`` held-out items of each task."""
    weights, _ = read_filter(FILTERS / f"{model.name}-b{BLOCK}.safetensors")
    words, tasks = CANVASES[length]
    prompts: list[Prompt] = [sample.messages for task in tasks for sample in mini.generate(task, seed, count)]
    options = Options(model.name, BLOCK, length)
    reference = reference_of(model, options, prompts)
    oracle = records_of(model, Replay(reference), options, prompts, reference)
    own = records_of(model, Learn2PD(threshold=PUBLISHED), options, prompts, reference)
    rows = [*lines("oracle's", oracle, weights, FILTER), *lines("its own", own, weights, (PUBLISHED,))]
    title = f"### {model.name}, {words}, {len(prompts)} items"
    return f"{title}\n\n{markdown.table(HEADS, rows)}"


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    of = "items per task on canvases of one block; an eighth on those of four, whose forwards are many and wide"
    options = comparison(__doc__, 8, of).parse_args(arguments)
    for name in options.models:
        model = load(name)
        for length in CANVASES:
            count = options.count if length == BLOCK else max(1, options.count // 8)
            print(table(model, length, count, options.seed), end="\n\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
