"""What a run came to, in one small table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Totals:
    """Sums over samples, as stored in results.jsonl. seconds: of decoding, without drawing, loading and warm-up."""

    samples: int
    tokens: int
    forwards: int
    query_tokens: int
    seconds: float
    reasons: Counter[str]

    @staticmethod
    def of(rows: Sequence[Row]) -> Totals:
        batches: dict[str, float] = {}
        for row in rows:
            batches[row["batch"]] = max(batches.get(row["batch"], 0.0), row["seconds"])
        return Totals(
            len(rows), sum(row["useful_tokens"] for row in rows), sum(row["nfe"] for row in rows),
            sum(row["query_tokens"] for row in rows), sum(batches.values()),
            Counter(row["stop_reason"] for row in rows),
        )  # fmt: skip

    @property
    def tpf(self) -> float:
        """Useful tokens per forward, each row's forwards counted by themselves."""
        return self.tokens / self.forwards if self.forwards else 0.0

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    def cells(self) -> dict[str, str]:
        """Every line of the table: its name and value."""
        reasons = ", ".join(f"{name} {count}" for name, count in self.reasons.most_common())
        only = next(iter(self.reasons), "")
        cells = {"samples": f"{self.samples}"} if self.samples != 1 else {}
        return cells | {
            "tokens (useful)": f"{self.tokens}",
            "forwards (NFE)": f"{self.forwards}",
            "tokens per forward": f"{self.tpf:.2f}",
            "tokens per second": f"{self.speed:.1f}",
            "query tokens": f"{self.query_tokens}",
            "stopped by": only if self.samples == 1 else reasons,
        }


def summary(columns: Mapping[str, Sequence[Row]]) -> Table:
    """One column per way of decoding, and exact matches with the last one when there are several."""
    table = Table(show_header=len(columns) > 1, header_style="bold")
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    cells = [Totals.of(rows).cells() for rows in columns.values()]
    for line in cells[0]:
        table.add_row(line, *(column[line] for column in cells))
    if len(columns) > 1:
        last = list(columns.values())[-1]
        table.add_row("exact match", *(matches(rows, last) for rows in list(columns.values())[:-1]), "")
    return table


def matches(rows: Sequence[Row], others: Sequence[Row]) -> str:
    """How many samples have the same tokens in both."""
    expected = {(row["id"], row["sample"]): row["tokens"] for row in others}
    same = sum(expected.get((row["id"], row["sample"])) == row["tokens"] for row in rows)
    if len(rows) == 1:
        return "yes" if same else "no"
    return f"{same} of {len(rows)}"


def texts(columns: Mapping[str, Sequence[Row]]) -> Table:
    """Every sample's text, side by side."""
    table = Table(show_lines=True, header_style="bold")
    many = len(next(iter(columns.values()))) > 1
    if many:
        table.add_column("id")
    for name in columns:
        table.add_column(name, ratio=1, overflow="fold")
    for row in next(iter(columns.values())):
        key = (row["id"], row["sample"])
        found = [next((r for r in rows if (r["id"], r["sample"]) == key), None) for rows in columns.values()]
        shown = [Text(answer(r) if r else "") for r in found]
        table.add_row(*([label(row)] if many else []), *shown)
    return table


def answer(row: Row) -> str:
    """The text of a sample, or its token ids where the model has no tokenizer."""
    return str(row["text"]) if row["text"] or not row["tokens"] else " ".join(map(str, row["tokens"]))


def label(row: Row) -> str:
    """Which sample of which prompt."""
    return f"{row['id']}" if not row["sample"] else f"{row['id']} #{row['sample'] + 1}"
