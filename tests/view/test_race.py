"""The race of ``compare=true``: two decodes on one clock, by the seconds that were measured."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.style import Style

from dllm import Decoder, load, part
from dllm.app.commands import prompt as command
from dllm.parts import (
    DURATION,
    MARKS,
    Canvas,
    CanvasRenderer,
    Choice,
    Commits,
    DecodeFilm,
    Forward,
    LiveView,
    Model,
    Pane,
    Picture,
    Race,
    RaceLane,
    Request,
    Sampling,
    Stopwatch,
    Trace,
    Turn,
    TurnRecord,
    denoise,
    pane_data,
    trace_content,
    trace_page,
)
from dllm.view import race
from tests.app.command_line.conftest import Run, run  # noqa: F401  a fixture
from tests.support.device_cases import on_gpus
from tests.support.fake_gpu import CPU, FakeGPUs, place_of
from tests.support.harness import Combination, forward_of, parts_of, with_mask
from tests.view.browser import chromium, opened

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
        assert last.tokens[0][last.in_answer[0]].tolist() == lane.row["canvas"]
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
    # The module's own name for it: other threads sleep by the real one.
    monkeypatch.setattr(race, "time", time := SimpleNamespace(perf_counter=lambda: clock[0]))
    frame = Race.frame
    monkeypatch.setattr(Race, "frame", lambda self, seconds: shown.append(seconds) or frame(self, seconds))

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    time.sleep = sleep
    run_race.play()
    assert clock[0] == pytest.approx(DURATION, abs=0.1)
    assert shown == sorted(shown) and shown[0] == 0 and shown[-1] == run_race.end and len(shown) > 100

    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    time.sleep = stop
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


WORDS = {0: "<|end|>", 1: "<|mask|>", 5: "a", 6: "b", 7: "c"}
# Position 0 is corrected, 1 is put off and then committed, 2 is replaced, 3 is the model's own.
TURNS = [
    TurnRecord(1, 0, [Commits([0, 3], [5, 6], [0.1, 0.9], [False, False])], [[]], [[]], [[]], [4], (0, 0, 4),
               refreshed=[0], corrected=[0, 2], refused=[[1]], replaced=[[]]),
    TurnRecord(2, 0, [Commits([1, 2], [6, 7], [0.8, None], [False, True])], [[]], [[]], [[]], [4], (0, 0, 4),
               refreshed=[0], corrected=[], refused=[[]], replaced=[[2]]),
]  # fmt: skip
MARKED = Trace([1] * 4, [0] * 4, 1, 0, 0, 4, TURNS, WORDS)
FREE = replace(MARKED, turns=[replace(turn, corrected=[], refused=[[]], replaced=[[]]) for turn in TURNS])


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    file = tmp_path_factory.mktemp("page") / "trace.html"
    file.write_text(trace_page([Pane("marked", MARKED, {"constraint": "choice"})]), encoding="utf-8")
    with chromium() as browser:
        found = opened(browser, file, reduced_motion="reduce")
        yield found
        assert found.problems == []


def classes(page: Any, step: int) -> list[set[str]]:
    page.evaluate(f"go({step})")
    names = page.evaluate("[...document.querySelectorAll('.text .t')].map((t) => t.className)")
    return [set(name.split()) for name in names]


def test_the_page_marks_positions_when_it_happens_and_says_what_it_was(page: Any) -> None:
    first, second = classes(page, 1), classes(page, 2)
    assert (
        "corrected" in first[0] and "waits" in first[1] and "mask" in first[1] and not first[3] & {"corrected", "waits"}
    )
    assert [marks & {"corrected", "replaced", "waits"} for marks in second] == [
        {"corrected"},
        set(),
        {"replaced"},
        set(),
    ]
    page.evaluate("go(1)")
    assert page.inner_text(".text") == "aø░b" and "2 proposals corrected · 1 refused" in page.inner_text(".status")
    told = {at: page.evaluate(f"(explain(panes[0], {at}), tip.innerText)") for at in range(4)}
    assert "corrected by the constraint" in told[0] and "refused by the constraint" in told[1]
    assert "replaced by the constraint" in told[2] and "constraint" not in told[3]
    assert {"corrected", "refused", "replaced"} <= set(
        page.evaluate("[...document.querySelectorAll('.strip span')].map((s) => s.textContent)")
    )


def test_a_legend_explains_what_is_there_and_nothing_else() -> None:
    marked, free = (trace_page([Pane("t", trace)]) for trace in (MARKED, FREE))
    for sign in ("t sample corrected", "t sample replaced", "t mask waits"):
        assert marked.count(f'<span class="{sign}">') == 1 and f'<span class="{sign}">' not in free
    only = trace_page([Pane("t", replace(FREE, turns=[replace(FREE.turns[0], corrected=[1]), FREE.turns[1]]))])
    assert '"t sample corrected"' in only and '"t mask waits"' not in only


def test_traces_of_earlier_versions_have_pages() -> None:
    data = json.loads(json.dumps(FREE.to_json()))
    for turn in data["turns"]:
        del turn["corrected"], turn["refused"], turn["replaced"]
    old = Trace.from_json(data)
    assert pane_data(Pane("t", old)) == pane_data(Pane("t", FREE))


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    texts = Choice(["Kai, Ada, Ben", "Ada, Ben, Kai, Kai"])
    schedule = part("sampler", "static", per_step=4)
    return Decoder(load("mini-llada"), schedule, "whole", eos="none", gen_length=12, constraint=texts)


def test_the_picture_has_the_marks_of_the_turns(decoder: Decoder) -> None:
    pictures: list[Picture] = []
    told: dict[str, set[int]] = {mark: set() for mark in MARKS}
    for turn in decoder.turns("A list?"):
        pictures = pictures or [Picture.of(turn.canvas)]
        picture = pictures[0]
        picture.propose(turn)
        corrected = set(turn.marks.corrected[0].nonzero()[:, 0].tolist())
        assert corrected == set((picture.corrected & picture.masked)[0].nonzero()[:, 0].tolist())
        picture.update(turn)
        assert picture.refused.equal(turn.marks.refused)
        for mark in MARKS:
            told[mark] |= set(
                getattr(turn.marks, "corrected" if mark == "corrected" else mark)[0].nonzero()[:, 0].tolist()
            )
    assert told["corrected"] and set(picture.replaced[0].nonzero()[:, 0].tolist()) == told["replaced"]
    assert "corrected" in picture.marks() and not bool(picture.masked.any())


def styles(turns: list[Turn], decoder: Decoder) -> tuple[str, list[Style]]:
    """The legend of a frame after these turns, and the styles of the columns of its answer."""
    console = Console(width=100, height=30, color_system="truecolor", force_terminal=True, file=StringIO())
    view = LiveView(console, decoder.prompts.text, decoder.model.ids)
    view.picture = picture = Picture.of(turns[0].canvas)
    for turn in turns:
        picture.propose(turn)
        picture.update(turn)
    with console.capture() as shown:
        console.print(view.frame(picture, 100, 28))
    return shown.get(), [style for _, style in view.brush.pieces(picture, 0, len(turns))]


def test_the_live_view_slants_what_the_constraint_chose(decoder: Decoder) -> None:
    turns = list(decoder.turns("A list?"))
    shown, looks = styles(turns[:1], decoder)
    corrected = turns[0].marks.corrected[0].nonzero()[:, 0].tolist()
    assert corrected and all(looks[at].italic for at in corrected) and "constraint: " in shown
    assert not any(look.italic for at, look in enumerate(looks) if at not in corrected)
    free = Decoder(decoder.model, "confidence", "whole", gen_length=8)
    shown, looks = styles(list(free.turns("A list?"))[:1], free)
    assert "constraint: " not in shown and not any(look.italic or look.strike for look in looks)


def test_the_page_names_the_constraint(decoder: Decoder, tmp_path: Path) -> None:
    from dllm.parts import PlannedSample

    result = decoder("A list?", trace=True)[0]
    config = {group: {"_target_": f"dllm.{group}.Some"} for group in ("sampler", "blocks", "cache", "eos")}
    sample = PlannedSample("1", 0, "A list?", decoder.request("A list?"))
    content = trace_content(sample, result, [("1", 0)], {**config, "model": {"name": "m"}})
    assert content is not None
    facts = Pane.of("run", json.loads(json.dumps(content)), result.traced()).facts
    assert facts["constraint"].startswith('choice options=["Kai, Ada, Ben", ')
