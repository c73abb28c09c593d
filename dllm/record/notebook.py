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
