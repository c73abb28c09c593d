"""Forwards against the bits of a text: the line of "From Bits to Rounds" (ETE, arXiv 2511.21103).

A text's bits are -log2 p by the chain rule, its tokens re-scored one at a time in the order of the decode.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from statistics import correlation, fmean, linear_regression
from typing import Any

from dllm import Model, Result, part
from dllm.decisions.logprobs import rescored
from dllm.record.bounds import bits
from dllm.tasks.mini import tasks as mini
from experiments.method_claims.runs import Run, items_of, run
from experiments.support import markdown
from experiments.support.markdown import percent

COUNT, LENGTH = 8, 32
FACTORS = (0.5, 0.7, 1.0)
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"factor {factor}": ("factor", {"factor": factor, "commit_last": False}) for factor in FACTORS},
    "confidence": ("confidence", {}), "ete": ("ete", {}),
}  # fmt: skip
HEADS = ("rule", "score", "NFE", "bits", "at commit", "line", "R² bits", "R² at commit", "R² tokens", "under the bound")


def tables(model: Model, count: int) -> str:
    """The fit of every rule."""
    items = items_of(mini.SHORT_ANSWERS, count)
    lines = [line(model, label, run(model, items, part("sampler", name, **options), LENGTH, trace=True))
             for label, (name, options) in RULES.items()]  # fmt: skip
    return f"### Bits and rounds, {model.name}, {len(items)} items\n\n{markdown.table(HEADS, lines)}\n"


def line(model: Model, label: str, done: Run) -> tuple[str, ...]:
    rounds = [float(row.nfe) for row in done.rows]
    total = [text_bits(model, row) for row in done.rows]
    path = [sum(bits(row.traced())) for row in done.rows]
    words = [float(len(row.tokens)) for row in done.rows]
    slope, begin = linear_regression(total, rounds)
    name, options = RULES[label]
    below = [float(row.nfe < least_rounds(spent, most_at_once(row), options["factor"]) - 1e-9)
             for row, spent in zip(done.rows, path, strict=True)] if name == "factor" else []  # fmt: skip
    return (
        label, percent(done.right), *(f"{fmean(each):.1f}" for each in (rounds, total, path)),
        f"{begin:.1f} + {slope:.2f} bits", *(f"{fit(each, rounds):.2f}" for each in (total, path, words)),
        f"{100 * fmean(below):.0f} %" if below else "",
    )  # fmt: skip


def text_bits(model: Model, row: Result) -> float:
    """-log2 p of all that was decoded, by the chain rule."""
    return sum(-value / log(2) for value in rescored(model, row.traced()) if value is not None)


def fit(known: Sequence[float], rounds: Sequence[float]) -> float:
    """R² of the line; 0 where all rounds are alike."""
    return correlation(known, rounds) ** 2 if len(set(rounds)) > 1 and len(set(known)) > 1 else 0.0


def most_at_once(row: Result) -> int:
    """The most tokens that one forward committed."""
    return max(len(record.candidates[kept].positions) for record, kept in row.traced().path())


def least_rounds(spent: float, most: int, factor: float) -> float:
    """The paper's bound on the rounds of a rule that commits n <= ``most`` tokens only where each has a probability of
    at least 1 - factor / (n + 1): a round then decides at most ln((n + 1) / ((1 - factor) n + 1)) nats."""
    return spent * log(2) / log((most + 1) / ((1 - factor) * most + 1))
