"""Make README's moving picture: ``python -m experiments.pages.race [FILE]`` (default docs/pictures/race.svg).

It is the race that ``python run.py compare=true`` shows in a terminal, of two decodes made for it: the default prompt
with one token per step and with the default sampler, each the fastest of fifteen, since whatever else runs on the
machine only adds time. The SVG moves by styles alone, so that it plays wherever pictures are shown; where nothing may
move, it shows the end.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path

import torch
from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from dllm import Decoder, load
from dllm.compose.parts import composed
from dllm.models.bundle import Model
from dllm.record.stopwatch import Stopwatch
from dllm.view.brush import CanvasRenderer
from dllm.view.race import DURATION, DecodeFilm, Race, RaceLane
from experiments.support.scripts import refusing

FILE = Path(__file__).parents[2] / "docs" / "pictures" / "race.svg"
DECODES = 15  # of each setting
HOLD = 3.0  # seconds that the end stays before it starts again
COLUMNS, LINES = 88, 22  # of the terminal
LETTER, LINE, MARGIN = 8.43, 19, 12  # width of a letter at 14 px, height of a line, around the text; in pixels
PAPER, INK, DIM = "#16161a", "#ececf1", "#a3a3ae"
SAMPLERS = {"one token per step": "static", "confidence": "confidence"}
LineOf = tuple[tuple[str, Style], ...]  # what is in a line: texts and their styles


def lane(model: Model, name: str, prompt: str) -> RaceLane:
    """The fastest decode, as a lane of the race."""
    decoder = Decoder(model, SAMPLERS[name], gen_length=32)
    request = decoder.request(prompt)
    next(decoder.turns(request), None)  # first-time costs
    found = []
    for _ in range(DECODES):
        watch = Stopwatch.on(model.transformer.device)
        film = DecodeFilm(watch)
        ((_, result),) = decoder.run([request], observe=film, watch=watch)
        found.append(RaceLane(name, film, {"id": "1", "sample": 0, "batch": "1/0", **result.to_json()}))
    return min(found, key=lambda lane: lane.end)


def screens(race: Race, prompt: str) -> Iterator[tuple[float, list[LineOf]]]:
    """What the terminal shows, and from which second on, at every moment at which a lane moves."""
    console = race.brush.console
    typed: list[RenderableType] = [Text("$ python run.py compare=true"), Text(prompt, "dim"), Text()]
    moments = sorted({0.0, *(second for lane in race.lanes for second in lane.film.seconds)})
    for moment in moments:
        shown = [line for part in [*typed, race.frame(moment)] for line in console.render_lines(part, pad=False)]
        yield moment * race.factor, [tuple(pieces(line)) for line in shown]


def pieces(line: Sequence[Segment]) -> Iterator[tuple[str, Style]]:
    """A line's texts by style."""
    for style, run in groupby(line, key=lambda segment: segment.style or Style.null()):
        if text := "".join(segment.text for segment in run):
            yield text, style


def svg(shots: Sequence[tuple[float, list[LineOf]]], title: str, story: str) -> str:
    """A moving picture of screens, each shown from its second on. Every line is drawn once for as long as it stays."""
    height = max(len(lines) for _, lines in shots)
    total, begins = DURATION + HOLD, [begin for begin, _ in shots]
    styles: dict[str, str] = {}
    drawn = []
    for number in range(height):
        column = [lines[number] if number < len(lines) else () for _, lines in shots]
        for line, run in groupby(range(len(shots)), key=column.__getitem__):
            first, *rest = run
            after = (rest or [first])[-1] + 1
            if line:
                shown = visibility(styles, begins[first] / total, begins[after] / total if after < len(shots) else 1)
                drawn.append(f"<g{shown}>{''.join(marks(line, number))}</g>")
    wide, tall = COLUMNS * LETTER + 2 * MARGIN, height * LINE + 2 * MARGIN
    rules = "".join(f"@keyframes {name}{{{frames}}}.{name}{{animation-name:{name}}}" for frames, name in styles.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {tall:.0f}" role="img" font-size="14" '
        f'font-family="DejaVu Sans Mono, ui-monospace, monospace" fill="{INK}"><title>{escape(title)}</title>\n'
        f"<desc>{escape(story)}</desc>\n<style>text{{white-space:pre}}.d{{fill:{DIM}}}.b{{font-weight:bold}}"
        f".u{{text-decoration:underline}}.m{{animation:{total}s step-end infinite}}.h{{visibility:hidden}}{rules}"
        "@media(prefers-reduced-motion:reduce){.m{animation:none}}</style>\n"
        f'<rect width="100%" height="100%" rx="6" fill="{PAPER}"/>\n' + "\n".join(drawn) + "\n</svg>\n"
    )


def visibility(styles: dict[str, str], begin: float, end: float) -> str:
    """The class of what is seen between two shares of the time; its rule is added to ``styles``. Without animation only
    what is seen at the end is."""
    if begin == 0 and end == 1:
        return ""
    frames = "0%{visibility:hidden}" * (begin > 0) + f"{100 * begin:.2f}%{{visibility:visible}}"
    frames += f"{100 * end:.2f}%{{visibility:hidden}}" * (end < 1)
    name = styles.setdefault(frames, f"k{len(styles)}")
    return f' class="m {name}{" h" * (end < 1)}"'


def marks(line: LineOf, number: int) -> Iterator[str]:
    """The elements of a line."""
    x, y = float(MARGIN), MARGIN + number * LINE
    for text, style in line:
        wide = len(text) * LETTER
        if style.bgcolor is not None and style.bgcolor.triplet is not None:
            ground = style.bgcolor.triplet.hex
            yield f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{LINE}" fill="{ground}"/>'
        if text.strip():
            flags = [name for name, on in (("d", style.dim), ("b", style.bold), ("u", style.underline)) if on]
            colour = style.color.triplet if style.color else None
            fill = f' fill="{colour.hex}"' if colour else ""
            look = f' class="{" ".join(flags)}"' * bool(flags)
            yield f'<text x="{x:.1f}" y="{y + 14}" textLength="{wide:.1f}"{fill}{look}>{escape(text)}</text>'
        x += wide


def story_of(lanes: Sequence[RaceLane]) -> str:
    """What does not depend on the machine: who took how many forwards to which answer."""
    return "; ".join(
        f"{lane.name}: {lane.row['nfe']} forwards, {lane.row['useful_tokens']} tokens, {lane.row['text']!r}"
        for lane in lanes
    )


def drawn() -> str:
    """The picture, of decodes on one thread: two of a small model wait for each other when the machine is busy."""
    torch.set_num_threads(1)
    model, prompt = load("mini-llada"), str(composed([]).model.prompt)
    console = Console(
        width=COLUMNS,
        height=LINES,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        no_color=False,
        legacy_windows=False,
    )
    lanes = [lane(model, name, prompt) for name in SAMPLERS]
    decoder = Decoder(model, gen_length=32)
    race = Race(CanvasRenderer(console, decoder.prompts.text, model.ids), lanes)
    title = "Two decodes of one prompt on one clock: one token per step above, several per step below"
    return svg(list(screens(race, prompt)), title, story_of(lanes))


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=FILE)
    file = parser.parse_args(arguments).file
    file.write_text(drawn(), encoding="utf-8")
    print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
