"""The script that compiles MaskBench's schemas, on a folder of its format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.bench.maskbench import main

PLAIN = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def write(folder: Path, name: str, schema: Any, *tests: tuple[bool, Any]) -> None:
    listed = [{"description": "", "valid": valid, "data": data} for valid, data in tests]
    (folder / f"{name}.json").write_text(json.dumps({"description": name, "schema": schema, "tests": listed}))


def test_it_counts_outcomes_and_instances(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "plain", PLAIN, (True, {"a": 1}), (True, {"a": 1, "b": 2}), (False, {"a": "x"}))
    write(tmp_path, "format", {"type": "string", "format": "uri"}, (True, "http://a/b"), (False, "no uri"))
    write(tmp_path, "refused", {"contains": {}}, (True, [1]))
    write(tmp_path, "large", {"type": "string", "pattern": "^[ab]*a[ab]{15}$"}, (False, ""))
    main([str(tmp_path)])
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in told[:3]] == ["2", "1", "1"]
    assert [line.split()[0] for line in told[:3]] == ["compiled", "refused", "too"]
    assert told[3].split() == ["valid", "accepted", "2", "of", "3"]
    assert told[4].split() == ["invalid", "accepted", "1", "of", "2"]
    assert any("'contains' is not supported" in line for line in told) and "  invalid accepted: format.json: " in told


def test_a_sample_and_an_empty_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(4):
        write(tmp_path, str(number), PLAIN, (True, {"a": number, "b": 2}))
    main([str(tmp_path), "--schemas", "2", "--additional"])
    told = capsys.readouterr().out.splitlines()
    assert told[0].split() == ["compiled", "2"] and told[3].split() == ["valid", "accepted", "2", "of", "2"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match="holds no .json files"):
        main([str(tmp_path / "empty")])
