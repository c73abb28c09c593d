"""``make mutants``: changes are of the code alone, spread, drawn by the seed, and made in living functions."""

from __future__ import annotations

import ast
import builtins
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from dllm.parts import Canvas, FullLength, Request, after_first
from tests import mutants
from tests.support import executed

ROOT = Path(__file__).parents[2]
TEXT = '''
def size(values, least=1):
    """Words."""
    if not values:
        return least
    total = 0
    for one in values:
        try:
            total += int(one)
        except ValueError:
            continue
        else:
            total += 0
    match total:
        case 0:
            pass
        case _:
            total = max(total, least)
    return total
'''


def test_changes_are_sound_python_that_differs_in_one_place() -> None:
    for one in mutants.drawn(60, 3, ("eos", "lengths"), None):
        sound = (ROOT / one.file).read_text(encoding="utf-8")
        assert ast.dump(ast.parse(one.text)) != ast.dump(ast.parse(sound)), one


def test_rooms_and_files_take_turns_and_the_seed_decides() -> None:
    rooms = ("eos", "lengths", "blocks")
    found = mutants.drawn(30, 3, rooms, None)
    assert set(Counter(one.room for one in found).values()) == {10}
    assert len({one.file for one in found}) > 15
    assert found == mutants.drawn(30, 3, rooms, None) != mutants.drawn(30, 4, rooms, None)


def test_what_was_printed_is_the_same_change_again(tmp_path: Path) -> None:
    found = mutants.drawn(20, 5, ("eos", "lengths", "blocks"), None)
    (tmp_path / "out").write_text("".join(f"SURVIVED {one}  [tests/test_x.py::test_y[a b]]\n" for one in found))
    assert mutants.listed(tmp_path / "out") == found


def test_changes_that_were_judged_equivalent_exist() -> None:
    for name in mutants.equivalent():
        assert name in {one.name for one in mutants.mutants(name.partition(" ")[0])}, name


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("PING_SECONDS = 15", 0),
        ("DPI = 200", 0),
        ("MOMENT = 0.5", 0),
        ("ROWS = 15", 1),
        ("axis.plot(x, y, alpha=0.5, zorder=2)", 1),
        ("plot(x, base=2)", 2),
        ("raise ValueError(1)", 0),
    ],
)
def test_pauses_looks_and_words_are_left_out(text: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mutants.mutants.cache_clear()
    monkeypatch.setattr(mutants, "source", lambda file: text)
    assert len(mutants.mutants(f"{text}.py")) == count
    mutants.mutants.cache_clear()


@pytest.mark.parametrize("values", [[], ["1", "x"], ["0"], ["x"], ["2", "3"]])
def test_the_places_of_a_call_are_those_of_its_lines(values: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a tracer's lines."""
    monkeypatch.setattr(executed, "PLACES", [])
    monkeypatch.setattr(builtins, "__executed__", bytearray(100), raising=False)
    made: dict[str, Any] = {}
    exec(compile(executed.probed("file.py", TEXT), "file.py", "exec"), made)
    made["size"](values)
    seen = {place for place, bit in zip(executed.PLACES, builtins.__executed__, strict=False) if bit}  # type: ignore[attr-defined]
    plain: dict[str, Any] = {}
    exec(compile(TEXT, "plain.py", "exec"), plain)
    lines = set[int]()

    def trace(frame: FrameType, event: str, value: object) -> Any:
        if frame.f_code.co_filename == "plain.py":
            lines.add(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        plain["size"](values)
    finally:
        sys.settrace(before)
    assert seen == {f"file.py:{executed.place_of(TEXT, line)[0]}" for line in lines}


def test_a_living_function_gets_the_changed_code() -> None:
    canvas = Canvas.of([Request.answer([3, 4], 2, 60)], 0)
    found = {one.name: one for one in mutants.mutants("dllm/parts/eos/base.py")}
    sound = after_first.__code__
    try:
        assert mutants.swapped(found["dllm/parts/eos/base.py after_first: 'first + 1' -> '(first - 1)'"], [after_first])
        assert after_first(canvas, canvas.masked)[0].tolist() == [1]
    finally:
        after_first.__code__ = sound
    assert after_first(canvas, canvas.masked)[0].tolist() == [3]


def test_what_runs_at_import_is_not_swapped() -> None:
    (change, *_) = [one for one in mutants.mutants("dllm/parts/eos/none.py") if one.place == ("FullLength", False)]
    assert not mutants.swapped(change, [FullLength.cut])
