"""Results and traces as a notebook shows them: HTML with its colours inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from dllm.common.palette import hexes
from dllm.record.results import Result
from dllm.record.trace import Trace
from dllm.record.turns import TurnRecord
from dllm.scoring.decisions.results import SlotDecision

FRAME = "white-space:pre-wrap;font-family:monospace;line-height:1.6"
PALE = "opacity:.65"
BAR = "#3b7dd8"  # of a probability; seen on white and on black
MOST_RESULTS = 20  # results that are shown
SWATCHES = 5  # of the legend of colours


def result_html(result: Result) -> str:
    """A result's text, each token in the colour of the turn that fixed it."""
    # An infilling is shown whole, an answer up to its end.
    count = len(result.words) if result.given_tokens else len(result.tokens)
    cost = f"{result.useful_tokens} tokens, {result.nfe} forwards, {result.tpf:.2f} per forward"
    return decode_html(result.prompt, result.words[:count], result.turns, cost)


def results_html(results: Sequence[Result]) -> str:
    """Results one below another, the first ``MOST_RESULTS`` of them."""
    html = "<hr>".join(map(result_html, results[:MOST_RESULTS]))
    rest = len(results) - MOST_RESULTS
    return html + (f'<div style="{PALE}">and {rest} more</div>' if rest > 0 else "")


def decisions_html(decisions: Mapping[str, SlotDecision]) -> str:
    """A line for each alternative of each question: its probability in per cent, as a bar; the choice is bold. Beside
    the question the probability that any alternative is there, or the note where it is little."""
    lines = []
    for name, decision in decisions.items():
        note = decision.note or ("" if decision.mass is None else f"{decision.mass:.0%} on the alternatives")
        mass = f' <span style="{PALE}">{escape(note)}</span>' if note else ""
        lines.append(f'<tr><th colspan="3" style="text-align:left">{escape(name)}{mass}</th></tr>')
        for value, share in decision.probabilities.items():
            weight = "bold" if value == decision.choice else "normal"
            bar = f'<div style="background:{BAR};height:.8em;width:{12 * share:.2f}em"></div>'
            lines.append(
                f'<tr><td style="text-align:left;font-weight:{weight}">{escape(str(value))}</td>'
                f"<td>{share:.1%}</td><td>{bar}</td></tr>"
            )
    return f"<table>{''.join(lines)}</table>"


def trace_html(trace: Trace) -> str:
    """An answer forward by forward, each token in the colour of the forward that fixed it."""
    fixed, rows = [0] * (trace.length - trace.start), list[list[tuple[str | None, int]]]()
    canvases = list(trace.answers())
    path, is_open = trace.path(), [not is_given for is_given in trace.given[trace.start :]]
    for number, canvas in enumerate(canvases):
        if number:
            _mark(*path[number - 1], number, fixed, is_open)
        rows.append(
            [
                (None if is_hole else trace.words.get(token, f"<{token}>"), turn)
                for token, turn, is_hole in zip(canvas, fixed, is_open, strict=True)
            ]
        )
    return film(rows)


def _mark(record: TurnRecord, candidate: int, number: int, fixed: list[int], is_open: list[bool]) -> None:
    """Bring up to date which positions of the answer a turn has fixed, and which are undecided after it."""
    places = [at for commits in record.written(candidate) for at in commits.positions] + record.filled[candidate]
    for at in record.remasked[candidate]:
        fixed[at], is_open[at] = 0, True
    for at in places:
        fixed[at], is_open[at] = number, False
    for at in record.rolled[candidate]:
        fixed[at], is_open[at] = 0, True


def decode_html(prompt: str, words: Sequence[str], turns: Sequence[int], cost: str) -> str:
    """HTML of a decode: the prompt, dim; every word in the colour of the turn that fixed it; a line about its cost.

    turns: from 1, 0 for a word that was given. There may be more turns than words; the largest ends the colour scale.
    """
    last = max(turns, default=0)
    body = "".join(_token(word, turn, last) for word, turn in zip(words, turns, strict=False))
    above = f'<div style="{PALE}">{escape(prompt)}</div>' if prompt else ""
    below = f'<div style="{PALE}">{escape(cost)}{_legend(last)}</div>'
    return f'<div style="{FRAME}">{above}<div>{body}</div>{below}</div>'


def _legend(last: int) -> str:
    """Which colour is which forward; nothing where there is one."""
    if last < 2:
        return ""
    turns = dict.fromkeys(round(1 + at * (last - 1) / (SWATCHES - 1)) for at in range(SWATCHES))
    swatches = "".join(f'<span style="background:{hexes(turn, last)[0]}">&emsp;</span>' for turn in turns)
    return f" &middot; forward 1 {swatches} {last}"


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
        lines.append(f'<tr><th style="{PALE};font-weight:normal;text-align:left">{head}</th>{cells}</tr>')
    return f'<div style="{FRAME};overflow-x:auto"><table>{"".join(lines)}</table></div>'


def _mask() -> str:
    return f'<span style="{PALE}" title="undecided">\N{LIGHT SHADE}</span>'
