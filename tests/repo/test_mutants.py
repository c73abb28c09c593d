"""``make mutants``: changes are of the code alone, spread, and drawn by the seed."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from tests import mutants

ROOT = Path(__file__).parents[2]


def test_changes_are_sound_python_that_differs_in_one_place() -> None:
    for one in mutants.drawn(60, 3, ("eos", "lengths"), None):
        sound = (ROOT / one.file).read_text(encoding="utf-8")
        assert ast.dump(ast.parse(one.text)) != ast.dump(ast.parse(sound)), one


def test_rooms_and_files_take_turns_and_the_seed_decides() -> None:
    rooms = ("eos", "lengths", "blocks")
    found = mutants.drawn(30, 3, rooms, None)
    assert set(Counter(Path(one.file).parts[1] for one in found).values()) == {10}
    assert len({one.file for one in found}) > 15
    assert found == mutants.drawn(30, 3, rooms, None) != mutants.drawn(30, 4, rooms, None)


def test_the_mirror_of_a_module_is_tried_first() -> None:
    assert mutants.tests_of("dllm/samplers/eb.py", 4)[0] == "tests/samplers/test_eb.py"
