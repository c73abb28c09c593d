"""Markdown tables, and the cells that several commands print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dllm.record.measures import wilson


def line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def head(names: Sequence[str], words: int = 1) -> str:
    """The first two lines of a table. words: how many columns, from the left, hold words. The others hold numbers."""
    return "\n".join(map(line, (names, ["---"] * words + ["---:"] * (len(names) - words))))


def table(names: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    return "\n".join([head(names, words), *map(line, rows)])


def percent(right: Sequence[float]) -> str:
    """The mean of scores from 0 to 1 in per cent, with its 95 % Wilson interval."""
    low, high = wilson(sum(right), len(right))
    return f"{100 * sum(right) / len(right):.0f} ({100 * low:.0f}-{100 * high:.0f})"
