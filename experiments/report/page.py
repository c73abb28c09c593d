"""The report as Markdown, and as one HTML page with its pictures inside, from the same pieces."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

from experiments.report.table import Table

PAGE = Path(__file__).with_name("page.html")
DPI = 200  # pixels of a picture's file in an inch
SHOWN = 125  # pixels of the page for an inch: letters of small and large pictures have one size


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True)
class Note:
    text: str


@dataclass(frozen=True)
class Picture:
    file: Path
    caption: str


Piece = Heading | Note | Picture | Table


def markdown(title: str, pieces: list[Piece]) -> str:
    return "\n".join([f"# {title}\n", *(_markdown(piece) for piece in pieces)])


def _markdown(piece: Piece) -> str:
    match piece:
        case Heading(text, level):
            return f"{'#' * level} {text}\n"
        case Note(text):
            return f"{text}\n"
        case Picture(file, caption):
            return f"![{caption}]({file.name})\n"
    return piece.markdown()


def html(title: str, pieces: list[Piece]) -> str:
    body = "\n".join(map(_html, pieces))
    return Template(PAGE.read_text()).substitute(title=escape(title), body=body)


def _html(piece: Piece) -> str:
    match piece:
        case Heading(text, level):
            return f"<h{level}>{escape(text)}</h{level}>"
        case Note(text):
            return f'<p class="note">{escape(text)}</p>'
        case Picture(file, caption):
            data = file.read_bytes()
            width = round(int.from_bytes(data[16:20]) * SHOWN / DPI)  # PNG: the first number of IHDR
            source, alt = b64encode(data).decode(), escape(caption, quote=True)
            return (
                f'<figure><img width="{width}" src="data:image/png;base64,{source}" alt="{alt}">'
                f"<figcaption>{escape(caption)}</figcaption></figure>"
            )
    return f'<div class="wide">{piece.html()}</div>'
