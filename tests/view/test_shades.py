"""How guesses look: their shade is a function of their probability, legible in every kind of terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from rich._palettes import STANDARD_PALETTE
from rich.color import Color, ColorSystem
from rich.console import Console
from rich.style import Style

from dllm import Decoder, load, part
from dllm.parts import CanvasRenderer, Ids, Model, Picture, Shades, Turn, luminance

COLOURS = ("standard", "256", "truecolor")
PROBABILITIES = [step / 200 for step in range(201)]


def terminal(colours: Any, **options: Any) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=60, height=12, color_system=colours, **options)


def light(colour: Color | None, colours: str) -> float:
    """Luminance of a colour as a terminal of so many colours shows it."""
    assert colour is not None
    system = {"standard": ColorSystem.STANDARD, "256": ColorSystem.EIGHT_BIT, "truecolor": ColorSystem.TRUECOLOR}
    shown = colour.downgrade(system[colours])
    if colours != "standard":
        return luminance(shown.get_truecolor())
    assert shown.number is not None
    return luminance(STANDARD_PALETTE[shown.number])


def contrast(style: Style, colours: str) -> float:
    dark, bright = sorted(light(colour, colours) for colour in (style.color, style.bgcolor))
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colours", COLOURS)
def test_a_surer_guess_is_never_darker_and_every_shade_is_legible(colours: str) -> None:
    shades = Shades.of(terminal(colours, no_color=False))
    grounds = [light(shades.guess(p).bgcolor, colours) for p in PROBABILITIES]
    assert grounds == sorted(grounds) and len(set(grounds)) == (3 if colours == "standard" else 10)
    committed = {shades.turn(n, 9, fresh) for n in range(1, 10) for fresh in (False, True)}
    assert min(contrast(style, colours) for style in committed | set(map(shades.guess, PROBABILITIES))) >= 4.5
    turns = [light(shades.turn(n, 9).bgcolor, colours) for n in range(1, 10)]
    assert turns == sorted(turns) or colours == "256"  # whose nearest colours are up to 0.03 darker or brighter


@pytest.mark.parametrize(
    ("probability", "ground"),
    [
        (0.0, "#262626"),
        (0.099, "#262626"),
        (0.1, "#3a3a3a"),
        (0.55, "#898989"),
        (0.9, "#d9d9d9"),
        (1.0, "#d9d9d9"),
        (-1.0, "#262626"),
    ],
)
def test_a_known_probability_has_a_known_grey(probability: float, ground: str) -> None:
    """Ten greys from 38 to 217 of 255, 19.9 apart, one for every 10 %."""
    found = Shades.of(terminal("truecolor", no_color=False)).guess(probability).bgcolor
    assert found is not None and found.get_truecolor().hex == ground


def test_without_colours_guesses_differ_from_what_is_committed_by_their_letters() -> None:
    """NO_COLOR asks for no colour; bold, dim, underlined and reversed letters stay."""
    console = terminal("truecolor", no_color=True)
    shades = Shades.of(console)
    kinds = [shades.guess(p) for p in (0.1, 0.5, 0.9)] + [shades.turn(1, 3), shades.turn(3, 3, fresh=True)]
    assert len(set(kinds)) == 5 and all(style.color is None and style.bgcolor is None for style in kinds)
    assert shades.turn(1, 3) == Style.null() == shades.turn(3, 3)
    console.print("a", style=shades.guess(0.5))
    assert console.file.getvalue() == "\x1b[2;4ma\x1b[0m\n"  # type: ignore[attr-defined]


def test_a_terminal_without_styles_keeps_the_signs_of_masks() -> None:
    brush = CanvasRenderer(terminal(None), lambda tokens: "w", Ids(mask=0, eos=1, stops=()))
    assert not brush.shades.guesses and brush.legend(60, 3) == []


@pytest.fixture(scope="module")
def model() -> Model:
    return load("mini-llada")


def test_every_mask_shows_the_proposal_of_the_forward_before_it_is_committed(model: Model) -> None:
    """Two blocks of 8: the second has no guesses before it opens. What is committed is what was guessed."""
    decoder = Decoder(model, "confidence", part("blocks", "fixed", block_length=8), eos="none", gen_length=16)
    brush = CanvasRenderer(terminal("truecolor", no_color=False), decoder.prompts.text, model.ids)
    picture, opened = None, 0
    for turn in decoder.turns('Sort the list:\n["Kai", "Emma", "Hugo"]'):
        if picture is None:
            picture = Picture.of(turn.canvas)
            assert bool((picture.sure == -1).all()) and not bool(picture.fresh.any())
        picture.propose(turn)
        scores, masked = turn.view.scores, turn.canvas.masked
        known = masked & (picture.sure >= 0)
        assert torch.equal(known, masked & scores.scored)
        assert torch.equal(picture.guess[known], scores.token[known])
        assert torch.equal(picture.sure[known], scores.confidence[known])
        assert_drawn(brush, picture, known[0].nonzero()[:, 0].tolist(), turn)
        guessed = picture.guess.clone()
        picture.update(turn)
        assert torch.equal(picture.fresh, masked & ~turn.candidates.masked)
        assert torch.equal(turn.step.commit & picture.fresh, turn.step.commit)
        assert torch.equal(picture.tokens[turn.step.commit], guessed[turn.step.commit])
        opened = max(opened, int(known.sum()))
    assert opened == 8


def assert_drawn(brush: CanvasRenderer, picture: Picture, guessed: list[int], turn: Turn) -> None:
    """Masks with a guess are its word in its shade, the others are signs."""
    shown = brush.pieces(picture, 0, 9)
    for at in turn.canvas.masked[0].nonzero()[:, 0].tolist():
        word, style = shown[at]
        if at in guessed:
            assert word == brush.word(int(turn.view.scores.token[0, at]))
            assert style == brush.shades.guess(float(turn.view.scores.confidence[0, at]))
        else:
            assert word == brush.glyphs.mask


def test_a_position_that_is_taken_back_is_a_plain_mask_until_it_is_scored_again(model: Model) -> None:
    decoder = Decoder(model, "saber", "whole", eos="none", gen_length=32)
    picture, undone = None, 0
    for turn in decoder.turns("Latin square:\nA,B,C,D"):
        picture = picture or Picture.of(turn.canvas)
        picture.propose(turn)
        picture.update(turn)
        back = ~turn.canvas.masked & turn.candidates.masked
        undone += int(back.sum())
        assert bool((picture.sure[back] == -1).all()) and bool((picture.fixed[back] == -1).all())
    assert undone > 0


def test_a_word_that_ends_in_a_new_line_ends_the_line(model: Model) -> None:
    decoder = Decoder(model, gen_length=32)
    brush = CanvasRenderer(terminal("truecolor"), decoder.prompts.text, model.ids)
    *_, last = decoder.turns("Latin square:\nA,B,C,D")
    picture = Picture.of(last.canvas)
    picture.update(last)
    text = brush.row(picture, 0, 9)[0].plain.replace(brush.glyphs.line, "").rstrip(brush.glyphs.end)
    assert text.splitlines() == decoder("Latin square:\nA,B,C,D")[0].text.splitlines() and text.count("\n") == 3
