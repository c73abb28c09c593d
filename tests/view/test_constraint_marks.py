"""What a constraint corrected, refused and replaced, in the terminal and on the page of a trace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.style import Style

from dllm import Decoder, load, part
from dllm.app.runs.samples import trace_content
from dllm.constraints import Choice
from dllm.contract import Turn
from dllm.record.trace import Trace
from dllm.record.turns import Commits, TurnRecord
from dllm.view.live import LiveView
from dllm.view.page import Pane, pane_data, trace_page
from dllm.view.picture import MARKS, Picture
from tests.view.browser import chromium, opened

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
    assert {"corrected", "refused", "replaced"} <= set(page.evaluate(
        "[...document.querySelectorAll('.strip span')].map((s) => s.textContent)"))  # fmt: skip


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
    from dllm.app.runs.samples import PlannedSample

    result = decoder("A list?", trace=True)[0]
    config = {group: {"_target_": f"dllm.{group}.Some"} for group in ("sampler", "blocks", "cache", "eos")}
    sample = PlannedSample("1", 0, "A list?", decoder.request("A list?"))
    content = trace_content(sample, result, [("1", 0)], {**config, "model": {"name": "m"}})
    assert content is not None
    facts = Pane.of("run", json.loads(json.dumps(content)), result.traced()).facts
    assert facts["constraint"].startswith('choice options=["Kai, Ada, Ben", ')
