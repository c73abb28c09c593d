"""A trace of Python's is kept in a file that every reader opens; what is not a trace is refused in one sentence."""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dllm import Decoder, UserError, load, part
from dllm.app.command_line import main as cli
from dllm.parts import (
    Choice,
    Confidence,
    LocalLeap,
    Model,
    Result,
    Trace,
    configuration_of,
    part_config,
    read_trace,
    write,
)

EQUAL = re.compile(r"turns? (is |are )?equal")
HERE = f"task.packages=[{__name__.partition('.')[0]}]"  # this file is somebody's package
PROMPTS = ['Sort the list:\n["Kai", "Emma", "Ada"]', 'Reverse the list:\n["Kai", "Emma", "Ada"]']


class Own(Confidence):
    """A rule of a user's, in a module of theirs."""


class Secretive(Confidence):
    def __init__(self, hidden: float) -> None:
        super().__init__(hidden)


@pytest.fixture(scope="module")
def model() -> Model:
    return load("mini-llada")


@pytest.fixture(scope="module")
def result(model: Model) -> Result:
    """Of a wrapper around a rule, a cache, draws of a temperature of its own, in a batch."""
    sampler = part("sampler", "frontier", inner={"name": "localleap", "radius": 2})
    decoder = Decoder(model, sampler, cache="dual", gen_length=24, batch_size=2, temperature=[0.0, 0.7], stop=["]"])
    return decoder(PROMPTS, seed=3, trace=True)[1]


def replayed(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, *more: str) -> str:
    """What ``task=replay`` says."""
    monkeypatch.setattr(sys, "argv", ["run.py", "task=replay", f"trace={file}", *more])
    with suppress(SystemExit):
        cli.main()
    out, err = capsys.readouterr()
    return str(out + err)


def test_what_save_writes_every_reader_opens(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    trace = result.traced()
    file = trace.save(tmp_path / "t.json")
    data = json.loads(file.read_text())
    assert Trace.load(file) == Trace.load(str(file)) == trace
    assert Trace.from_json(data) == Trace.from_json(data["trace"]) == trace
    assert Trace.load(file).save(tmp_path / "again.json").read_text() == file.read_text()
    assert EQUAL.search(replayed(file, monkeypatch, capsys))
    page = write([file]).read_text()
    assert "frontier" in page and "dual" in page and read_trace(file)[0]["seed"] == 4
    assert "frontier" in trace.to_html(tmp_path / "u.html", trace).read_text()
    assert [entry.name for entry in tmp_path.iterdir() if "tmp" in entry.name] == []


def test_a_trace_without_its_settings_is_shown_and_not_replayed(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    file = tmp_path / "bare.json"
    file.write_text(json.dumps(result.traced().to_json()))
    assert Trace.load(file) == result.traced() and write([file]).exists()
    for one in (file, Trace.load(file).save(tmp_path / "kept.json")):
        assert "does not hold the settings of its decode" in replayed(one, monkeypatch, capsys)


@pytest.mark.parametrize("sampler", [Confidence(0.6), LocalLeap(0.8), Own(0.7)], ids=lambda one: type(one).__name__)
def test_objects_of_a_program_are_decoded_again(
    sampler: Any, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    chosen = Choice(["yes", "no"])
    trace = Decoder(model, sampler, gen_length=8, constraint=chosen)(PROMPTS[0], trace=True)[0].traced()
    assert trace.origin["config"]["sampler"]["threshold"] == sampler.threshold
    said = replayed(trace.save(tmp_path / "t.json"), monkeypatch, capsys, HERE)
    assert EQUAL.search(said)


def test_what_a_trace_cannot_say_of_an_object_it_says(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    trace = Decoder(model, Secretive(0.7), gen_length=8)(PROMPTS[0], trace=True)[0].traced()
    said = replayed(trace.save(tmp_path / "t.json"), monkeypatch, capsys, HERE)
    assert "no attribute holds hidden" in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("sampler", "prophet"),
        ("sampler", "ete"),
        ("sampler", "learn2pd"),
        ("blocks", "tccf"),
        ("cache", "window"),
        ("cache", "dkv_pd"),
        ("eos", "eotp"),
    ],
)
def test_a_part_that_is_chosen_by_name_is_known_whatever_it_makes_of_its_options(group: str, name: str) -> None:
    assert configuration_of(group, part(group, name)) == part_config(group, name, {})


def edited(**changes: Any) -> Callable[[dict[str, Any]], str]:
    return lambda data: json.dumps({**data, **changes})


def turn(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], str]:
    def write(data: dict[str, Any]) -> str:
        change(data["trace"]["turns"][0])
        return json.dumps(data)

    return write


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (lambda data: "", "it is empty"),
        (lambda data: json.dumps(data)[:-30], "it is cut off"),
        (lambda data: json.dumps(data)[:500], "it is cut off"),
        (lambda data: '{"a": 1}', "it has no 'prompt'"),
        (lambda data: "[1]", "it is not an object"),
        (lambda data: "[" * 99999, "is not a trace"),
        (lambda data: "<!doctype html>", "it is a page"),
        (lambda data: '{"id": 1}\n{"id": 2}\n', "an object in each line"),
        (lambda data: '{"canvas": [], "nfe": 1, "tokens": []}\n', "it is a result"),
        (lambda data: "nope", "it is not JSON"),
        (edited(id=3), "its 'id' is 3"),
        (edited(trace=3), "it is not an object"),
        (edited(config=[]), "its 'config' is []"),
        (turn(lambda one: one.pop("kept")), "a turn of it has no 'kept'"),
        (turn(lambda one: one.update(later=1)), "is of a newer version of dllm (a turn of it has 'later')"),
        (turn(lambda one: one["candidates"][0].update(positions=[9999])), "do not fit its canvas"),
        (turn(lambda one: one.update(kept="x")), "do not fit its canvas"),
    ],
)
def test_a_file_that_is_no_trace(content: Any, said: str, result: Result, tmp_path: Path) -> None:
    file = tmp_path / "odd.json"
    file.write_text(content(json.loads(json.dumps(result.traced().content()))))
    for read in (Trace.load, lambda one: write([one])):
        with pytest.raises(UserError) as refused:
            read(file)
        sentence = str(refused.value)
        assert said in sentence and str(file) in sentence and "\n" not in sentence and "Error" not in sentence


def test_places_that_hold_or_take_no_trace(result: Result, tmp_path: Path) -> None:
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(b"{}"))
    (tmp_path / "t.bin").write_bytes(b"\xff\xfe\x00")
    for name, said in (("t.json.gz", "gzip"), ("t.bin", "not text"), ("", "is a folder"), ("no.json", "cannot be")):
        with pytest.raises(UserError, match=said):
            Trace.load(tmp_path / name)
    for name in ("no/t.json", ""):
        with pytest.raises(UserError, match="cannot write"):
            result.traced().save(tmp_path / name)
    with pytest.raises(UserError, match=r"Trace.load\(FILE\) reads a file"):
        Trace.from_json("t.json")  # type: ignore[arg-type]
