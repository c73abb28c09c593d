"""The live view: it shows what is there, fits the screen, stays legible and changes nothing."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from rich.console import Console

from dllm import Decoder, load
from dllm.parts import (
    GRADIENT,
    CanvasRenderer,
    Forward,
    LiveView,
    Model,
    Picture,
    Stopwatch,
    Turn,
    colour,
    luminance,
    progress,
    turn_style,
)
from dllm.view import live

Colours = Literal["standard", "256", "truecolor"] | None


@pytest.fixture(scope="module")
def model(tiny: Path) -> Model:
    return load(tiny)


def decoder_of(model: Model, batch_size: int = 1, sampler: str = "static") -> Decoder:
    return Decoder(model, sampler=sampler, blocks="fixed", eos="none", gen_length=64, batch_size=batch_size)


def terminal(colours: Colours = None, width: int = 60, height: int = 12, **options: Any) -> Console:
    """A terminal of so many colours; None: one without any styles, where masks keep their signs."""
    return Console(
        file=io.StringIO(),
        force_terminal=True,
        width=width,
        height=height,
        legacy_windows=False,
        color_system=colours,
        **options,
    )


def view_of(decoder: Decoder, colours: Colours = None) -> LiveView:
    return LiveView(terminal(colours), decoder.prompts.text, decoder.model.ids)


def lines(view: LiveView, picture: Picture, width: int = 60, height: int = 10) -> list[str]:
    """The frame as plain lines."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(view.frame(picture, width, height))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def watch(decoder: Decoder, prompts: Sequence[str], view: LiveView, height: int = 10) -> list[list[str]]:
    """A frame after every turn."""
    frames = []

    def observe(turn: Turn) -> None:
        view(turn)
        assert view.picture is not None
        frames.append(lines(view, view.picture, height=height))

    with view:
        decoder(list(prompts), observe=observe)
    return frames


def test_masks_become_tokens_one_by_one_and_blocks_have_edges(model: Model) -> None:
    decoder = decoder_of(model)
    frames = watch(decoder, ["w1 w2"], view_of(decoder))
    masks = ["".join(frame).count("·") + "".join(frame).count("░") for frame in frames]
    statuses = [frame[-1] for frame in frames]
    assert [m - s.count("·") for m, s in zip(masks, statuses, strict=True)] == list(range(63, -1, -1))
    assert "".join(frames[0][:-1]).count("│") == 1 and "forward 1 · 1 of 64 committed" in statuses[0]
    assert "░" in frames[0][0] and frames[0][-2].startswith("·")


def test_the_status_line_says_how_many_were_remasked(model: Model) -> None:
    decoder = decoder_of(model, sampler="saber")
    told = [frame[-1] for frame in watch(decoder, ["w1 w2"], view_of(decoder))]
    counts = [len(shot.remasked) for shot in decoder.stream("w1 w2")]
    assert sum(counts) > 0
    for line, count in zip(told, counts, strict=True):
        assert ("remasked" in line) == (count > 0) and (count == 0 or f" · {count} remasked" in line)


def test_the_picture_holds_the_final_tokens_and_the_turns_of_the_result(model: Model) -> None:
    decoder = decoder_of(model, batch_size=3)
    view = view_of(decoder)
    with view:
        results = decoder(["w1", "w2 w3 w4", "w5"], observe=view)
    picture = view.picture
    assert picture is not None
    for number, result in enumerate(results):
        shown = picture.in_answer[number]
        assert picture.tokens[number][shown].tolist() == result.canvas
        assert picture.fixed[number][shown].tolist() == result.turns


def test_watching_changes_nothing(model: Model) -> None:
    decoder = decoder_of(model, batch_size=2)
    prompts = ["w1", "w2 w3 w4", "w5"]
    with view_of(decoder) as view:
        watched = decoder(list(prompts), observe=view)
    assert [r.canvas for r in watched] == [r.canvas for r in decoder(list(prompts))]


@pytest.mark.parametrize("height", [3, 5, 9])
def test_a_frame_fits_the_screen_and_follows_the_open_block(model: Model, height: int) -> None:
    decoder = decoder_of(model, batch_size=4)
    frames = watch(decoder, ["w1", "w2", "w3", "w4"], view_of(decoder), height)
    assert all(len(frame) <= height + (height < 6) for frame in frames)
    single = watch(decoder_of(model), ["w1"], view_of(decoder), 3)
    assert all("░" in "".join(frame) or "64 of 64" in frame[-1] for frame in single)


def test_pictures_are_drawn_no_more_than_fifteen_times_a_second(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(live.time, "perf_counter", lambda: clock[0])
    decoder = decoder_of(model)
    drawn: list[float] = []
    monkeypatch.setattr(LiveView, "draw", lambda self: drawn.append(clock[0]))

    def observe(turn: Turn) -> None:
        clock[0] += 0.01
        view(turn)

    with view_of(decoder) as view:
        decoder("w1", observe=observe)
    assert len(drawn) <= 64 * 0.01 * 15 + 3
    assert drawn[0] == pytest.approx(0.01) and drawn[-1] == pytest.approx(0.64)


def test_animation_shows_every_turn_and_the_masks_before_the_first(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    shown: list[tuple[int, int, int]] = []
    # The module's name, not time.sleep itself: threads that other tests left would sleep into the list.
    monkeypatch.setattr(live, "time", SimpleNamespace(sleep=slept.append, perf_counter=time.perf_counter))
    decoder = Decoder(model, "static", "whole", eos="none", gen_length=64)
    view = view_of(decoder)
    view.animate = True

    def draw() -> None:
        assert view.picture is not None
        masked = view.picture.masked
        shown.append((view.turn, int(masked.sum()), int((masked & (view.picture.sure >= 0)).sum())))

    monkeypatch.setattr(view, "draw", draw)
    with view:
        decoder("w1", observe=view)
    # The masks, then every turn's guesses and its commits; the last picture stays.
    seen = [(0, 64, 0), *((t + late, 64 - t - late, 64 - t - late) for t in range(64) for late in (0, 1)), (64, 0, 0)]
    assert shown == seen
    assert len(slept) == 129 and slept == sorted(slept, reverse=True) and 10 < sum(slept) < 15


def test_every_turn_is_legible_and_brighter_than_the_one_before() -> None:
    brightness = [luminance(colour(step / 50)) for step in range(51)]
    assert brightness == sorted(brightness)
    for rgb in GRADIENT:
        assert max((luminance(rgb) + 0.05) / 0.05, 1.05 / (luminance(rgb) + 0.05)) >= 4.5
    assert "white" in str(turn_style(1, 9)) or "#ffffff" in str(turn_style(1, 9))
    assert "#000000" in str(turn_style(9, 9))


def test_a_terminal_without_unicode_gets_plain_signs(model: Model) -> None:
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"), force_terminal=True, width=40)
    brush = CanvasRenderer(console, lambda tokens: "w", model.ids)
    assert brush.glyphs.mask == "_" and brush.glyphs.edge == "|"


def test_the_status_ends_with_the_speed_that_the_table_says(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first forward counts too: its tokens would else have been had for nothing."""
    clock = [0.0]
    call = Forward.__call__

    def slow(self: Forward, *arguments: object) -> object:
        clock[0] += 0.25
        return call(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Forward, "__call__", slow)
    monkeypatch.setattr("dllm.record.stopwatch.time.perf_counter", lambda: clock[0])
    decoder = Decoder(model, sampler="static", blocks="whole", eos="none", gen_length=4)
    watch = Stopwatch()
    console = Console(file=io.StringIO(), force_terminal=True, width=60, height=12, legacy_windows=False)
    with LiveView(console, decoder.prompts.text, decoder.model.ids, watch=watch) as view:
        ((_, result),) = decoder.run([decoder.request("w1")], observe=view, watch=watch)
        clock[0] += 5.0  # what comes after the decode
    assert view.picture is not None
    useful = sum(token != model.ids.eos for token in result.canvas)
    assert result.seconds == 1.0 and f"· {useful / result.seconds:.0f} tokens/s" in lines(view, view.picture)[-1]


def test_several_samples_come_with_an_estimate(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    view = view_of(decoder_of(model))
    clock = [0.0]
    monkeypatch.setattr(live.time, "perf_counter", lambda: clock[0])
    result = decoder_of(model)("w1")[0]
    notes = []
    for _ in progress(iter([(number, result) for number in range(4)]), 4, view):
        notes.append(view.note)
        clock[0] += 2.0
    assert notes[1:] == [f"sample {n} of 4, about {left} s left" for n, left in ((2, 2), (3, 1), (4, 0))]
