"""A result as a notebook shows it: HTML with its colours inside."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from dllm.common.palette import hexes

FRAME = "white-space:pre-wrap;font-family:monospace;line-height:1.6"
FADED = "opacity:.65"


def coloured(prompt: str, words: Sequence[str], turns: Sequence[int], cost: str) -> str:
    """HTML of a decode: the prompt, dim; every word in the colour of the turn that fixed it; a line about its cost.

    turns: from 1, 0 for a word that was given. There may be more turns than words; the largest ends the colour scale.
    """
    last = max(turns, default=0)
    body = "".join(_token(word, turn, last) for word, turn in zip(words, turns, strict=False))
    above = f'<div style="{FADED}">{escape(prompt)}</div>' if prompt else ""
    return f'<div style="{FRAME}">{above}<div>{body}</div><div style="{FADED}">{escape(cost)}</div></div>'


def _token(word: str, turn: int, last: int) -> str:
    text = escape(word.replace("\n", "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}\n"))
    if turn == 0:
        return f"<span>{text}</span>"
    ground, letters = hexes(turn, last)
    return f'<span title="forward {turn} of {last}" style="background:{ground};color:{letters}">{text}</span>'


def film(rows: Sequence[Sequence[tuple[str | None, int]]]) -> str:
    """HTML of a decode forward by forward: a line for the canvas before each and one for the last, each position with
    its word (None: undecided) and the forward that fixed it (0: given)."""
    last = max((turn for row in rows for _, turn in row), default=0)
    lines = []
    for number, row in enumerate(rows):
        cells = "".join(f"<td>{_mask() if word is None else _token(word, turn, last)}</td>" for word, turn in row)
        head = f"forward {number}" if number else "start"
        lines.append(f'<tr><th style="{FADED};font-weight:normal;text-align:left">{head}</th>{cells}</tr>')
    return f'<div style="{FRAME};overflow-x:auto"><table>{"".join(lines)}</table></div>'


def _mask() -> str:
    return f'<span style="{FADED}" title="undecided">\N{LIGHT SHADE}</span>'
