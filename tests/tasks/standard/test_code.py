"""What is taken from an answer with code in it, and how it is judged."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from dllm.parts import MBPP, HumanEval, PrefilledPrompt, UserError, entry_of, fence_content, sanitize

HEAD = 'def add(a, b):\n    """Add two numbers."""\n'
PROBLEM = {
    "task_id": "x/0",
    "prompt": HEAD,
    "entry_point": "add",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
}
EXERCISE = {
    "task_id": 11,
    "text": "Write a function to double a number.",
    "code": "",
    "test_setup_code": "",
    "test_list": ["assert double(1) == 2", "assert double(2) == 4", "assert sorted([double(3)]) == [6]"],
}


def test_the_first_fence_counts_and_an_open_answer_ends_at_its_closing_one() -> None:
    assert fence_content("Sure:\n```python\nx = 1\n```\nor\n```python\ny\n```") == "x = 1\n"
    assert fence_content("    return 1\n```\nDone") == "    return 1\n"
    assert fence_content("plain") == "plain"


def test_what_the_function_reaches_is_kept() -> None:
    program = (
        "import math\nLIMIT: int = 3\nUNUSED = 4\ndef helper(x):\n    return math.floor(x) + LIMIT\n"
        "def other():\n    return add\ndef add(a, b):\n    return helper(a) + b\nprint(add(1, 2))\n"
    )
    kept = sanitize(program, "add")
    kinds = [type(node).__name__ for node in ast.parse(kept).body]
    assert kinds == ["Import", "AnnAssign", "FunctionDef", "FunctionDef"]
    assert "UNUSED" not in kept and "other" not in kept and "print" not in kept
    space: dict[str, object] = {}
    exec(kept, space)
    assert space["add"](1.5, 2) == 6  # type: ignore[operator]


@pytest.mark.parametrize(("tests", "right"), [("assert shift(1) == 2 and back(2) == 1", True), ("(", False)])
def test_what_only_the_tests_call_is_kept(tests: str, right: bool) -> None:
    """As of HumanEval/50, whose prompt has a helper that the test alone calls."""
    program = "def shift(x):\n    return x + 1\n\ndef unused():\n    pass\n\ndef back(x):\n    return x - 1\n"
    kept = sanitize(program, "back", tests)
    assert ("shift" in kept) is right and "unused" not in kept
    if right:
        exec(f"{kept}\n{tests}", {})


@pytest.mark.parametrize(
    "program",
    [
        "Here you go!\n" + HEAD + "    return a + b\nThat's it, isn't it?",
        HEAD + "\nimport math\n" + HEAD + "    return a + b",
        HEAD + "    return a + b\n\ndef broken(:\n    pass\n",
        "It's (unbalanced\n" + HEAD + "    return a + b\n",
    ],
)
def test_prose_and_broken_parts_are_left_out(program: str) -> None:
    space: dict[str, object] = {}
    exec(sanitize(program, "add"), space)
    assert space["add"](1, 2) == 3  # type: ignore[operator]


def test_what_cannot_be_parsed_stays_as_it_is() -> None:
    assert sanitize("no code at all, sorry", "add") == "no code at all, sorry"
    assert sanitize("x = 1\n\x00", "add") == "x = 1\n\x00"
    for deep in (" + x" * 2000, ".b" * 5000, "()" * 5000):
        program = f"def add(x):\n    return x{deep}"
        assert sanitize(program, "add") == program
    assert "return [1,[1" in sanitize("def add(x):\n    return " + "[1," * 199, "add")


def test_the_tested_function_is_found() -> None:
    assert entry_of(["assert sorted(double([1])) == [2]"]) == "double"
    assert entry_of(["assert set(f(x)) == set()"]) == "f"


@pytest.fixture
def questions(tmp_path: Path) -> dict[str, str]:
    pytest.importorskip("lm_eval", reason="the extra [eval] is not installed")
    files = {"humaneval": PROBLEM, "mbpp": EXERCISE}
    for name, row in files.items():
        (tmp_path / name).write_text(json.dumps(row) + "\n")
    return {name: str(tmp_path / name) for name in files}


@pytest.mark.daily(4)
@pytest.mark.parametrize(
    ("style", "answer", "raw", "clean"),
    [
        ("instruct", "    return a + b\n```\nIt adds.", 1, 1),
        ("instruct", "    return a - b\n```", 0, 0),
        ("instruct", "    while True: pass\n```", 0, 0),
        ("base", "    return a + b\n", 1, 1),
        ("base", "Sure:\n```python\ndef add(a, b):\n    return a + b\n```", 0, 1),
        ("base", "", 0, 0),
        ("base", "    import os; os._exit(0)\n", 0, 0),
    ],
)
def test_humaneval_scores(questions: dict[str, str], style: str, answer: str, raw: int, clean: int) -> None:
    task = HumanEval("humaneval", style, allow_code=True, seconds=1, path=questions["humaneval"])
    (item,) = task.items()
    assert task.score(item, answer) == {"score": clean, "raw": raw, "sanitized": clean}


def test_an_instruct_answer_begins_inside_a_fence(questions: dict[str, str]) -> None:
    task = HumanEval("humaneval", allow_code=True, path=questions["humaneval"])
    prompt = task.items()[0].prompt
    assert isinstance(prompt, PrefilledPrompt) and prompt.begin.endswith(f"```python\n{HEAD}\n")


def test_stop_strings_hold_unless_they_are_escaped(questions: dict[str, str]) -> None:
    for escape in (False, True):
        task = HumanEval("humaneval", "base", allow_code=True, escape_until=escape, path=questions["humaneval"])
        assert ("\ndef" in task.items()[0].stop) is not escape and task.items()[0].prompt == HEAD


@pytest.mark.parametrize(
    ("style", "answer", "raw", "clean"),
    [
        ("instruct", "def double(x):\n    return 2 * x\n```", 1, 1),
        ("base", "def double(x):\n    return x + x\n", 1, 1),
        ("base", "Here:\n```python\ndef double(x):\n    return x + x\n```", 0, 1),
        ("base", "def double(x):\n    return x\n", 0, 0),
    ],
)
def test_mbpp_scores(questions: dict[str, str], style: str, answer: str, raw: int, clean: int) -> None:
    task = MBPP("mbpp", style, allow_code=True, path=questions["mbpp"])
    (item,) = task.items()
    assert task.score(item, answer) == {"score": clean, "raw": raw, "sanitized": clean}
    assert str(item.prompt).count("similar_elements") > 2, "the three worked examples come with lm-eval"


def test_nothing_is_run_unless_it_is_allowed() -> None:
    with pytest.raises(UserError, match="allow_code=true"):
        HumanEval("humaneval")
    with pytest.raises(UserError, match="task.style='instrct'.*'instruct'"):
        MBPP("mbpp", "instrct", allow_code=True)
