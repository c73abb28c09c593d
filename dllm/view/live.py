"""The canvas while it denoises: the model's guesses, and every token in the colour of the turn that fixed it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import sqrt

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from dllm.common.terminal import as_text
from dllm.contract import Turn
from dllm.models.text.ids import Ids
from dllm.record.stopwatch import Stopwatch
from dllm.view.brush import DIM_STYLE, CanvasRenderer
from dllm.view.picture import Picture

INTERVAL = 1 / 15  # seconds between two pictures
MAX_SHARE = 0.1  # of the decode's time that pictures may take
PACE = 0.8  # seconds a turn with animate=true, over the root of the turn: 5 turns take 3 s, 128 take 17 s
LEGEND_HEIGHT = 6  # lines of a screen from which on the legend has one


class LiveView:
    """An observer that draws. Use as a context manager; ``note`` is a text for the status line.

    It draws at most 15 pictures a second, and fewer when they would take more than a tenth of the decode's time.
    animate: show every turn twice, its guesses and then its commits, each long enough for a person to follow a small
    model. watch: the decode's own clock, which does not count drawing and sleeping; with it the status line gives the
    same speed as the table.
    """

    def __init__(
        self,
        console: Console,
        text: Callable[[Sequence[int]], str],
        ids: Ids,
        animate: bool = False,
        transient: bool = False,
        watch: Stopwatch | None = None,
    ) -> None:
        self.console, self.animate, self.watch = console, animate, watch
        self.brush = CanvasRenderer(console, text, ids)
        self.live = Live(console=console, auto_refresh=False, transient=transient, vertical_overflow="crop")
        self.picture: Picture | None = None
        self.note = ""
        self.turn, self.next, self.spent = 0, 0.0, 0.0

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
        picture = self._picture_of(turn)
        picture.propose(turn)
        self._linger()
        picture.update(turn)
        self.turn += 1
        self.spent = 0.0 if self.watch is None else self.watch.seconds()
        if self.animate:
            self._linger()
        elif now >= self.next or len(turn.finished) == len(turn.active):
            begin = time.perf_counter()
            self.draw()
            end = time.perf_counter()
            self.next = end + max(INTERVAL, (end - begin) / MAX_SHARE)

    def _picture_of(self, turn: Turn) -> Picture:
        """The picture of the batch, new in its first turn, with the rows that have joined it."""
        if self.picture is None or (int(turn.canvas.row_id[0]) == 0 and int(turn.view.blocks.turn[0]) == 1):
            self.picture, self.turn, self.next = Picture.of(turn.canvas), 0, 0.0
            self.picture.open(turn, before=True)
            self._linger()
        self.picture = self.picture.join(turn.canvas)
        return self.picture

    def _linger(self) -> None:
        """In an animation, draw the state and leave it for half a turn's time."""
        if self.animate:
            self.draw()
            time.sleep(PACE / sqrt(self.turn + 1) / 2)

    def draw(self) -> None:
        if self.picture is not None:
            self.live.update(self.frame(self.picture, self.console.width, self.console.height - 2), refresh=True)

    def frame(self, picture: Picture, width: int, height: int) -> Group:
        """The rows under way (without any, all) that fit, each in its share of the screen, the legend
        while there are masks, and the status line."""
        busy = bool(picture.masked.any())
        rows = (picture.masked if busy else picture.in_answer).any(1).nonzero()[:, 0].tolist()
        last = max(int(picture.fixed.max()), 1)
        has_legend = busy and height >= LEGEND_HEIGHT
        legend = self.brush.legend(width, last, picture.marks(), bool(picture.noise.any())) if has_legend else []
        space = height - len(legend)
        fitting = rows[: max(1, space - 2)]
        share = max(1, (space - 1) // max(len(fitting), 1))
        parts = [self.brush.window(picture, row, last, width, share) for row in fitting]
        if len(fitting) < len(rows):
            parts.append(as_text(f"... and {len(rows) - len(fitting)} rows more", DIM_STYLE))
        return Group(*parts, *legend, self._status(picture, last, width))

    def _status(self, picture: Picture, last: int, width: int) -> Text:
        speed = f"{picture.useful(self.brush.ends) / self.spent:.0f} tokens/s" if self.spent > 0 else ""
        remask_count = picture.remask_count()
        words = [
            f"forward {self.turn}",
            f"{picture.commit_count()} of {picture.mask_total} committed",
            f"{remask_count} remasked" if remask_count else "",
            speed,
            self.note,
        ]
        status = as_text(" · ".join(word for word in words if word) + "  ", DIM_STYLE)
        status.append_text(self.brush.ramp(last))
        status.truncate(width, overflow="ellipsis")
        return status
