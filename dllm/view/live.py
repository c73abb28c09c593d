"""The canvas while it denoises, with every token in the colour of the turn that fixed it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import sqrt

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.style import Style
from rich.text import Text
from torch import Tensor

from dllm.canvas import Canvas
from dllm.common.palette import turn_style
from dllm.contract import Turn
from dllm.models.ids import Ids
from dllm.record.stopwatch import Stopwatch

INTERVAL = 1 / 15  # seconds between two pictures
MAX_SHARE = 0.1  # of the decode's time that pictures may take
PACE = 0.8  # seconds between turns with animate=true, over the root of the turn: 5 turns take 3 s, 128 take 17 s
DIM_STYLE = Style(dim=True)


@dataclass(frozen=True)
class Glyphs:
    """The signs for a mask outside and inside the open block, an end of text, a new line, and a block's edge."""

    mask: str = "·"
    open: str = "░"
    end: str = "∎"
    line: str = "↵"
    edge: str = "│"

    @staticmethod
    def of(encoding: str) -> Glyphs:
        return Glyphs() if encoding.lower().startswith("utf") else Glyphs("_", "=", "#", "/", "|")


@dataclass
class Picture:
    """The state of all rows of a batch, finished ones included. Tensors are [R, L], by request."""

    tokens: Tensor
    masked: Tensor
    fixed: Tensor  # the turn that fixed each column; 0: it was given; -1: it is masked
    edges: Tensor  # [R, L + 1], whether a block begins or ends here
    shown: Tensor  # columns of the answer
    span: Tensor  # [R, 2], the open block
    given: int  # masks at the start

    @staticmethod
    def of(canvas: Canvas) -> Picture:
        rows, length = int(canvas.request.max()) + 1, len(canvas.columns)
        blank = canvas.tokens.new_zeros((rows, length))
        no = blank.bool()
        picture = Picture(
            blank, no.clone(), blank - 1, canvas.tokens.new_zeros((rows, length + 1)).bool(), no.clone(),
            canvas.tokens.new_zeros((rows, 2)), int((canvas.undecided).sum()),
        )  # fmt: skip
        picture.shown[canvas.request] = canvas.valid & (canvas.columns >= canvas.start[:, None])
        picture.fixed[canvas.request] = torch.where(canvas.masked, -1, 0)
        picture.tokens[canvas.request], picture.masked[canvas.request] = canvas.tokens, canvas.undecided
        return picture

    def update(self, turn: Turn) -> None:
        """Show the first candidate of every row after this turn."""
        canvas = turn.step.owner.one(turn.candidates)
        names, known = canvas.request, self.fixed[canvas.request]
        fixed = torch.where(known >= 0, known, turn.blocks.turn[:, None])
        self.fixed[names] = torch.where(canvas.masked, -1, fixed)
        self.tokens[names], self.masked[names] = canvas.tokens, canvas.undecided
        self.open(turn)

    def open(self, turn: Turn, before: bool = False) -> None:
        """Note the blocks of the turn's rows after it, or ``before`` it."""
        names, blocks = turn.canvas.request, turn.view.blocks if before else turn.blocks
        last = self.edges.shape[1] - 1
        self.edges[names, blocks.begin.clamp(max=last)] = True
        self.edges[names, blocks.end.clamp(max=last)] = True
        self.span[names] = torch.stack([blocks.begin, blocks.open_end], 1)


class LiveView:
    """An observer that draws. Use as a context manager; ``note`` is a text for the status line.

    It draws at most 15 pictures a second, and fewer when they would take more than a tenth of the decode's time.
    animate: sleep before every turn's picture, so that a person can follow a small model. watch: the decode's own
    clock, which does not count drawing and sleeping; with it the status line gives the same speed as the table.
    """

    def __init__(
        self, console: Console, text: Callable[[Sequence[int]], str], ids: Ids, animate: bool = False,
        transient: bool = False, watch: Stopwatch | None = None,
    ) -> None:  # fmt: skip
        self.console, self.text, self.ids, self.animate, self.watch = console, text, ids, animate, watch
        self.live = Live(console=console, auto_refresh=False, transient=transient, vertical_overflow="crop")
        self.glyphs = Glyphs.of(console.encoding)
        self.words: dict[int, str] = {}
        self.picture: Picture | None = None
        self.note = ""
        self.turn, self.finished, self.left, self.next, self.spent = 0, 0, 0, 0.0, 0.0

    def __enter__(self) -> LiveView:
        self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.draw()
        self.live.stop()

    def __call__(self, turn: Turn) -> None:
        """Called with every turn: updates the picture, and draws it when it is time."""
        now = time.perf_counter()
        first = int(turn.view.blocks.turn[0]) == 1
        if first:
            self.picture, self.turn, self.next = Picture.of(turn.canvas), 0, 0.0
            self.picture.open(turn, before=True)
        assert self.picture is not None
        if self.animate:
            self.draw()
            time.sleep(PACE / sqrt(self.turn + 1))
        self.picture.update(turn)
        self.turn += 1
        self.spent = 0.0 if self.watch is None else self.watch.seconds()
        if now >= self.next or bool(turn.finished.all()):
            began = time.perf_counter()
            self.draw()
            ended = time.perf_counter()
            self.next = ended + max(INTERVAL, (ended - began) / MAX_SHARE)

    def draw(self) -> None:
        """One picture of the state."""
        if self.picture is not None:
            self.live.update(self.frame(self.picture, self.console.width, self.console.height - 2), refresh=True)

    def frame(self, picture: Picture, width: int, height: int) -> Group:
        """All rows that fit, each in its share of the screen, and the status line."""
        rows = picture.shown.any(1).nonzero()[:, 0].tolist()
        fitting = rows[: max(1, height - 2)]
        share = max(1, (height - 1) // max(len(fitting), 1))
        last = max(int(picture.fixed.max()), 1)
        parts = [self._window(picture, row, last, width, share) for row in fitting]
        if len(fitting) < len(rows):
            parts.append(Text(f"... and {len(rows) - len(fitting)} rows more", DIM_STYLE))
        return Group(*parts, self._status(picture, last, len(rows), width))

    def _status(self, picture: Picture, last: int, rows: int, width: int) -> Text:
        left = int((picture.masked & picture.shown).sum())
        ends = torch.tensor([self.ids.eos, *self.ids.stops], device=picture.tokens.device)
        useful = int(((picture.fixed > 0) & ~torch.isin(picture.tokens, ends)).sum())
        speed = f"{useful / self.spent:.0f} tokens/s" if self.spent > 0 else ""
        words = [f"turn {self.turn}", f"{picture.given - left} of {picture.given} committed", speed, self.note]
        status = Text(" · ".join(word for word in words if word) + "  ", DIM_STYLE)
        status.append("turn 1 ", DIM_STYLE)
        for step in range(8):
            status.append(" ", turn_style(1 + step, 8))
        status.append(f" {last}", DIM_STYLE)
        status.truncate(width, overflow="ellipsis")
        return status

    def _window(self, picture: Picture, row: int, last: int, width: int, height: int) -> Text:
        """The lines of a row around its open block."""
        text, open_at = self.row(picture, row, last)
        lines = text.wrap(self.console, width)
        if len(lines) <= height:
            return Text("\n").join(lines)
        ends = list(accumulate(len(line) + 1 for line in lines))
        line = next((number for number, end in enumerate(ends) if end > open_at), len(lines) - 1)
        begin = min(max(0, line - height // 2), len(lines) - height)
        return Text("\n").join(lines[begin : begin + height])

    def row(self, picture: Picture, row: int, last: int) -> tuple[Text, int]:
        """A row as text, and how many characters come before its first mask."""
        columns = picture.shown[row].nonzero()[:, 0].tolist()
        tokens, masked, fixed = (t[row].tolist() for t in (picture.tokens, picture.masked, picture.fixed))
        edges, (begin, end) = picture.edges[row].tolist(), picture.span[row].tolist()
        text, open_at = Text(overflow="fold", no_wrap=False), -1
        if len(picture.shown) > 1:
            text.append(f"{row + 1:>2} ", DIM_STYLE)
        for at in columns:
            if edges[at] and at > columns[0]:
                text.append(self.glyphs.edge, DIM_STYLE)
            if masked[at]:
                open_at = len(text) if open_at < 0 else open_at
                text.append(self.glyphs.open if begin <= at < end else self.glyphs.mask, DIM_STYLE)
            elif fixed[at] >= 0:
                text.append(self.word(tokens[at]), turn_style(fixed[at], last) if fixed[at] else Style.null())
        return text, len(text) if open_at < 0 else open_at

    def word(self, token: int) -> str:
        """The text of one token as it fits in a line."""
        if token not in self.words:
            ends = token in (self.ids.eos, *self.ids.stops)
            plain = self.glyphs.end if ends else self.text([token]) or f"<{token}>"
            plain = plain.replace("\n", self.glyphs.line).replace("\t", "  ")
            self.words[token] = "".join(letter for letter in plain if letter.isprintable())
        return self.words[token]
