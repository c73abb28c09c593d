"""Scores of an evaluation: a table with a line for each sub-task, or one line for a cell of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from dllm.common.terminal import as_text
from dllm.compose.labels import cell_label
from dllm.record.measures import Measures, Totals, are_shares, by_task, in_percent, mean, scores_by_task, scores_of
from dllm.record.published import PaperRow
from dllm.record.results import ResultRow

HEADS = ("n", "score", "95 %", "TPF", "NFE", "tokens/s", "p50 s", "p95 s")


def scores_table(rows: Sequence[ResultRow], paper: PaperRow | None = None, totals: Totals | None = None) -> Group:
    """Sub-tasks, and all of them together. score: percent; TPF: useful tokens per forward; p50, p95: latency. Other
    metrics than the score have a table of their own. A ? marks a speed that was measured on a busy machine.

    paper: its figures get a line of their own below ours. totals: metrics over all answers."""
    totals = totals or {}
    names = [name for kind in ((row["scores"] for row in rows), totals.values()) for mine in kind for name in mine]
    others = sorted({*names} - {"score"})
    table = task_table(rows, HEADS, lambda mine: task_cells(mine, totals))
    if paper is not None and paper.has_figures:
        table.add_section()
        table.add_row("published", *published_cells(paper))
    tables: list[Table | Text] = [table]
    if others:
        tables.append(task_table(rows, others, lambda mine: [metric_cell(mine, name, totals) for name in others]))
    doubts = {Measures.of(mine).warning: None for mine in (rows, *by_task(rows).values())}
    if doubt := next(filter(None, doubts), ""):
        tables.append(as_text(f"?: the machine was busy ({doubt}). Decode again.", "dim"))
    if any(row.get("device") == "endpoint" for row in rows):
        tables.append(as_text("Empty: an endpoint tells no forwards. Its tokens/s are those of one request.", "dim"))
    tables += [as_text(line, "dim") for line in paper.sentences()] if paper is not None else []
    return Group(*tables)


def task_table(
    rows: Sequence[ResultRow], heads: Sequence[str], numbers: Callable[[Sequence[ResultRow]], list[str]]
) -> Table:
    """A table with a line per sub-task. In a narrow terminal names are folded and numbers stay whole."""
    tasks = by_task(rows)
    table = Table(box=SIMPLE_HEAD, header_style="bold", padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("task", overflow="fold")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for name, mine in zip(short_names(list(tasks)), tasks.values(), strict=True):
        table.add_row(as_text(name), *numbers(mine))
    if len(tasks) > 1:
        table.add_section()
        table.add_row("all", *numbers(rows))
    return table


def short_names(names: Sequence[str]) -> Sequence[str]:
    """Names of sub-tasks without the group before the slash, if they still differ."""
    last = [name.rpartition("/")[2] for name in names]
    return last if len(set(last)) == len(names) else names


def metric_cell(rows: Sequence[ResultRow], name: str, totals: Totals) -> str:
    """Another metric; empty when these rows do not have it."""
    has = any(name in row["scores"] or name in totals.get(row["task"], ()) for row in rows)
    return score_text(rows, name, totals) if has else ""


def score_text(rows: Sequence[ResultRow], name: str, totals: Totals) -> str:
    """A metric of these rows: the mean over answers, or over sub-tasks where one has it over all its answers."""
    if any(name in totals.get(row["task"], ()) for row in rows):
        return score_or_missing(mean([*scores_by_task(rows, totals, name).values()]))
    return score_or_missing(in_percent(scores_of(rows, name)))


def task_cells(rows: Sequence[ResultRow], totals: Totals | None = None) -> list[str]:
    """One line of the table. Scores that are not means of shares have no interval."""
    measures = Measures.of(rows)
    interval = (
        f"{100 * measures.low:.0f}-{100 * measures.high:.0f}" if measures.judged and are_shares(scores_of(rows)) else ""
    )
    count = (
        f"{measures.samples}"
        if measures.judged in (0, measures.samples)
        else f"{measures.judged} of {measures.samples}"
    )
    return [
        count,
        score_text(rows, "score", totals or {}),
        interval,
        *((f"{measures.tpf:.2f}", f"{measures.nfe:.1f}") if measures.forwards else ("", "")),
        speed_text(measures),
        f"{measures.p50:.3f}",
        f"{measures.p95:.3f}",
    ]


def published_cells(paper: PaperRow) -> list[str]:
    """A paper's figures under the heads of ours; what it does not report is left empty."""
    figures = {"score": paper.score, "TPF": paper.tpf, "NFE": paper.nfe, "tokens/s": paper.tokens_per_second}
    return ["" if (value := figures.get(head)) is None else f"{value:g}" for head in HEADS]


def speed_text(measures: Measures) -> str:
    """Useful tokens per second, with a ? if they are doubtful."""
    return f"{measures.speed:.1f}{'?' if measures.warning else ''}"


def score_or_missing(score: float | None) -> str:
    return "missing" if score is None else f"{score:.1f}"


def headline(config: Mapping[str, Any], rows: Sequence[ResultRow], totals: Totals | None = None) -> str:
    measures = Measures.of(rows)
    speed, doubt = f"{speed_text(measures)} tokens/s", f" (? {measures.warning})" if measures.warning else ""
    score = mean([*scores_by_task(rows, totals or {}).values()])
    tpf = f"TPF {measures.tpf:.2f}, " if measures.forwards else ""
    numbers = f"score {score_or_missing(score)}, {tpf}{speed}, {measures.samples} samples"
    return f"{cell_label(config)}: {numbers}{doubt}"


def published_line(paper: PaperRow | None) -> str:
    """A paper's figures below a cell of a sweep, in a line of their own; empty without any."""
    if paper is None:
        return ""
    figures = zip(HEADS, published_cells(paper), strict=True)
    numbers = ", ".join(f"{head} {value}" for head, value in figures if value) or "no figures"
    return f"\n  published: {numbers}; {paper.sentences()[-1]}"
