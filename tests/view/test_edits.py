"""What a rule replaced, in the terminal, on the page of a trace and in a stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dllm import Decoder, load
from dllm.record.trace import Trace
from dllm.record.turns import Commits, TurnRecord
from dllm.samplers.joint_threshold import JointThreshold
from dllm.view.page import Pane, trace_page
from dllm.view.picture import Picture
from tests.view.browser import chromium, opened

WORDS = {0: "<|end|>", 1: "<|mask|>", 5: "a", 6: "b", 7: "c"}
NONE = Commits()
# Position 0 is committed and replaced twice, 1 is committed, and an edit of it is refused in the last turn.
TURNS = [
    TurnRecord(1, 0, [Commits([0], [5], [0.6], [False])], [[]], [[]], [[]], [2], (0, 0, 2), edited=[NONE]),
    TurnRecord(2, 0, [Commits([1], [6], [0.7], [True])], [[]], [[]], [[]], [2], (0, 0, 2),
               edited=[Commits([0], [7], [0.8], [False])]),
    TurnRecord(3, 0, [NONE], [[]], [[]], [[]], [2], (0, 0, 2), edited=[Commits([0], [6], [0.9], [False])],
               refused=[[1]]),
]  # fmt: skip
EDITED = Trace([1] * 2, [0] * 2, 1, 0, 0, 2, TURNS, WORDS)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    file = tmp_path_factory.mktemp("page") / "trace.html"
    file.write_text(trace_page([Pane("edited", EDITED)]), encoding="utf-8")
    with chromium() as browser:
        found = opened(browser, file, reduced_motion="reduce")
        yield found
        assert found.problems == []


def test_the_page_shows_each_token_in_its_time_and_counts_it_once(page: Any) -> None:
    for step, (text, told) in enumerate([("░░", "0 of 2"), ("a░", "1 of 2"), ("cb", "2 of 2"), ("bb", "2 of 2")]):
        page.evaluate(f"go({step})")
        assert page.inner_text(".text") == text and told in page.inner_text(".status")
        marked = page.evaluate("[...document.querySelectorAll('.text .t')].map((t) => t.className)")
        assert ["edited" in name.split() for name in marked] == [step > 1, False]
    assert "1 edited" in page.inner_text(".status")
    tip = page.evaluate("(explain(panes[0], 0), tip.innerText)").split("\n")
    assert [word for word in ('"a"', '"c"', '"b"') if any(word in line for line in tip)] == ['"a"', '"c"', '"b"']
    assert sum("in the place of the token before" in line for line in tip) == 2


def test_the_legend_explains_it_where_it_is_there() -> None:
    without = [TurnRecord(**{**vars(turn), "edited": []}) for turn in TURNS]
    pages = [trace_page([Pane("t", Trace([1] * 2, [0] * 2, 1, 0, 0, 2, turns, WORDS))]) for turns in (TURNS, without)]
    assert ['"t sample edited"' in html for html in pages] == [True, False]


def test_the_picture_and_the_stream_follow_what_is_replaced(tiny: Path) -> None:
    decoder = Decoder(load(tiny), JointThreshold(0.0, 0.0), eos="none", gen_length=24)
    prompt, pictures, seen = "w1 w2", list[Picture](), 0
    result = decoder(prompt)[0]
    snapshots = decoder.stream(prompt)
    for turn in decoder.turns(prompt):
        picture = pictures[0] if pictures else Picture.of(turn.canvas)
        pictures, snapshot = [picture], next(snapshots)
        picture.propose(turn)
        picture.update(turn)
        assert turn.step.edit is not None
        start, edited = int(turn.canvas.start[0]), turn.step.edit[0].nonzero()[:, 0]
        assert snapshot.edited == (edited - start).tolist() and not set(snapshot.edited) & set(snapshot.committed)
        assert bool(picture.fresh[0][edited].all())
        seen += len(edited)
    assert seen and picture.fixed[0][picture.shown[0]].tolist() == result.turns
    assert picture.tokens[0][picture.shown[0]].tolist() == result.canvas
