"""Draw the pictures of the documentation: ``python -m experiments.pages.pictures [FOLDER]`` (default docs/pictures).

The drawings are SVG text, made from decodes of the mini model. ``--screenshots`` also takes those of the trace viewer,
and those of the playground, which needs Chromium and playwright.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console
from rich.text import Text

from dllm import Decoder, Result, part
from dllm.common.palette import hexes
from dllm.compose.parts import composed
from dllm.contract import Need, Turn
from dllm.parts.samplers.confidence import Confidence
from dllm.view.live import LiveView
from dllm.view.page import Pane, trace_page
from dllm.view.picture import Picture
from experiments.bench.serve import started
from experiments.pages.drawing import DIM, INK, Drawing
from experiments.pages.films import cache_pictures, model_of, sampler_films
from experiments.support.scripts import refusing

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
SHUFFLE = 'Shuffle the list:\n["Kai", "Emma", "Hugo", "Nell"]'
SORT = 'Sort the list:\n["Nell", "Kai", "Emma", "Hugo"]'
DEAL = (
    'Move each person to a town People: ["Cleo","Tara","Ezra","Eileen","Dora"]\n'
    'Towns: ["Madrid", "Dublin", "Cairo", "Lima", "Delhi"]'
)
LETTER, ROW = 8.4, 26  # width of a monospaced letter at 14 px, height of a line
DECODED = "() => [...document.querySelectorAll('.status')].every((p) => p.textContent.startsWith('done'))"
TERMINAL_TURNS = 22  # of 32
HIGH, LOW = 0.8, 0.1  # confidences that the paper of AdaBlock describes its figures with
BAND_BLOCK, TAIL = 32, 12  # AdaBlock's block; positions shown after the text
REGION_FILLS = ("#e4e4ea", "#31688e", "#e69f00", "#1b1b1f")  # decided, and masks of the three regions of confidence


def decoded(prompt: str, length: int = 12, sampler: str = "confidence", **options: object) -> Result:
    """One traced answer as one block without an end-of-text policy."""
    rule = part("sampler", sampler, **options)
    return Decoder(model_of("mini-llada"), rule, "whole", eos="none", gen_length=length)(prompt, trace=True)[0]


def film(result: Result, title: str, columns: int | None = None) -> str:
    """A line per forward: masked positions, and committed ones in the colour of their forward. columns: how many."""
    trace = result.traced()
    turns = len(trace.turns)
    widths = [max(len(shown(word)), 1) * LETTER + 8 for word in result.words[:columns]]
    left = 130.0
    drawing = Drawing.of(left + sum(widths) + 10, ROW * (turns + 1) + 16)
    for step, canvas in enumerate(trace.canvases()):
        y = 8 + ROW * step
        drawing.text(8, y + 18, f"forward {step}" if step else "start", DIM)
        x = left
        for at, (token, width) in enumerate(zip(canvas[trace.start :][:columns], widths, strict=True)):
            if token == trace.mask_id:
                drawing.box(x + 1, y + 2, width - 2, ROW - 4, "#e4e4ea")
            else:
                ground, letters = hexes(result.turns[at], turns)
                drawing.box(x + 1, y + 2, width - 2, ROW - 4, ground)
                drawing.text(x + width / 2, y + 18, shown(trace.words[token]), letters, "middle")
            x += width
    return drawing.svg(title)


def shown(word: str) -> str:
    return "\N{END OF PROOF}" if word.startswith("<|") else word.strip(" ") or "\N{OPEN BOX}"


def film_sorted() -> str:
    return film(decoded(SORT), "A decode by confidence: sure tokens first, several in one forward")


def film_shuffled() -> str:
    return film(decoded(SHUFFLE), "A random order cannot be fixed at once: one name after the other")


def film_too_fast() -> str:
    at_once = decoded(SHUFFLE, sampler="static", steps=1)
    return film(at_once, "Everything in one forward: names that do not know each other")


def film_one_by_one() -> str:
    return film(decoded(SORT, sampler="static", steps=12), "One token per forward, the surest first")


def rule_film(name: str, **options: object) -> str:
    """A film of docs/four_rules.md: what its command decodes, to the first end of the text."""
    result = Decoder(model_of("mini-llada"), part("sampler", name, **options), gen_length=32)(SHUFFLE, trace=True)[0]
    return film(result, f"sampler={name}: {result.nfe} forwards", result.useful_tokens + 1)


def queries() -> str:
    """Query rows of every forward, per cache, in a decode of one token per forward."""
    caches = ["none", "prefix", "dual", "window"]
    works = {name: work_of(name) for name in caches}
    most = max(max(work) for work in works.values())
    drawing = Drawing.of(700, 8 + 92 * len(caches))
    for number, (name, work) in enumerate(works.items()):
        y = 8 + 92 * number
        drawing.text(8, y + 34, f"cache={name}")
        drawing.text(8, y + 54, f"{sum(work)} rows in all", DIM)
        wide = 500 / len(work)
        for at, rows in enumerate(work):
            tall = 70 * rows / most
            drawing.box(190 + at * wide, y + 74 - tall, wide - 1, tall, "#31688e" if rows < most else "#e69f00")
    return drawing.svg("Rows computed in each forward; orange: the whole canvas")


def work_of(cache: str) -> list[int]:
    options = {"active_tokens": 8, "window_tokens": 16, "refresh_interval": 8} if cache == "window" else {}
    decoder = Decoder(
        model_of("mini-llada"),
        "static",
        part("blocks", "fixed", block_length=16),
        part("cache", cache, **options),
        "none",
        gen_length=48,
    )
    turns = decoder(SORT, trace=True)[0].traced().turns
    return [round(sum(turn.queries) / len(turn.queries)) for turn in turns]


def terminal() -> str:
    """The live view in the middle of a decode of the default prompt, as rich draws it."""
    console = Console(
        record=True,
        width=72,
        height=12,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        no_color=False,
    )
    decoder = Decoder(model_of("mini-llada"), part("sampler", "static"), gen_length=32)
    view = LiveView(console, decoder.prompts.text, decoder.model.ids)  # no watch: a speed differs from run to run
    prompt = str(composed([]).model.prompt).strip()
    turns = list(islice(decoder.turns(prompt), TERMINAL_TURNS))
    picture, view.turn = Picture.of(turns[0].canvas), len(turns)
    for turn in turns:
        picture.propose(turn)
        picture.update(turn)
    console.print("$ python run.py sampler=static animate=true")
    console.print(Text(prompt, "dim"))
    console.print(view.frame(picture, 70, 8))
    return console.export_svg(title="dllm", unique_id="terminal")


class Watched(Confidence):
    """The threshold rule, which also has the masks scored that are not open, so that an observer sees them."""

    def needs(self) -> tuple[Need, ...]:
        return (Need("answer"),)


def masks_of(turn: Turn) -> dict[int, float]:
    """The confidence of each mask of the only row, by its position in the answer."""
    view, start = turn.view, int(turn.view.canvas.start[0])
    columns = (view.canvas.undecided[0] & view.scores.scored[0]).nonzero()[:, 0]
    return dict(zip((columns - start).tolist(), view.scores.confidence[0, columns].tolist(), strict=True))


def confidences() -> str:
    """Confidence of every mask in every forward of a long answer: a line per forward, a column per position."""
    forwards: list[dict[int, float]] = []
    decoder = Decoder(
        model_of("mini-llada"),
        Watched(0.9),
        part("blocks", "fixed", block_length=BAND_BLOCK),
        eos="fill_at_once",
        gen_length=128,
    )
    (result,) = decoder(DEAL, observe=lambda turn: forwards.append(masks_of(turn)))
    text_length = min(result.useful_tokens + 1, len(result.canvas))  # the end counts
    shown_columns = text_length + TAIL
    wide, tall, left, top = 10.5, 18, 110.0, 34
    drawing = Drawing.of(left + wide * shown_columns + 10, top + tall * len(forwards) + 26)
    words = ("decided", f"{HIGH} and more", f"{LOW} to {HIGH}", f"below {LOW}")
    for at, (word, fill) in enumerate(zip(words, REGION_FILLS, strict=True)):
        drawing.box(left + 140 * at, 9, 12, 12, fill)
        drawing.text(left + 140 * at + 18, 20, word)
    for turn, masks in enumerate(forwards):
        y = top + tall * turn
        drawing.text(8, y + 14, f"forward {turn + 1}", DIM)
        for at in range(shown_columns):
            drawing.box(left + wide * at, y + 1, wide - 1, tall - 2, region_fill(masks.get(at)))
    for border in range(0, shown_columns, BAND_BLOCK):
        drawing.box(left + wide * border - 1.5, top - 4, 2, tall * len(forwards) + 8, INK)
    end = left + wide * text_length
    drawing.box(end - 1.5, top - 4, 2, tall * len(forwards) + 8, "#c0392b")
    drawing.text(end, top + tall * len(forwards) + 18, "end of the text", "#c0392b", "middle")
    return drawing.svg("Where the masks are sure: confidence by position in every forward, in blocks of 32")


def region_fill(confidence: float | None) -> str:
    """The colour of a position: of its confidence if it is masked, else the first."""
    if confidence is None:
        return REGION_FILLS[0]
    return REGION_FILLS[1 if confidence >= HIGH else 2 if confidence >= LOW else 3]


GROUPS = ("pages", "samplers", "caches")
PICTURES: dict[str, Callable[[], str]] = {
    "film_sorted": film_sorted,
    "film_shuffled": film_shuffled,
    "film_too_fast": film_too_fast,
    "film_one_by_one": film_one_by_one,
    "queries": queries,
    "terminal": terminal,
    "confidences": confidences,
    "rule_static": partial(rule_film, "static", per_step=4),
    "rule_confidence": partial(rule_film, "confidence"),
    "rule_eb": partial(rule_film, "eb"),
    "rule_scout": partial(rule_film, "scout"),
}


def drawn(groups: Sequence[str] = GROUPS) -> Iterator[tuple[str, str]]:
    """Name and SVG text of each picture, on one thread so that sums come out alike."""
    torch.set_num_threads(1)
    if "pages" in groups:
        yield from ((name, draw()) for name, draw in PICTURES.items())
    for group, films in (("samplers", sampler_films), ("caches", cache_pictures)):
        if group in groups:
            yield from ((f"{group}/{name}", svg) for name, svg in films())


def screenshots(folder: Path) -> None:
    """The trace viewer with one decode in light colours, and with two in dark ones."""
    from playwright.sync_api import sync_playwright

    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    one = Pane("confidence", decoded(SHUFFLE, 24).traced(), {"model": "mini-llada", "sampler": "confidence"})
    other = Pane("one token per forward", decoded(SHUFFLE, 24, "static").traced(), {"sampler": "static"})
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        scheme: Literal["light", "dark"]
        for name, panes, scheme, step in (("viewer", [one], "light", 3), ("viewer_two", [one, other], "dark", 4)):
            file = folder / f"{name}.html"
            file.write_text(trace_page(panes))
            tab = browser.new_page(viewport={"width": 1100, "height": 560}, color_scheme=scheme)
            tab.goto(file.resolve().as_uri())
            tab.fill("#step", str(step))
            tab.hover(".text .t:nth-child(2)")
            tab.screenshot(path=folder / f"{name}.png")
            file.unlink()
        browser.close()


def playground_screenshots(folder: Path) -> None:
    """The playground of a server that runs meanwhile: one decode under way in light colours, two settings in dark."""
    from playwright.sync_api import sync_playwright

    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    with started() as (url, _), sync_playwright() as play:
        browser = play.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        scheme: Literal["light", "dark"]
        for name, scheme, compared in (("playground", "light", False), ("playground_two", "dark", True)):
            tab = browser.new_page(viewport={"width": 1100, "height": 1010}, color_scheme=scheme)
            tab.set_default_timeout(240_000)  # on a busy machine
            tab.goto(url)
            tab.wait_for_selector("select[name=sampler]")
            tab.fill("#length", "32")
            if compared:
                tab.check("#compare")
                tab.locator("select[name=sampler]").nth(1).select_option("static")
                tab.locator("select[name=cache]").nth(1).select_option("dual")
            tab.locator("select[name=sampler]").first.select_option("confidence")
            tab.click("#run")
            tab.wait_for_function(DECODED)
            tab.fill("#step", str(int(tab.get_attribute("#step", "max") or 2) // 2))
            tab.screenshot(path=folder / f"{name}.png")
        browser.close()


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=GROUPS)
    parser.add_argument("--screenshots", action="store_true")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, svg in drawn(options.only):
        file = options.folder / f"{name}.svg"
        file.parent.mkdir(exist_ok=True)
        file.write_text(svg, encoding="utf-8")
        print(file)
    if options.screenshots:
        screenshots(options.folder)
        playground_screenshots(options.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
