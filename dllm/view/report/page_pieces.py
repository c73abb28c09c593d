"""What a report consists of: tables (as Markdown, HTML, CSV and LaTeX), headings, notes and pictures, on one page."""

from __future__ import annotations

import csv
import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from pathlib import Path
from string import Template

WRAP = 60  # characters of a text that is wrapped
LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


@dataclass(frozen=True)
class ReportTable:
    heads: Sequence[str]  # of its columns
    rows: list[list[str]]  # its lines, below the heads
    words: int = 2  # how many columns, from the left, hold words; the others hold numbers
    bright: frozenset[int] = frozenset()  # lines that stand out, from 0

    def markdown(self) -> str:
        cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in self.rows]
        rows = [
            [f"**{cell}**" if at == 0 and number in self.bright else cell for at, cell in enumerate(row)]
            for number, row in enumerate(cells)
        ]
        rule = ["---"] * self.words + ["---:"] * (len(self.heads) - self.words)
        return "".join(f"| {' | '.join(line)} |\n" for line in (self.heads, rule, *rows))

    def html(self) -> str:
        def line(cells: Sequence[str], tag: str, bright: bool = False) -> str:
            kinds = ["n" if at >= self.words else "w" if len(cell) > WRAP else "" for at, cell in enumerate(cells)]
            out = [
                f"<{tag}{f' class={kind}' if kind else ''}>{escape(cell)}</{tag}>"
                for kind, cell in zip(kinds, cells, strict=True)
            ]
            return f"<tr{' class=bright' if bright else ''}>{''.join(out)}</tr>"

        body = "\n".join(line(row, "td", number in self.bright) for number, row in enumerate(self.rows))
        return (
            f'<div class="wide"><table><thead>{line(self.heads, "th")}</thead><tbody>\n{body}\n</tbody></table></div>'
        )

    def csv(self) -> str:
        out = StringIO()
        csv.writer(out, lineterminator="\n").writerows([self.heads, *self.rows])
        return out.getvalue()

    def latex(self) -> str:
        r"""A LaTeX table with the rules of booktabs, to be read by ``\input``. Only needs ``\usepackage{booktabs}``."""

        def line(cells: Sequence[str], bright: bool = False) -> str:
            out = [f"\\textbf{{{tex(cell)}}}" if bright and cell else tex(cell) for cell in cells]
            return f"{' & '.join(out)} \\\\"

        columns = "l" * self.words + "r" * (len(self.heads) - self.words)
        body = [line(row, number in self.bright) for number, row in enumerate(self.rows)]
        return "\n".join(
            [
                "% \\usepackage{booktabs}",
                f"\\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
                "\\toprule",
                line(self.heads),
                "\\midrule",
                *body,
                "\\bottomrule",
                "\\end{tabular}",
                "",
            ]
        )

    def without_empty(self) -> ReportTable:
        """The table without columns of numbers that are empty in every row."""
        columns = [at for at in range(len(self.heads)) if at < self.words or any(row[at] for row in self.rows)]
        rows = [[row[at] for at in columns] for row in self.rows]
        return ReportTable([self.heads[at] for at in columns], rows, self.words, self.bright)


def tex(cell: str) -> str:
    """A text that LaTeX prints as it is."""
    return "".join(LATEX.get(sign, sign) for sign in cell)


def text(value: float | None, digits: int = 1) -> str:
    return "" if value is None or value != value else f"{value:.{digits}f}"


def task_words(task: str) -> str:
    """``waiting_line/copy`` as ``copy``."""
    return task.rpartition("/")[2].replace("_", " ")


PAGE = Path(__file__).with_name("page.html")
DPI = 200  # pixels of a picture's file in an inch
PAGE_DPI = 125  # pixels of the page for an inch: letters of small and large pictures have one size


@dataclass(frozen=True)
class Heading:
    text: str  # the heading itself
    level: int = 2  # of the heading: 1 is the page's title

    def markdown(self) -> str:
        return f"{'#' * self.level} {self.text}\n"

    def html(self) -> str:
        return f"<h{self.level}>{escape(self.text)}</h{self.level}>"


@dataclass(frozen=True)
class Note:
    text: str  # a paragraph

    def markdown(self) -> str:
        return f"{self.text}\n"

    def html(self) -> str:
        return f'<p class="note">{escape(self.text)}</p>'


@dataclass(frozen=True)
class PictureFile:
    file: Path  # a PNG, beside the page
    caption: str  # what it shows

    def markdown(self) -> str:
        return f"![{self.caption}]({self.file.name})\n"

    def html(self) -> str:
        data = self.file.read_bytes()
        width = round(int.from_bytes(data[16:20]) * PAGE_DPI / DPI)  # PNG: the first number of IHDR
        source, alt = b64encode(data).decode(), escape(self.caption, quote=True)
        return (
            f'<figure><img width="{width}" src="data:image/png;base64,{source}" alt="{alt}">'
            f"<figcaption>{escape(self.caption)}</figcaption></figure>"
        )


Piece = Heading | Note | PictureFile | ReportTable


def markdown(title: str, pieces: list[Piece]) -> str:
    return "\n".join([f"# {title}\n", *(piece.markdown() for piece in pieces)])


def html(title: str, pieces: list[Piece]) -> str:
    body = "\n".join(piece.html() for piece in pieces)
    return Template(PAGE.read_text()).substitute(title=escape(title), body=body)


def file_name(model: str) -> str:
    """A model's name without characters that a file system may refuse."""
    return re.sub(r"[^\w.+-]+", "-", model)
