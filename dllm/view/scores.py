"""Scores of an evaluation: a table with a line per sub-task, or one line for a cell of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from dllm.measures import Measures, Row, mean, scores_of

HEADS = ("n", "score", "95 %", "TPF", "NFE", "tokens/s", "p50 s", "p95 s")


def by_task(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of each sub-task, in the order in which they first appear."""
    out: dict[str, list[Row]] = {}
    for row in rows:
        out.setdefault(row["task"], []).append(row)
    return out


def scores_table(rows: Sequence[Row]) -> Table:
    """Sub-tasks, and all of them together. score: percent; TPF: useful tokens per forward; p50, p95: latency."""
    tasks = by_task(rows)
    others = sorted({name for row in rows for name in row["scores"]} - {"score"})
    table = Table(header_style="bold")
    table.add_column("task")
    for head in (*HEADS, *others):
        table.add_column(head, justify="right")
    for name, mine in tasks.items():
        table.add_row(name, *cells(mine), *(percent(mean(scores_of(mine, other))) for other in others))
    if len(tasks) > 1:
        table.add_section()
        table.add_row("all", *cells(rows), *(percent(mean(scores_of(rows, other))) for other in others))
    return table


def cells(rows: Sequence[Row]) -> list[str]:
    """One line of the table."""
    found = Measures.of(rows)
    interval = f"{100 * found.low:.0f}-{100 * found.high:.0f}" if found.judged else ""
    judged = f"{found.samples}" if found.judged in (0, found.samples) else f"{found.judged} of {found.samples}"
    return [
        judged, percent(found.score), interval, f"{found.tpf:.2f}", f"{found.nfe:.1f}", f"{found.speed:.1f}",
        f"{found.p50:.3f}", f"{found.p95:.3f}",
    ]  # fmt: skip


def percent(score: float | None) -> str:
    """A missing score is no number."""
    return "missing" if score is None else f"{100 * score:.1f}"


def headline(config: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """A cell of a sweep in a line."""
    found = Measures.of(rows)
    means = [score for mine in by_task(rows).values() if (score := mean(scores_of(mine))) is not None]
    numbers = f"score {percent(mean(means))}, TPF {found.tpf:.2f}, {found.speed:.1f} tokens/s, {found.samples} samples"
    return f"{called(config)}: {numbers}"


def called(config: Mapping[str, Any]) -> str:
    """What a cell is, in words: model, sampler with its numbers, blocks, cache."""
    parts = [str(config["model"]["name"]), part_name(config["sampler"])]
    parts += [part_name(config[group]) for group in ("blocks", "cache")]
    return " ".join(parts)


def part_name(part: Mapping[str, Any]) -> str:
    """A part's name and its options."""
    name = str(part["_target_"]).split(".")[-2]
    options = [f"{key}={value}" for key, value in part.items() if not key.startswith("_") and key != "inner"]
    inner = [part_name(part["inner"])] if "inner" in part else []
    return f"{name}({', '.join([*inner, *options])})" if options or inner else name
