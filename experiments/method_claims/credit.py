"""Credit over a threshold, without and with a cache (CreditDecoding, arXiv 2510.06133)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dllm import Model, part
from dllm.tasks.mini import tasks as mini
from dllm.tasks.mini.items import Sample
from experiments.method_claims.runs import Run, items_of, less, run
from experiments.support import markdown
from experiments.support.markdown import percent

COUNT, CACHES = 8, ("none", "prefix", "dual")
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "confidence": ("confidence", {}), "credit": ("credit", {}), "confidence at 0.8": ("confidence", {"threshold": 0.8}),
}  # fmt: skip
SUITES = ((mini.SHORT_ANSWERS, 32, 8), (mini.LONG_ANSWERS, 128, 32))  # tasks, canvas, block
HEADS = ("rule", "score", "NFE", "fewer", "query tokens", "as confidence")


def tables(model: Model, count: int) -> str:
    """One for the short answers, one for the long ones."""
    return "\n".join(
        f"### Credit and caches, {model.name}, {len(items)} items of {length} tokens in blocks of {block}\n\n"
        f"{table(model, items, length, block)}\n"
        for tasks, length, block in SUITES for items in [items_of(tasks, count)]
    )  # fmt: skip


def table(model: Model, items: Sequence[Sample], length: int, block: int) -> str:
    lines = []
    for cache in CACHES:
        plain: Run | None = None
        for label, (name, options) in RULES.items():
            done = run(model, items, part("sampler", name, **options), length, block=block, cache=cache)
            plain = plain or done
            lines.append((
                f"{label}, cache={cache}", percent(done.right), f"{done.nfe:.2f}", less(done.nfe, plain.nfe),
                f"{done.queries:.0f}", percent(done.same(plain)),
            ))  # fmt: skip
    return markdown.table(HEADS, lines)
