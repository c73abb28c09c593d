"""An SVG that grows by boxes and words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

INK, DIM, PAPER = "#1b1b1f", "#5d5d66", "#ffffff"


@dataclass
class Drawing:
    """An SVG that grows line by line; x and y in pixels from the top left."""

    width: float
    height: float
    parts: list[str]

    @staticmethod
    def of(width: float, height: float) -> Drawing:
        return Drawing(width, height, [])

    def box(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"/>')

    def text(self, x: float, y: float, words: str, fill: str = INK, anchor: str = "start") -> None:
        place = f'x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}"'
        self.parts.append(f'<text {place} xml:space="preserve">{escape(words)}</text>')

    def boxes(self, boxes: Sequence[tuple[int, int, int, int]], fill: str) -> None:
        """Many boxes of one colour, as one path: x, y, width, height."""
        path = "".join(f"M{x} {y}h{wide}v{tall}h-{wide}z" for x, y, wide, tall in boxes)
        self.parts.append(f'<path d="{path}" fill="{fill}"/>')

    def letters(self, letters: Sequence[tuple[int, str]], y: int, fill: str) -> None:
        """One letter at each x, all in one line."""
        places = " ".join(str(x) for x, _ in letters)
        words = escape("".join(letter for _, letter in letters))
        self.parts.append(f'<text x="{places}" y="{y}" fill="{fill}">{words}</text>')

    def svg(self, title: str) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:.0f} {self.height:.0f}" role="img" '
            f'font-family="DejaVu Sans Mono, ui-monospace, monospace" font-size="14"><title>{escape(title)}</title>'
        )
        return "\n".join([head, f'<rect width="100%" height="100%" fill="{PAPER}"/>', *self.parts, "</svg>\n"])
