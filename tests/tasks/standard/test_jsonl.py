"""Questions of one's own, and what is said about files that cannot be used."""

from __future__ import annotations

import gzip
import json
from fractions import Fraction
from pathlib import Path

import pytest

from dllm.parts import MATCHES, JsonLines, UserError, last_number, same_number, task_of


def written(folder: Path, *rows: object) -> str:
    file = folder / "questions.jsonl"
    file.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return str(file)


@pytest.mark.parametrize(
    ("match", "text", "answer", "same"),
    [
        ("exact", " yes\n", "yes", True),
        ("exact", "Yes", "yes", False),
        ("exact", "yes.", "yes", False),
        ("contains", "I say yes.", "yes", True),
        ("contains", "no", "yes", False),
        ("number", "so 2 + 2 = 4.", "4", True),
        ("number", "$1,234.50 in all", "1234.5", True),
        ("number", "4 apples, then 5", "4", False),
        ("number", "-3", "3", False),
        ("number", "none", "3", False),
        ("number", "x = .5", "#### 0.5", True),
        ("number", "10.0", "10", True),
    ],
)
def test_matches(match: str, text: str, answer: str, same: bool) -> None:
    assert MATCHES[match](text, answer) is same


NUMBERS = {
    "1,2,3": 3, "(4,7)": 7, "12,345,678": 12345678, "1,2345": 2345, "1,234.50.": 1234.5, "1{,}234": 1234, "0,5": 5,
    "\u22125": -5, "x = \u20135": -5, "10-5": 5, "3\u20135": 5, "(3)-4": 4, "GPT-4": 4, "2023-05-17": 17, "a = -4": -4,
    "-$5": -5, "50%": 50, "1.5e3": 1500, "1E+3": 1000, "2 x 10^-3": 0.002, r"1.5 \times 10^{3}": 1500, "7e99999": 99999,
    "3/4.": 0.75, "2 1/2 hours": 2.5, r"-\frac{3}{4}": -0.75, r"2\frac{1}{2}": 2.5, "3/4/2024": 2024, "1/0": 0,
    ".5": 0.5, "5.": 5, "1.2.3": 3, "12345678901234567891": 12345678901234567891,
}  # fmt: skip


@pytest.mark.parametrize(("text", "value"), NUMBERS.items())
def test_the_last_number_of_a_text_by_arithmetic(text: str, value: float) -> None:
    assert last_number(text) == Fraction(str(value)), text
    assert same_number(f"so {text}", str(value)) and not same_number(text, str(-value or 1))


@pytest.mark.parametrize("text", ["9" * 6_000, ",".join(["111"] * 2_000), "1/" * 3_000 + "1", "-" * 9_000 + "1"])
def test_a_text_of_many_digits_is_a_number_like_any_other(text: str) -> None:
    assert same_number(text, text)


def test_items_keep_their_order_ids_and_answers(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "2 + 2?"}]
    rows = {"prompt": "1 + 1?", "answer": 2}, {"prompt": messages, "answer": ["4", "four"], "id": "b"}
    path = written(tmp_path, *rows)
    task = JsonLines(path, match="contains", budget=9, stop=["\n"])
    first, second = task.items()
    assert (first.id, first.budget, first.stop, second.id, second.prompt) == ("1", 9, ("\n",), "b", messages)
    assert task.score(second, "it is four") == {"score": 1.0} and task.score(second, "five") == {"score": 0.0}
    assert [item.id for item in JsonLines(path, limit=1).items()] == ["1"]


def test_the_stamp_follows_the_content_and_not_the_place(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    row = {"prompt": "a", "answer": "b"}
    one, same = JsonLines(written(tmp_path, row)), JsonLines(written(tmp_path / "elsewhere", row))
    assert one.stamp() == same.stamp() != JsonLines(written(tmp_path, row, row)).stamp()


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (['{"prompt": "a", "answer": "b"}', '{"prompt": "a", "ans'], "line 2 is not JSON .* cut off"),
        (["[1]"], "line 1 is not an object"),
        (['{"prompt": "a", "anwser": "b"}'], "no 'answer'.*Did you mean 'anwser'"),
        ([""], "holds no line"),
        (['{"prompt": 3, "answer": "b"}'], "question 1: prompt and answer must be text"),
        (['{"prompt": "a", "answer": "b", "id": "x"}'] * 2, "id 'x' twice"),
    ],
)
def test_unusable_files_are_refused_with_their_line(tmp_path: Path, rows: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        JsonLines(written(tmp_path, *rows))


def test_a_compressed_file_is_read_and_one_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps({"prompt": "a", "answer": "b"}).encode())
    (tmp_path / "q.jsonl.gz").write_bytes(packed)
    assert [item.prompt for item in JsonLines(str(tmp_path / "q.jsonl.gz")).items()] == ["a"]
    (tmp_path / "q.jsonl.gz").write_bytes(packed[:-9])
    with pytest.raises(UserError, match="cannot be read .*end-of-stream"):
        JsonLines(str(tmp_path / "q.jsonl.gz"))


def test_unreadable_files_and_wrong_options_are_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, words in ((str(tmp_path), "cannot be read"), (str(binary), "not UTF-8"), (None, "task.path=FILE")):
        with pytest.raises(UserError, match=words):
            JsonLines(path)
    path = written(tmp_path, {"prompt": "a", "answer": "b"})
    with pytest.raises(UserError, match="Did you mean 'contains'"):
        JsonLines(path, match="contain")
    with pytest.raises(UserError, match="at least 1"):
        JsonLines(path, budget=0)


def test_the_configuration_builds_it(tmp_path: Path) -> None:
    from dllm.parts import composed_settings

    path = written(tmp_path, {"prompt": "a", "answer": "b"})
    config = composed_settings({"task": "jsonl", "task.path": path, "task.match": "number", "task.stop": ["x"]})
    assert isinstance(task_of(config["task"]), JsonLines)
