"""A table of text, written as Markdown, HTML, CSV and LaTeX."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO

from experiments.support import markdown

LONG = 60  # characters of a text that is wrapped
LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}", **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Cells of text. words: how many columns, from the left, hold words. The others hold numbers. bright: the rows that
    stand out."""

    heads: Sequence[str]
    rows: list[list[str]]
    words: int = 2
    bright: frozenset[int] = frozenset()

    def markdown(self) -> str:
        cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in self.rows]
        rows = [[f"**{cell}**" if at == 0 and number in self.bright else cell for at, cell in enumerate(row)]
                for number, row in enumerate(cells)]  # fmt: skip
        return markdown.table(self.heads, rows, self.words) + "\n"

    def html(self) -> str:
        def line(cells: Sequence[str], tag: str, bright: bool = False) -> str:
            kinds = ["n" if at >= self.words else "w" if len(cell) > LONG else "" for at, cell in enumerate(cells)]
            shown = [
                f"<{tag}{f' class={kind}' if kind else ''}>{escape(cell)}</{tag}>"
                for kind, cell in zip(kinds, cells, strict=True)
            ]
            return f"<tr{' class=bright' if bright else ''}>{''.join(shown)}</tr>"

        body = "\n".join(line(row, "td", number in self.bright) for number, row in enumerate(self.rows))
        return f"<table><thead>{line(self.heads, 'th')}</thead><tbody>\n{body}\n</tbody></table>"

    def csv(self) -> str:
        out = StringIO()
        csv.writer(out, lineterminator="\n").writerows([self.heads, *self.rows])
        return out.getvalue()

    def latex(self) -> str:
        r"""A ``tabular`` with the rules of booktabs, to be read by ``\input``. Only needs ``\usepackage{booktabs}``."""

        def line(cells: Sequence[str], bright: bool = False) -> str:
            shown = [f"\\textbf{{{tex(cell)}}}" if bright and cell else tex(cell) for cell in cells]
            return f"{' & '.join(shown)} \\\\"

        columns = "l" * self.words + "r" * (len(self.heads) - self.words)
        body = [line(row, number in self.bright) for number, row in enumerate(self.rows)]
        return "\n".join([
            "% \\usepackage{booktabs}", f"\\begin{{tabular}}{{@{{}}{columns}@{{}}}}", "\\toprule", line(self.heads),
            "\\midrule", *body, "\\bottomrule", "\\end{tabular}", "",
        ])  # fmt: skip

    def without_empty(self) -> Table:
        """The table without columns of numbers that are empty in every row."""
        kept = [at for at in range(len(self.heads)) if at < self.words or any(row[at] for row in self.rows)]
        rows = [[row[at] for at in kept] for row in self.rows]
        return Table([self.heads[at] for at in kept], rows, self.words, self.bright)


def tex(cell: str) -> str:
    """A text that LaTeX prints as it is."""
    return "".join(LATEX.get(sign, sign) for sign in cell)


def text(value: float | None, digits: int = 1) -> str:
    return "" if value is None or value != value else f"{value:.{digits}f}"


def plain(task: str) -> str:
    """``waiting_line/copy`` as ``copy``."""
    return task.rpartition("/")[2].replace("_", " ")
