"""Draws rows of a picture as lines of a terminal: tokens, guesses, masks, block edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from rich.console import Console
from rich.style import Style
from rich.text import Text

from dllm.common.palette import letters_on, turn_style
from dllm.models.text.ids import Ids
from dllm.view.picture import Picture

DIM_STYLE = Style(dim=True)


@dataclass(frozen=True)
class Glyphs:
    """The signs for a mask outside and inside the open block, an end of text, a new line, and a block's edge."""

    mask: str = "·"  # a mask outside the open block
    open: str = "░"  # a mask inside it
    end: str = "∎"  # an end of text
    line: str = "↵"  # a new line
    edge: str = "│"  # between two blocks

    @staticmethod
    def of(encoding: str) -> Glyphs:
        return Glyphs() if encoding.lower().startswith("utf") else Glyphs("_", "=", "#", "/", "|")


class CanvasRenderer:
    """What a console can show of a picture. text: of token ids. ids: those that end a text have a sign of their own."""

    def __init__(self, console: Console, text: Callable[[Sequence[int]], str], ids: Ids) -> None:
        self.console, self.text = console, text
        self.ends = [ids.eos, *ids.stops]
        self.glyphs, self.shades = Glyphs.of(console.encoding), Shades.of(console)
        self.words: dict[int, str] = {}

    def window(self, picture: Picture, row: int, last: int, width: int, height: int) -> Text:
        """The lines of a row around its open block. last: the turn that has the last colour."""
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
        columns = picture.in_answer[row].nonzero()[:, 0].tolist()
        masked, edges = picture.masked[row].tolist(), picture.edges[row].tolist()
        text, open_at = Text(overflow="fold", no_wrap=False), -1
        if len(picture.in_answer) > 1:
            text.append(f"{row + 1:>2} ", DIM_STYLE)
        pieces = self.pieces(picture, row, last)
        for at in columns:
            if edges[at] and at > columns[0]:
                text.append(self.glyphs.edge, DIM_STYLE)
            if masked[at] and open_at < 0:
                open_at = len(text)
            word, style = pieces[at]
            text.append(word if at < columns[-1] else word.rstrip("\n"), style)
        return text, len(text) if open_at < 0 else open_at

    def pieces(self, picture: Picture, row: int, last: int) -> list[tuple[str, Style]]:
        """What is in each column of a row, and how it looks."""
        tokens, masked, fixed, fresh, guess, sure = (
            values[row].tolist()
            for values in (picture.tokens, picture.masked, picture.fixed, picture.fresh, picture.guess, picture.sure)
        )
        begin, end = picture.span[row].tolist()
        pieces, marks, with_marks = [], picture.column_marks(row), self.shades.with_marks
        noise = picture.noise[row].tolist()
        for at, token in enumerate(tokens):
            if masked[at] and noise[at]:
                pieces.append((self.word(token), DIM_STYLE))
            elif masked[at] and sure[at] >= 0 and self.shades.guesses:
                pieces.append((self.word(guess[at]), with_marks(self.shades.guess(sure[at]), marks[at])))
            elif masked[at]:
                pieces.append((self.glyphs.open if begin <= at < end else self.glyphs.mask, DIM_STYLE))
            elif fixed[at] > 0:
                pieces.append((self.word(token), with_marks(self.shades.turn(fixed[at], last, fresh[at]), marks[at])))
            else:
                pieces.append(("" if fixed[at] < 0 else self.word(token), Style.null()))
        return pieces

    def word(self, token: int) -> str:
        """The text of one token, with a sign for every new line. One that ends in a new line ends the line."""
        if token not in self.words:
            plain = self.glyphs.end if token in self.ends else self.text([token]) or f"<{token}>"
            signs = plain.replace("\n", self.glyphs.line).replace("\t", "  ")
            text = "".join(letter for letter in signs if letter.isprintable())
            self.words[token] = text + "\n" * plain.endswith("\n")
        return self.words[token]

    def ramp(self, last: int) -> Text:
        """The colours of the forwards, from the first to the ``last``; nothing without any."""
        if not self.shades.guesses or len(self.shades.turns) == 1:
            return Text()
        ramp = Text("forward 1 ", DIM_STYLE)
        for step in range(8):
            ramp.append(" ", self.shades.turn(1 + step, 8))
        return ramp.append(f" {last}", DIM_STYLE)

    def legend(self, width: int, last: int, marks: Sequence[str] = (), noise: bool = False) -> list[Text]:
        """How to read guesses, in a line, and what the ``last`` turn committed; no line where no guesses are shown.
        Another line explains the ``marks`` of a constraint, if there are any. noise: some undecided positions show
        it."""
        if not self.shades.guesses:
            return []
        legend = Text(no_wrap=True).append("guess, unsure ", DIM_STYLE)
        for style in self.shades.guesses:
            legend.append("a", style)
        legend.append(" sure · ", DIM_STYLE).append("just committed", self.shades.turn(last, last, True))
        legend.append(" · a noise" if noise else f" · {self.glyphs.open} no guess", DIM_STYLE)
        lines = [legend, *self._marks_legend(marks)]
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        return lines

    def _marks_legend(self, marks: Sequence[str]) -> list[Text]:
        words = {
            "corrected": "not the model's first choice",
            "refused": "waits, since it does not go with the others",
            "replaced": "another token, which does",
        }
        line, plain = Text("constraint: ", DIM_STYLE, no_wrap=True), self.shades.guess(1)
        for kind in marks:
            line.append(" · " if kind != marks[0] else "", DIM_STYLE)
            line.append(kind, self.shades.with_marks(plain, [kind])).append(f" {words[kind]}", DIM_STYLE)
        return [line] if marks else []


GREYS = 10  # of guesses where there are greys: one for every 10 % of probability
DARKEST, BRIGHTEST = 0x26, 0xD9  # grounds of a guess of 0 and of 1
# Sixteen colours have no Viridis and few greys. Contrast of letters on ground: 6.5 at least, in VGA's palette.
PLAIN_TURNS = (
    "bright_white on blue",
    "bright_white on magenta",
    "black on cyan",
    "black on bright_green",
    "black on bright_yellow",
)
PLAIN_GUESSES = ("white on black", "bright_white on bright_black", "black on white")
MARKED_GUESSES = ("dim", "dim underline", "underline")  # without colours


@dataclass(frozen=True)
class Shades:
    """The colours of the canvas in a terminal."""

    # from unsure to sure, each for an equal share of probability; none where a terminal has no styles, so that a guess
    # could not be told from a token
    guesses: tuple[Style, ...]
    turns: tuple[Style, ...] = ()  # from early to late; none: Viridis, one colour for every turn
    # what is added to a token that was committed just now. marks: and to what a constraint changed
    fresh: Style = Style(bold=True, underline=True)
    marks: ClassVar[dict[str, Style]] = {
        "corrected": Style(italic=True),
        "refused": Style(strike=True),
        "replaced": Style(italic=True, reverse=True),
    }

    @staticmethod
    def of(console: Console) -> Shades:
        """What this terminal can show. NO_COLOR leaves bold, dim and underlined letters."""
        if console.color_system is None:
            return Shades(())
        if console.no_color:
            return Shades(styles_of(MARKED_GUESSES), styles_of(("none",)), Style(bold=True, reverse=True))
        if console.color_system in ("standard", "windows"):
            return Shades(styles_of(PLAIN_GUESSES), styles_of(PLAIN_TURNS))
        return Shades(tuple(grey(level / (GREYS - 1)) for level in range(GREYS)))

    def guess(self, probability: float) -> Style:
        """The style of a guess of this probability, 0 to 1."""
        return self.guesses[min(max(int(probability * len(self.guesses)), 0), len(self.guesses) - 1)]

    def turn(self, turn: int, last: int, fresh: bool = False) -> Style:
        """The style of a token that ``turn`` (from 1) of ``last`` committed."""
        share = (turn - 1) / max(last - 1, 1)
        style = self.turns[round(share * (len(self.turns) - 1))] if self.turns else turn_style(turn, last)
        return style + self.fresh if fresh else style

    def with_marks(self, style: Style, marks: Sequence[str]) -> Style:
        """The style of what a constraint changed in these ways."""
        for mark in marks:
            style += self.marks[mark]
        return style


def grey(share: float) -> Style:
    """The style of a grey, 0 the darkest and 1 the brightest."""
    value = round(DARKEST + (BRIGHTEST - DARKEST) * share)
    return Style.parse(f"{letters_on((value, value, value))} on #{3 * f'{value:02x}'}")


def styles_of(names: tuple[str, ...]) -> tuple[Style, ...]:
    return tuple(map(Style.parse, names))
