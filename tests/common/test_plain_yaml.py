"""YAML of strangers: plain data as PyYAML reads it, or a sentence, within bounds."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from dllm.parts import UserError, plain_yaml


def bomb(depth: int) -> str:
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, depth)]
    return "\n".join(lines)


REFUSED = {
    "bracket": ("a: 1\nb: [1, 2\n", "line 3 is no YAML"),
    "tab": ("a:\n\tb: 1\n", "line 2 is no YAML"),
    "tag": ("a: 1\nb: !!python/object/apply:os.system ['true']\n", "line 2 has the tag"),
    "own tag": ("a: !x 1\n", "has the tag '!x'"),
    "bytes": ("a: !!binary aGk=\n", "has the tag"),
    "set": ("a: !!set {b}\n", "has the tag"),
    "bomb": (bomb(4), "entries by aliases"),
    "bombs": (bomb(9), "entries by aliases"),
    "itself": ("a: &a [*a]\n", "holds itself"),
    "deep": ("[" * 5000, "deep"),
    "twice": ("b: 1\na: {c: 1, c: 2}\n", "line 2 holds c twice"),
    "two": ("a: 1\n---\nb: 2\n", "line 2 is no YAML"),
    "key": ("? [a]\n: 1\n", "a list for a name"),
    "undefined": ("a: *b\n", "undefined alias"),
    "merge": ("<<: 5\n", "no YAML"),
    "many": ("a: [" + "1," * 5000 + "]", "more than 4000 entries"),
    "control": ("a: \x01\n", "is no YAML"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_plain_is_a_sentence_at_once(name: str, tmp_path: Path) -> None:
    text, said = REFUSED[name]
    (file := tmp_path / "x.yaml").write_text(text)
    began = time.process_time()
    with pytest.raises(UserError, match=said) as refused:
        plain_yaml(file, 4000)
    assert time.process_time() - began < 2
    assert str(refused.value).startswith(str(file)) and "\n" not in str(refused.value)


def test_what_is_no_file_or_no_text_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"a: \xff\n")
    known = {tmp_path: "is no file", tmp_path / "x.yaml": "is no YAML", Path("/dev/zero"): "is no file"}
    for file, said in known.items():
        with pytest.raises(UserError, match=said):
            plain_yaml(file)


@pytest.mark.parametrize(
    "value", [{}, None, {"a": [1, 2.5, True, None, "x", {"b": "2026-11-29"}], "1": ""}, [], "text", 5], ids=str
)
def test_plain_data_are_read_as_written(value: Any, tmp_path: Path) -> None:
    (file := tmp_path / "x.yaml").write_text(yaml.safe_dump(value))
    assert plain_yaml(file) == value


def test_a_date_is_a_text_and_an_alias_may_save_a_line(tmp_path: Path) -> None:
    (file := tmp_path / "x.yaml").write_text("name: 2026-11-29\na: &a {b: [1]}\nc: *a\nd: {<<: *a, e: 1}\n")
    assert plain_yaml(file) == {"name": "2026-11-29", "a": {"b": [1]}, "c": {"b": [1]}, "d": {"b": [1], "e": 1}}
