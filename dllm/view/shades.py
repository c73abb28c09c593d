"""How tokens look in a terminal: guesses in greys, by their probability; committed ones in the colour of their turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.console import Console
from rich.style import Style

from dllm.common.palette import letters_on, turn_style

GREYS = 10  # of guesses where there are greys: one for every 10 % of probability
DARKEST, BRIGHTEST = 0x26, 0xD9  # greys behind a guess of 0 and of 1
# Sixteen colours have no Viridis and few greys. Contrast of letters on ground: 6.5 at least, in VGA's palette.
PLAIN_TURNS = ("bright_white on blue", "bright_white on magenta", "black on cyan", "black on bright_green",
               "black on bright_yellow")  # fmt: skip
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
        "corrected": Style(italic=True), "refused": Style(strike=True), "replaced": Style(italic=True, reverse=True),
    }  # fmt: skip

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

    @property
    def are_coloured(self) -> bool:
        """Whether turns differ in colour."""
        return bool(self.guesses) and len(self.turns) != 1

    def guess(self, probability: float) -> Style:
        """After and of the letters of a guess of this probability, 0 to 1."""
        return self.guesses[min(max(int(probability * len(self.guesses)), 0), len(self.guesses) - 1)]

    def turn(self, turn: int, last: int, fresh: bool = False) -> Style:
        """Of a token that ``turn`` (from 1) of ``last`` committed."""
        share = (turn - 1) / max(last - 1, 1)
        style = self.turns[round(share * (len(self.turns) - 1))] if self.turns else turn_style(turn, last)
        return style + self.fresh if fresh else style

    def marked(self, style: Style, marks: Sequence[str]) -> Style:
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
