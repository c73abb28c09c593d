"""The page about ParallelBench tells the truth."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dllm.parts import ParallelBench
from dllm.tasks.parallelbench import theory

PAGE = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text()


def test_its_example_prints_what_is_expected(capsys: pytest.CaptureFixture[str]) -> None:
    exec(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], {})  # type: ignore[index]
    found = re.fullmatch(r"(0\.\d\d) right, (0\.\d\d) expected\n", capsys.readouterr().out)
    assert found is not None and abs(float(found[1]) - float(found[2])) < 0.1


def test_its_counts_and_numbers_are_right() -> None:
    items = ParallelBench("r1").items()
    assert f"{len({item.task for item in items})} tasks, {len(items):,} questions" in PAGE
    for name, text in re.findall(r"^\| `(\w+)` \|.*\| (0\.\d+) \|$", PAGE, re.MULTILINE):
        valid = theory.outputs(name, 5)
        assert f"{theory.accuracy(valid, [range(len(valid[0]))]):.3f}" == text
    replaced = theory.outputs("replace_random", 6)
    by_k = [f"{theory.accuracy(replaced, theory.left_to_right(6, k)):.2f}" for k in (2, 3, 5)]
    assert re.search(r"{} of all cases .*?{} at three and in {} at five".format(*by_k), PAGE, re.DOTALL)


@pytest.mark.parametrize("name", sorted(ParallelBench("r1", ["waiting_line", "puzzle", "easy"]).questions.wording))
def test_it_names_every_task(name: str) -> None:
    assert f"`{name.rpartition('/')[2]}`" in PAGE
