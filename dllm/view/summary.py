"""The results of a run in one small table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.table import Table

from dllm.common.terminal import as_text
from dllm.record.measures import Measures
from dllm.record.results import ResultRow


def summary_lines(rows: Sequence[ResultRow]) -> dict[str, str]:
    """The table's lines by name: sums over samples, in which a forward of several rows counts for each of them.
    A speed that was measured on a busy machine says so."""
    measures, reasons = Measures.of(rows), Counter(row["stop_reason"] for row in rows)
    stops = ", ".join(f"{name} {count}" for name, count in reasons.most_common())
    cells = {"samples": f"{measures.samples}"} if measures.samples != 1 else {}
    return cells | {
        "tokens (useful)": f"{measures.tokens}",
        "forwards (NFE)": f"{measures.forwards}{f' and {measures.idle} idle' if measures.idle else ''}",
        "tokens per forward": f"{measures.tpf:.2f}",
        "tokens per second": f"{measures.speed:.1f}{f' ? ({measures.warning})' if measures.warning else ''}",
        "query tokens": f"{measures.query_tokens}",
        "computed tokens": f"{measures.computed_tokens}",
        "stopped by": next(iter(reasons), "") if measures.samples == 1 else stops,
    }


def summary_table(columns: Mapping[str, Sequence[ResultRow]]) -> Table:
    """One column per way of decoding, and how many answers are those of the last one when there are several."""
    table = Table(show_header=len(columns) > 1, header_style="bold")
    table.add_column("")
    for name in columns:
        table.add_column(as_text(name), justify="right")
    cells = [summary_lines(rows) for rows in columns.values()]
    for line in cells[0]:
        table.add_row(line, *(column[line] for column in cells))
    if len(columns) > 1:
        last = list(columns.values())[-1]
        table.add_row("same as the last", *(matches(rows, last) for rows in list(columns.values())[:-1]), "")
    return table


def matches(rows: Sequence[ResultRow], others: Sequence[ResultRow]) -> str:
    """How many samples have the same tokens in both."""
    tokens_of = {(row["id"], row["sample"]): row["tokens"] for row in others}
    same = sum(tokens_of.get((row["id"], row["sample"])) == row["tokens"] for row in rows)
    if len(rows) == 1:
        return "yes" if same else "no"
    return f"{same} of {len(rows)}"


def text_table(columns: Mapping[str, Sequence[ResultRow]]) -> Table:
    """Every sample's text, side by side."""
    table = Table(show_lines=True, header_style="bold")
    many = len(next(iter(columns.values()))) > 1
    if many:
        table.add_column("id")
    for name in columns:
        table.add_column(as_text(name), ratio=1, overflow="fold")
    for row in next(iter(columns.values())):
        key = (row["id"], row["sample"])
        samples = [next((r for r in rows if (r["id"], r["sample"]) == key), None) for rows in columns.values()]
        texts = [as_text(answer_text(r) if r else "") for r in samples]
        table.add_row(*([as_text(sample_label(row))] if many else []), *texts)
    return table


def answer_text(row: ResultRow) -> str:
    """The text of a sample, or its token ids where the model has no tokenizer."""
    return str(row["text"]) if row["text"] or not row["tokens"] else " ".join(map(str, row["tokens"]))


def sample_label(row: ResultRow) -> str:
    return f"{row['id']}" if not row["sample"] else f"{row['id']} #{row['sample'] + 1}"
