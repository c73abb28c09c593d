"""The race of ``compare=true``: two decodes on one clock, by the seconds that were measured."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from dllm import Decoder, load, part
from dllm.app.commands import prompt as command
from dllm.contract.canvas import Canvas, Request
from dllm.contract.setting import Sampling
from dllm.loop.denoise import denoise
from dllm.loop.forward import Forward
from dllm.models.bundle import Model
from dllm.record.stopwatch import Stopwatch
from dllm.view import race
from dllm.view.brush import CanvasRenderer
from dllm.view.race import DURATION, DecodeFilm, Race, RaceLane
from tests.app.command_line.conftest import Run, run  # noqa: F401  a fixture
from tests.support.device_cases import on_gpus
from tests.support.fake_gpu import CPU, FakeGPUs, place_of
from tests.support.harness import Combination, forward_of, parts_of, with_mask

RUNS = {"one token per step": (12, 0.25), "wide": (4, 1.5)}  # forwards, and seconds of each on the clock of the test


@pytest.fixture(scope="module")
def model(tiny: Path) -> Model:
    return load(tiny)


@pytest.fixture(scope="module")
def run_race(model: Model) -> Race:
    """A race of 12 forwards of 0.25 s each against 4 of 1.5 s each, by a clock that only forwards move."""
    lanes, clock, call = [], [0.0], Forward.__call__
    patch = pytest.MonkeyPatch()
    patch.setattr("dllm.record.stopwatch.time.perf_counter", lambda: clock[0])
    for name, (steps, seconds) in RUNS.items():

        def slow(self: Forward, *arguments: object, cost: float = seconds) -> object:
            clock[0] += cost
            return call(self, *arguments)  # type: ignore[arg-type]

        patch.setattr(Forward, "__call__", slow)
        rule = part("sampler", "static", steps=steps)
        decoder, watch = Decoder(model, rule, "whole", eos="none", gen_length=12), Stopwatch()
        film = DecodeFilm(watch)
        ((_, result),) = decoder.run([decoder.request("w1 w2")], observe=film, watch=watch)
        clock[0] += 7.0  # what comes between two decodes
        quiet = {"id": "1", "sample": 0, "batch": "1/0", "cpu_seconds": result.seconds, "load": 0.0}
        lanes.append(RaceLane(name, film, result.to_json() | quiet))
    patch.undo()
    console = Console(file=io.StringIO(), force_terminal=True, width=90, height=24, color_system="truecolor")
    return Race(CanvasRenderer(console, decoder.prompts.text, model.ids), lanes)


def lines(contest: Race, seconds: float) -> list[str]:
    """The frame as plain lines."""
    console = Console(file=io.StringIO(), width=90, color_system=None)
    console.print(contest.frame(seconds))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_both_clocks_are_the_recorded_seconds(run_race: Race) -> None:
    for lane, (forwards, cost) in zip(run_race.lanes, RUNS.values(), strict=True):
        assert lane.film.seconds == pytest.approx([cost * n for n in range(1, forwards + 1)])
        assert lane.end == lane.row["seconds"] and forwards == lane.row["nfe"]
        last = lane.film.pictures[-1]
        assert last.tokens[0][last.shown[0]].tolist() == lane.row["canvas"]
        for seconds in (0.0, 0.2, 0.25, 1.49, 1.5, 2.9, 3.0, 100.0):
            turns = lane.turns(seconds)
            assert turns == min(int(seconds / cost), forwards)
            assert int(lane.film.pictures[turns].masked.sum()) == 12 - turns * 12 // forwards


def test_a_film_of_a_gpu_lies_in_the_hosts_memory() -> None:
    """A fake GPU, on which a tensor of the host cannot meet one of the GPU."""
    combination = Combination("static", "whole")
    with torch.inference_mode(), FakeGPUs():
        network, parts = on_gpus(combination.model, split=False), parts_of(combination)
        forward = forward_of(network, parts, Sampling())
        request = with_mask(Request.answer([5, 6, 7], 8, 60, 0), network.config.mask_id or 0)
        film = DecodeFilm(Stopwatch())
        for turn in denoise(Canvas.of([request], 0, network.device), forward, parts):
            film(turn)
        assert film.now is not None and place_of(film.now.tokens) != CPU
        assert {place_of(picture.tokens) for picture in film.pictures} == {CPU}
    assert [int(picture.masked.sum()) for picture in film.pictures] == list(range(8, -1, -1))


def test_one_clock_drives_both_and_says_who_wins(run_race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer forwards lose where each takes longer: seconds decide."""
    early, late, end = (lines(run_race, seconds) for seconds in (1.6, 3.1, 6.0))
    one, wide = (lane.row["useful_tokens"] for lane in run_race.lanes)
    assert early[0].startswith("one token per step  forward 6 of 12 · 1.6 s · ")
    assert early[3].startswith("wide  forward 1 of 4 · 1.6 s · ")
    assert late[0] == f"one token per step  finished first: 12 forwards · 3.0 s · {one / 12:.2f} tokens per forward"
    assert late[3].startswith("wide  forward 2 of 4 · 3.1 s · ")
    assert end[0] == late[0] and end[3] == f"wide  finished: 4 forwards · 6.0 s · {wide / 4:.2f} tokens per forward"
    assert "1.33 times slower" in end[-1] and run_race.factor == pytest.approx(8 / 6)  # 6 s take 8 on the screen
    assert len(early) == len(late) == len(end) == 8
    monkeypatch.setitem(run_race.lanes[1].row, "cpu_seconds", 2.0)
    assert "The machine was busy: wide: wall time 3.0 x CPU time." in " ".join(lines(run_race, 1.6))


def test_the_race_takes_its_time_and_ctrl_c_ends_it(run_race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, shown = [0.0], []
    monkeypatch.setattr(race.time, "perf_counter", lambda: clock[0])
    frame = Race.frame
    monkeypatch.setattr(Race, "frame", lambda self, seconds: shown.append(seconds) or frame(self, seconds))

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(race.time, "sleep", sleep)
    run_race.play()
    assert clock[0] == pytest.approx(DURATION, abs=0.1)
    assert shown == sorted(shown) and shown[0] == 0 and shown[-1] == run_race.end and len(shown) > 100

    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(race.time, "sleep", stop)
    shown.clear()
    run_race.play()
    assert shown == [0, run_race.end]


def test_compare_in_a_terminal_ends_as_a_race(
    run: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Nobody watches without a terminal or with live=false, and several samples have no single clock."""
    monkeypatch.setattr(race, "DURATION", 0.01)
    out, terminal = io.StringIO(), [True]

    def console(**options: object) -> Console:
        return Console(file=out, force_terminal=terminal[0], width=90, height=24, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(command, "Console", console)
    given = ["prompt=w1 w2", "compare=true", "eos=none", "sampler.threshold=0.2"]
    assert run(*given, "name=one").code == 0
    screen = out.getvalue()
    (row,) = [json.loads(line) for line in (tmp_path / "runs/one/results.jsonl").read_text().splitlines()]
    assert "forward 0 of 16 · 0 ms" in screen and "16 forwards · " in screen and f": {row['nfe']} forwards · " in screen
    assert screen.count("w1 w2") == 1  # the prompt, though decoded twice
    assert "Ran one after the other" in screen and "same as the last" in screen
    for number, more in enumerate((["samples=2"], ["live=false"], [])):
        out.truncate(0)
        terminal[0] = bool(more)
        assert run(*given, *more, f"name=other{number}").code == 0
        assert "Ran one after the other" not in out.getvalue() and "same as the last" in out.getvalue()
