"""Results and traces as a notebook shows them: HTML with its colours inside."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from dllm.common.palette import hexes
from dllm.record.results import Result
from dllm.record.trace import Trace
from dllm.record.turns import TurnRecord

FRAME = "white-space:pre-wrap;font-family:monospace;line-height:1.6"
FADED = "opacity:.65"


def result_html(result: Result) -> str:
    """A result's text, each token in the colour of the turn that fixed it."""
    # An infilling is shown whole, an answer up to its end.
    shown = len(result.words) if result.given_tokens else len(result.tokens)
    cost = f"{result.useful_tokens} tokens, {result.nfe} forwards, {result.tpf:.2f} per forward"
    return coloured(result.prompt, result.words[:shown], result.turns, cost)


def trace_html(trace: Trace) -> str:
    """An answer forward by forward, each token in the colour of the forward that fixed it."""
    fixed, rows = [0] * (trace.length - trace.start), list[list[tuple[str | None, int]]]()
    canvases = [canvas[trace.start :] for canvas in trace.canvases()]
    path, is_open = trace.path(), [not given for given in trace.given[trace.start :]]
    for number, canvas in enumerate(canvases):
        if number:
            _mark(*path[number - 1], number, fixed, is_open)
        rows.append([
            (None if undecided else trace.words.get(token, f"<{token}>"), turn)
            for token, turn, undecided in zip(canvas, fixed, is_open, strict=True)
        ])  # fmt: skip
    return film(rows)


def _mark(record: TurnRecord, kept: int, number: int, fixed: list[int], is_open: list[bool]) -> None:
    """Bring up to date which positions of the answer a turn has fixed, and which are undecided after it."""
    decided = [at for commits in record.written(kept) for at in commits.positions] + record.filled[kept]
    for at in record.remasked[kept]:
        fixed[at], is_open[at] = 0, True
    for at in decided:
        fixed[at], is_open[at] = number, False
    for at in record.rolled[kept]:
        fixed[at], is_open[at] = 0, True


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
