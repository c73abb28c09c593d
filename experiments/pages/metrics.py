"""The table of docs/serving_operate.md, which the site makes: the figures of ``/metrics``, as they are registered."""

from __future__ import annotations

from collections.abc import Iterator

from dllm.serve.engine.jobs import Stats
from dllm.serve.http.prometheus import Metrics
from experiments.support.markdown import table


def rows() -> Iterator[tuple[str, str, str]]:
    for family in Metrics(Stats, lambda: "ready").registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield f"`{name}`", family.type, family.documentation


def section() -> str:
    return table(("metric", "kind", "what it tells"), rows(), 3) + "\n"
