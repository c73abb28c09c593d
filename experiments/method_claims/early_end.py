"""The end of a text on a long canvas: EoTP beside other policies, without and with a cache (arXiv 2509.25188)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dllm import Model, part
from dllm.tasks.mini import tasks as mini
from dllm.tasks.mini.items import Sample
from experiments.method_claims.runs import Run, items_of, less, run
from experiments.support import markdown
from experiments.support.markdown import percent

COUNT, CACHES = 2, ("none", "prefix", "dual")
SAMPLERS: dict[str, tuple[str, dict[str, Any], int]] = {  # and the length of the canvas
    "4 a forward": ("static", {"per_step": 4}, 128), "learn2pd": ("learn2pd", {}, 128),
    "confidence": ("confidence", {}, 256),
}  # fmt: skip
HEADS = ("policy", "score", "NFE", "query tokens", "fewer")
GUARD = 0.9


def policies(cache: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Label, name and options; the cached loops of the released code look for the end in the open block alone."""
    yield "none", "none", {}
    yield "fill_after_block", "fill_after_block", {}
    scope = {} if cache == "none" else {"scope": "block"}
    yield "eotp", "eotp", scope
    if cache == "none":
        yield f"eotp, minimum {GUARD}", "eotp", {"minimum": GUARD}


def tables(model: Model, count: int) -> str:
    """One for each sampler."""
    items = items_of(tuple(mini.TASKS), count)
    return "\n".join(
        f"### The end of a text, {model.name}, {label}, {len(items)} items on canvases of {length}\n\n"
        f"{table(model, items, name, options, length)}\n"
        for label, (name, options, length) in SAMPLERS.items()
    )


def table(model: Model, items: Sequence[Sample], name: str, options: dict[str, Any], length: int) -> str:
    lines: list[tuple[str, ...]] = []
    whole: Run | None = None
    for cache in CACHES:
        for label, policy, chosen in policies(cache):
            end = part("eos", policy, **chosen)
            done = run(model, items, part("sampler", name, **options), length, cache=cache, eos=end)
            whole = whole or done
            lines.append((f"{label}, cache={cache}", percent(done.right), f"{done.nfe:.1f}", f"{done.queries:.0f}",
                          less(done.queries, whole.queries)))  # fmt: skip
    return markdown.table(HEADS, lines)
