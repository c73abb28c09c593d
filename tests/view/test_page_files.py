"""Pages beside traces: the command that writes them, how panes are called, and a run that leaves them."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from dllm import Decoder, UserError, load
from dllm.app.command_line import main as cli
from dllm.parts import Pane, Trace, composed, headings, plain_config, setting_facts, trace_page, write
from dllm.view.__main__ import main


@pytest.fixture(scope="module")
def trace() -> Trace:
    found = Decoder(load("mini-llada"), gen_length=16)('Copy the list:\n["Kai", "Emma"]', trace=True)[0].trace
    assert found is not None
    return found


def test_the_command_writes_a_page_beside_its_trace(trace: Trace, tmp_path: Path, capsys: Any) -> None:
    config = {group: {"_target_": f"dllm.{group}.Some"} for group in ("sampler", "blocks", "cache", "eos")}
    data = {
        "id": "1",
        "sample": 0,
        "seed": 0,
        "batch": [["1", 0]],
        "trace": trace.to_json(),
        "config": {"model": {"name": None, "path": "mini-llada"}, **config},
    }
    for name in ("one.json", "two.json"):
        (tmp_path / name).write_text(json.dumps(data))
    main([str(tmp_path / "one.json")])
    assert "mini-llada" in (tmp_path / "one.html").read_text()
    main([str(tmp_path / "one.json"), str(tmp_path / "two.json"), "-o", str(tmp_path / "both.html")])
    run = tmp_path.parent.name  # traces lie in RUN/traces
    page = (tmp_path / "both.html").read_text()
    title = page.partition("<h1>")[2].partition("</h1>")[0]
    assert page.count(f"{run}: prompt 1") == 2 and title and " and " not in title
    assert capsys.readouterr().out.splitlines() == [str(tmp_path / name) for name in ("one.html", "both.html")]
    with pytest.raises(UserError, match="Name another place with -o"):
        write([tmp_path / "one.json"], tmp_path / "nowhere" / "x.html")


def test_two_decodes_of_one_prompt_are_called_by_what_differs(trace: Trace) -> None:
    facts = {"sample": "one: prompt 1", "model": "m", "sampler": "static"}
    other = {"sample": "two: prompt 1", "model": "m", "sampler": "eb"}
    assert headings([Pane("Sort", trace, facts), Pane("Sort", trace, other)]) == ["sampler static", "sampler eb"]
    again = {**facts, "sample": "one: prompt 1, answer 2"}
    assert headings([Pane("Sort", trace, facts), Pane("Sort", trace, again)]) == [
        "sample one: prompt 1",
        "sample one: prompt 1, answer 2",
    ]
    assert headings([Pane("Sort", trace, facts), Pane("Copy", trace, facts)]) == ["Sort", "Copy"]


def test_a_file_that_is_no_trace_is_one_sentence(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path / "bad.json")])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("Error: ") and "is not a trace of this program" in error and error.count("\n") == 1


def test_parts_have_the_names_that_one_types() -> None:
    found = composed(["sampler=prophet", "sampler/inner=localleap", "blocks=whole", "cache=dpad", "eos=none"])
    assert setting_facts(plain_config(found)) == {
        "model": "mini-llada",
        "sampler": "prophet(localleap)",
        "blocks": "whole",
        "cache": "dpad",
        "eos": "none",
    }


def test_a_traced_run_leaves_a_page_beside_every_trace(
    tiny: Path, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [
        f"model.path={tiny}",
        "prompt=w1 w2",
        "gen_length=8",
        "samples=2",
        "trace=true",
        "name=traced",
        "sampler.threshold=0.7",
    ]
    monkeypatch.setattr("sys.argv", ["run.py", *given])
    cli.main()
    folder = tmp_path / "runs" / "traced" / "traces"
    assert sorted(file.name for file in folder.iterdir()) == ["1-0.html", "1-0.json", "1-1.html", "1-1.json"]
    data = json.loads((folder / "1-1.json").read_text())
    assert (folder / "1-1.html").read_text() == trace_page([Pane.of("traced", data, Trace.from_json(data))])
    page = (folder / "1-1.html").read_text()
    assert '"sample":"traced: prompt 1, answer 2"' in page and "<h1>traced" not in page, "the prompt is the title"
    assert '"sample":"traced: prompt 1"' in (folder / "1-0.html").read_text()
    shown = capsys.readouterr().out
    assert "open in a browser: runs/traced/traces/*.html" in shown
    assert "confidence(threshold=0.7)" in (folder / "1-0.html").read_text()


PROMPT = 'Sort {{MARKS}}{{DATA}} the list:\n["Kai", "Emma"]'


def test_a_page_allows_its_script_by_hash_and_keeps_a_prompt_as_it_is() -> None:
    trace = Decoder(load("mini-llada"), sampler="confidence", gen_length=8)([PROMPT], trace=True)[0].trace
    page = trace_page([Pane.of("", trace.content(), trace)])
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{allowed}';" in page and "default-src 'none'" in page
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    (pane,) = json.loads(data)["panes"]
    assert PROMPT in "".join(pane["words"][str(token)] for token in pane["prompt"])
