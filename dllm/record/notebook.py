"""A result as a notebook shows it: HTML with its colours inside."""

from __future__ import annotations

from html import escape

from dllm.common.palette import hexes
from dllm.record.results import Result

FRAME = "white-space:pre-wrap;font-family:monospace;line-height:1.6"
FADED = "opacity:.65"


def coloured(result: Result) -> str:
    """The prompt, dim, and every token of the answer in the colour of the turn that fixed it."""
    last = max(result.turns, default=0)
    body = "".join(_token(word, turn, last) for word, turn in _shown(result))
    prompt = f'<div style="{FADED}">{escape(result.prompt)}</div>' if result.prompt else ""
    cost = f"{result.useful_tokens} tokens, {result.nfe} forwards, {result.tpf:.2f} per forward"
    return f'<div style="{FRAME}">{prompt}<div>{body}</div><div style="{FADED}">{escape(cost)}</div></div>'


def _shown(result: Result) -> list[tuple[str, int]]:
    """Words and their turns: an infilling whole, an answer up to its end."""
    pairs = list(zip(result.words, result.turns, strict=True))
    if result.given_tokens:
        return pairs
    return pairs[: len(result.tokens)]


def _token(word: str, turn: int, last: int) -> str:
    text = escape(word.replace("\n", "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}\n"))
    if turn == 0:
        return f"<span>{text}</span>"
    ground, letters = hexes(turn, last)
    return f'<span title="forward {turn} of {last}" style="background:{ground};color:{letters}">{text}</span>'
