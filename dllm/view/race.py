"""Two decodes of one prompt as a race: one above the other, both driven by one clock.

They were decoded one after the other, so that neither took the other's cores. The race replays their measured seconds,
slowed or hurried by one factor that is on the screen.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from dllm.common.terminal import as_text, visible
from dllm.contract import Turn
from dllm.record.measures import Measures
from dllm.record.results import ResultRow
from dllm.record.stopwatch import Stopwatch
from dllm.view.brush import DIM_STYLE, CanvasRenderer
from dllm.view.live import INTERVAL
from dllm.view.picture import MARKS, Picture

DURATION = 8.0  # seconds that the slower decode takes on the screen
FOOTER = 4  # lines below the lanes
SAMPLES = 12  # pictures of a film that are measured for the lines it takes


@dataclass
class DecodeFilm:
    """An observer that keeps the picture after every turn of one request, and the decode's seconds then."""

    watch: Stopwatch  # the decode's own clock
    # one more than ``seconds``; the first is from before the first turn
    pictures: list[Picture] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of the decode at each picture
    now: Picture | None = None  # the last of them, on the decode's device

    def __call__(self, turn: Turn) -> None:
        """Called with every turn."""
        if self.now is None:
            self.now = Picture.of(turn.canvas)
            self.now.open(turn, before=True)
            self.pictures.append(self.now.copy())
        self.now.propose(turn)
        self.now.update(turn)
        self.pictures.append(self.now.copy())
        self.seconds.append(self.watch.seconds())


@dataclass(frozen=True)
class RaceLane:
    """One decode of a race: how it is called, its film, and its row of results."""

    name: str  # as the race calls it
    film: DecodeFilm  # its pictures
    row: ResultRow  # its results

    @property
    def end(self) -> float:
        """Its measured seconds."""
        return self.film.seconds[-1]

    def turns(self, seconds: float) -> int:
        """Turns that were done that many measured seconds after its start."""
        return bisect_right(self.film.seconds, seconds)

    def words(self, seconds: float, ends: list[int], first: bool) -> str:
        """How far it is. first: it is the one that finishes first."""
        turns, total = self.turns(seconds), len(self.film.seconds)
        useful = self.row["useful_tokens"] if turns == total else self.film.pictures[turns].useful(ends)
        rate = f"{useful / turns if turns else 0:.2f} tokens per forward"
        if turns < total:
            return f"forward {turns} of {total} · {seconds_text(seconds)} · {rate}"
        return f"{'finished first' if first else 'finished'}: {total} forwards · {seconds_text(self.end)} · {rate}"


class Race:
    """Decodes of one prompt on one clock, each of at least one turn."""

    def __init__(self, brush: CanvasRenderer, lanes: Sequence[RaceLane]) -> None:
        self.brush, self.lanes, self.end = brush, lanes, max(lane.end for lane in lanes)
        marks = {mark for lane in lanes for picture in lane.film.pictures for mark in picture.marks()}
        self.marks = [mark for mark in MARKS if mark in marks]
        self.heights = [self._height(lane.film.pictures) for lane in lanes]
        self.winner = min(range(len(lanes)), key=lambda number: lanes[number].end)
        self.factor = DURATION / max(self.end, 1e-9)  # seconds on the screen per measured second

    def play(self) -> None:
        """Replay it. Ctrl-C goes to its end."""
        with Live(console=self.brush.console, auto_refresh=False, vertical_overflow="crop") as live:
            try:
                began = time.perf_counter()
                while (now := (time.perf_counter() - began) / self.factor) < self.end:
                    live.update(Group(self.frame(now), as_text("Ctrl-C skips to the end.", DIM_STYLE)), refresh=True)
                    time.sleep(INTERVAL)
            except KeyboardInterrupt:
                pass
            live.update(self.frame(self.end), refresh=True)

    def frame(self, seconds: float) -> Group:
        """Both decodes that many measured seconds after their starts, and what the screen shows."""
        console = self.brush.console
        width, space = console.width, max(1, (console.height - 2 - FOOTER - bool(self.marks)) // len(self.lanes) - 2)
        parts: list[RenderableType] = []
        for number, lane in enumerate(self.lanes):
            head = Text.assemble((visible(lane.name), "bold"), "  ", no_wrap=True)
            head.append(lane.words(seconds, self.brush.ends, number == self.winner))
            head.truncate(width, overflow="ellipsis")
            parts += [head, self._answer(lane, seconds, width, min(space, self.heights[number])), Text()]
        parts += self.brush.legend(width, 2, self.marks)  # of two turns, the last one has the last colour
        return Group(*parts, *(as_text(line, DIM_STYLE) for line in self._origin()))

    def _answer(self, lane: RaceLane, seconds: float, width: int, lines: int) -> Text:
        """The lane's answer in that many lines, blank ones included."""
        turns = lane.turns(seconds)
        text = self.brush.window(lane.film.pictures[turns], 0, max(turns, 1), width, lines)
        return text.append("\n" * (lines - 1 - text.plain.count("\n")))

    def _height(self, pictures: Sequence[Picture]) -> int:
        """The most lines that one of the pictures takes, by a sample of them."""
        some = [*pictures[:: max(1, len(pictures) // SAMPLES)], pictures[-1]]
        rows = (self.brush.row(picture, 0, len(pictures))[0] for picture in some)
        return max(len(row.wrap(self.brush.console, self.brush.console.width)) for row in rows)

    def _origin(self) -> list[str]:
        """How the race came about, and what makes its seconds doubtful."""
        pace = f"{self.factor:.3g} times slower" if self.factor > 1 else f"{1 / self.factor:.3g} times faster"
        doubts = [Measures.of([lane.row]).warning for lane in self.lanes]
        busy = [f"{lane.name}: {doubt}" for lane, doubt in zip(self.lanes, doubts, strict=True) if doubt]
        return [
            f"Ran one after the other; replayed by their measured seconds, {pace}.",
            *([f"The machine was busy: {'; '.join(busy)}."] if busy else []),
        ]


def seconds_text(seconds: float) -> str:
    """Seconds with three digits below one second, else with one below a minute."""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
