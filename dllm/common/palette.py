"""Colours for the turns of a decode, from early to late."""

from __future__ import annotations

from functools import lru_cache

from rich.style import Style

# Viridis: brightness rises evenly with the turn, so that it reads alike with every kind of colour vision and in grey.
# It is the background of a token, with black or white letters on it: legible on dark and on light terminals.
VIRIDIS = "440154 482878 3e4989 31688e 26828e 1f9e89 35b779 6ece58 b5de2b fde725"
GRADIENT = tuple(tuple(bytes.fromhex(text)) for text in VIRIDIS.split())  # red, green and blue of each


def colour(share: float) -> tuple[int, int, int]:
    """Red, green and blue (0 to 255) at ``share`` of the gradient, 0 the first turn and 1 the last."""
    place = min(max(share, 0.0), 1.0) * (len(GRADIENT) - 1)
    at = min(int(place), len(GRADIENT) - 2)
    low, high = GRADIENT[at], GRADIENT[at + 1]
    red, green, blue = (round(a + (b - a) * (place - at)) for a, b in zip(low, high, strict=True))
    return red, green, blue


def luminance(rgb: tuple[int, int, int]) -> float:
    """Relative luminance by WCAG 2: contrast of two colours is (bright + 0.05) / (dark + 0.05)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (value / 255 for value in rgb)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def hexes(turn: int, last: int) -> tuple[str, str]:
    """Colours of the background and the letters of a token that was fixed in ``turn`` (from 1) of ``last``."""
    rgb = colour((turn - 1) / max(last - 1, 1))
    return f"#{rgb[0]:02x}{rgb[1]:02x}{rgb[2]:02x}", letters_on(rgb)


def letters_on(rgb: tuple[int, int, int]) -> str:
    """Black or white, whichever has more contrast: 4.58 at least."""
    # Black wins wherever its contrast, (y + 0.05) / 0.05, is above white's, 1.05 / (y + 0.05).
    return "#000000" if (luminance(rgb) + 0.05) ** 2 > 1.05 * 0.05 else "#ffffff"


@lru_cache(maxsize=512)
def turn_style(turn: int, last: int) -> Style:
    """How to show a token that was fixed in ``turn`` of ``last`` in a terminal."""
    ground, letters = hexes(turn, last)
    return Style.parse(f"{letters} on {ground}")
