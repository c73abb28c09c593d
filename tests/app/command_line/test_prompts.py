"""Prompts on the command line: what a run decodes, shows and leaves behind, and how it goes on."""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from dllm.parts import Turn, Unfinished, locate, warn_once
from tests.app.command_line.conftest import Run
from tests.app.conftest import ROOT


def test_a_prompt_ends_as_text_a_table_and_a_run_folder(run: Run) -> None:
    outcome = run("prompt=w1 [w2], 'w3'")
    assert outcome.code == 0
    (row,) = outcome.rows()
    assert outcome.out == row["text"] + "\n", "in a pipe the answer stands alone"
    for word in ("tokens (useful)", "forwards (NFE)", "tokens per forward", "tokens per second", "query", "stopped by"):
        assert word in outcome.err
    assert row["prompt"] == "w1 [w2], 'w3'" and row["prompt_tokens"] == [62, 1, 0, 0, 63]
    environment = json.loads((outcome.run / "environment.json").read_text())
    assert environment["device"] == "cpu" and environment["dtype"] == "float32" and environment["versions"]["torch"]
    assert "gen_length: 16" in (outcome.run / "config.yaml").read_text()


def test_a_comparison_leaves_the_trace_of_the_chosen_setting(run: Run) -> None:
    outcome = run("prompt=w1", "sampler=static", "sampler.steps=4", "eos=none", "compare=true", "trace=true")
    (row,), (other,) = outcome.rows(), outcome.rows("compare.jsonl")
    trace = json.loads((outcome.run / "traces" / "1-0.json").read_text())
    assert (row["nfe"], other["nfe"]) == (4, 16) and len(trace["trace"]["turns"]) == 4


def test_every_part_and_number_can_be_chosen(run: Run) -> None:
    outcome = run("sampler=static", "sampler.steps=4", "eos=none", "samples=2", "batch_size=2", "seed=7", "prompt=w1")
    assert [row["nfe"] for row in outcome.rows()] == [4, 4]
    assert [row["seed"] for row in outcome.rows()] == [7, 8]


def test_no_experiment_and_a_number_as_a_stop_string_are_nothing_special(run: Run) -> None:
    outcome = run("prompt=w1", "experiment=null", "stop=[1]")
    assert outcome.code == 0 and len(outcome.rows()) == 1


def test_hydra_run_dir_is_the_runs_folder(run: Run, tiny: Path, tmp_path: Path) -> None:
    outcome = run("task=prompt", f"model.path={tiny}", "prompt=w1", "gen_length=4", "hydra.run.dir=else/where")
    assert outcome.code == 0 and (tmp_path / "else" / "where" / "results.jsonl").is_file()
    assert not outcome.folder.exists()


PROMPTS = """{"prompt": "w1 w2", "id": "first"}
{"prompt": "w1
{"tokens": [5, 6, 7]}

{"infill": ["w1", 3, "w9", 4]}
{"messages": [{"role": "user", "content": "w4"}]}
{"prompt": "w1", "answer": 3, "id": "first"}
{"tokens": [99]}
{"prompt": "w1", "tokens": [1]}
[1]
{"infill": ["w1", true]}
{"id": "both", "messages": [{"role": "user", "content": "w4"}], "infill": ["w1", 3, "w9"]}
{"prompt": "w1", "tokens": [1], "infill": ["w1", 3]}
"""


def test_broken_lines_of_prompts_are_reported_and_skipped(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(PROMPTS)
    outcome = run("prompts=p.jsonl", "batch_size=3", "eos=none")
    assert outcome.code == 0
    rows = sorted(outcome.rows(), key=lambda row: row["seed"])
    assert [row["id"] for row in rows] == ["first", "3", "5", "6", "both"]
    skipped = re.findall(r"line (\d+) is skipped", outcome.err)
    assert skipped == ["2", "7", "8", "9", "10", "11", "13"]
    assert "not JSON" in outcome.err and "id 'first' is in line 1 already" in outcome.err
    infilled = next(row for row in outcome.rows() if row["id"] == "5")
    both, asked = (next(row for row in outcome.rows() if row["id"] == name) for name in ("both", "6"))
    assert both["prompt_tokens"] == asked["prompt_tokens"] and both["prompt"] == asked["prompt"]
    assert both["canvas"][:1] + both["canvas"][4:] == [1, 9] and both["given_tokens"] == 2
    assert infilled["canvas"][3] == 9 and len(infilled["canvas"]) == 8 and infilled["useful_tokens"] <= 7


def test_a_compressed_file_and_any_end_of_line_are_read(run: Run, tmp_path: Path) -> None:
    lines = b'{"id": "a", "prompt": "w1"}\r{"id": "b", "prompt": "w2"}\r\n{"id": "c", "prompt": "w3"}\n'
    (tmp_path / "p.jsonl.gz").write_bytes(gzip.compress(lines))
    assert sorted(row["id"] for row in run("prompts=p.jsonl.gz").rows()) == ["a", "b", "c"]
    (tmp_path / "q.jsonl.gz").write_bytes(gzip.compress(lines)[:-9])
    outcome = run("prompts=q.jsonl.gz")
    assert outcome.code == 2 and "prompts='q.jsonl.gz' cannot be read" in outcome.err


@pytest.mark.usefixtures("no_weights")
def test_an_array_over_several_lines_is_refused_in_one_sentence(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps([{"prompt": "w1"}, {"prompt": "w2"}], indent=1))
    outcome = run("prompts=p.json")
    assert outcome.code == 2 and "is one JSON array" in outcome.err and "jq -c" in outcome.err
    assert "is skipped" not in outcome.err


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("line", "way_out"),
    [
        ({"question": "1 + 1?", "answer": "#### 2"}, "task=gsm8k task.path=q.jsonl"),
        ({"question": "?", "choices": ["a"], "answer": 0, "subject": "x"}, "task=mmlu task.path=q.jsonl"),
        ({"question_id": 81, "turns": ["Hello", "Again"]}, "jq -c '{prompt: .turns[0]}' q.jsonl"),
        ({"instruction": "Sort", "output": ""}, "jq -c '{prompt: .instruction}' q.jsonl"),
        ({"x": 1}, "Write one"),
    ],
)
def test_questions_of_a_benchmark_are_no_prompts(run: Run, tmp_path: Path, line: object, way_out: str) -> None:
    (tmp_path / "q.jsonl").write_text(json.dumps(line) + "\n")
    outcome = run("prompts=q.jsonl")
    assert outcome.code == 2 and f"holds no usable line. {way_out}" in outcome.err.replace(
        "python run.py ", ""
    ).replace("Its lines are those of a task: ", "").replace("Convert it: ", "")


@pytest.mark.parametrize(("prompt", "said"), [("w1\\nw2", True), ("w1 w2", False)])
def test_a_line_break_that_the_shell_did_not_make_is_told(run: Run, prompt: str, said: bool) -> None:
    assert ("holds \\n as two letters" in run(f"prompt='{prompt}'").err) is said


@pytest.mark.usefixtures("no_weights")
def test_a_file_without_a_usable_line_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_bytes(b"\xff\n")
    outcome = run("prompts=p.jsonl")
    assert outcome.code == 2 and "p.jsonl' holds no usable line" in outcome.err


def test_compare_shows_both_ways_and_whether_they_agree(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "w1 w2"}\n{"prompt": "w3"}\n')
    outcome = run("prompts=p.jsonl", "compare=true", "eos=none", "sampler.threshold=0.2")
    fast, slow = outcome.rows(), outcome.rows("compare.jsonl")
    assert [row["nfe"] for row in slow] == [16, 16] and sum(row["nfe"] for row in fast) < 32
    same = sum(a["tokens"] == b["tokens"] for a, b in zip(fast, slow, strict=True))
    assert f"{same} of 2" in outcome.err and "one token per step" in outcome.err


def test_a_replayed_trace_is_equal_and_a_tampered_one_is_not(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "w1 w2"}\n{"prompt": "w3 w4 w5"}\n{"infill": ["w1", 3, "w2", 9]}\n')
    outcome = run("prompts=p.jsonl", "batch_size=3", "trace=true", "sampling.temperature=1.0", "seed=3", "stop=w5w5")
    files = sorted((outcome.run / "traces").glob("*.json"))
    assert len(files) == 3
    for file in files:
        replayed = run("task=replay", f"trace={file}")
        assert replayed.code == 0 and re.search(r"all \d+ turns equal", replayed.out)
    data = json.loads(files[0].read_text())
    commits = data["trace"]["turns"][1]["candidates"][0]
    for name, value in (("tokens", 17), ("confidence", commits["confidence"][0] + 1e-5), ("forced", None)):
        changed = json.loads(files[0].read_text())
        entry = changed["trace"]["turns"][1]["candidates"][0][name]
        entry[0] = (not entry[0]) if value is None else value
        (tmp_path / "runs" / "tampered.json").write_text(json.dumps(changed))
        replayed = run("task=replay", f"trace={tmp_path / 'runs' / 'tampered.json'}")
        assert replayed.code == 1 and f"turn 2 has {name}=" in replayed.out, name
    (tmp_path / "no.json").write_text('{"trace": 3}')
    assert "is not a trace" in run("task=replay", "trace=no.json").err


def test_resume_does_exactly_what_is_missing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("".join(f'{{"prompt": "w{number}"}}\n' for number in range(6)))
    whole = run("prompts=p.jsonl", "samples=2", "sampling.temperature=1.0", "name=here").rows()
    results = tmp_path / "runs" / "here" / "results.jsonl"
    lines = results.read_bytes().splitlines(keepends=True)
    results.write_bytes(b"".join(lines[:5]) + lines[5][:-9])
    again = run("resume=runs/here")
    assert again.code == 0 and "holds 5 samples already, 7 to go" in again.err
    assert [(r["id"], r["sample"], r["tokens"]) for r in again.rows()] == [
        (r["id"], r["sample"], r["tokens"]) for r in whole
    ]
    named = run("prompts=p.jsonl", "samples=2", "sampling.temperature=1.0", "name=here")
    assert "holds 12 samples already, 0 to go" in named.err and len(named.rows()) == 12
    (tmp_path / "p.jsonl").write_text('{"prompt": "w7"}\n')
    assert "another prompt or seed" in run("resume=runs/here").err
    refused = run("prompts=p.jsonl", "name=here", "seed=1")
    assert refused.code == 2 and re.search(r"was run with samples=2, not 1", refused.err)


def test_ctrl_c_keeps_finished_samples_and_says_how_to_go_on(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dllm.parts import RunFolder

    write = RunFolder.write

    def interrupted(self: RunFolder, *arguments: Any) -> None:
        write(self, *arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "write", interrupted)
    (tmp_path / "p.jsonl").write_text('{"prompt": "w1"}\n{"prompt": "w2"}\n')
    outcome = run("prompts=p.jsonl", "name=c")
    assert outcome.code == 130 and "1 of 2 samples are in runs/c. Go on with resume=runs/c" in outcome.err
    monkeypatch.setattr(RunFolder, "write", write)
    assert len(run("resume=runs/c").rows()) == 2


def test_ctrl_c_in_a_decode_prints_what_it_has(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of eight tokens, and a sign for what is open."""
    expected = run("prompt=w1 w2", "sampler=order", "gen_length=8").rows()[0]["text"]
    see, seen = Unfinished.__call__, []

    def interrupted(self: Unfinished, turn: Turn) -> None:
        see(self, turn)
        seen.append(turn)
        if len(seen) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Unfinished, "__call__", interrupted)
    outcome = run("prompt=w1 w2", "sampler=order", "gen_length=8")
    assert outcome.code == 130 and "0 of 1 samples are in" in outcome.err
    (text,) = [line for line in outcome.out.splitlines() if line.endswith("\N{HORIZONTAL ELLIPSIS}")]
    assert expected.startswith(text[:-1]) and len(text) > 3


def test_a_conversation_keeps_its_history_without_end_of_text(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "stdin", io.StringIO("w1 w2\n\nw3\n" + "w4 " * 300 + "\n/reset\n/help\n/foo\n/settings\nw5\n/exit\nw6\n")
    )
    outcome = run("chat=true")
    assert outcome.code == 0
    first, second, third = outcome.rows()
    assert first["prompt_tokens"] == [62, 1, 2, 63]
    assert second["prompt_tokens"][:4] == [62, 1, 2, 63] and second["prompt_tokens"][-3:] == [62, 3, 63]
    assert 61 not in second["prompt_tokens"] and third["prompt_tokens"] == [62, 5, 63]
    assert outcome.out.splitlines()[:3] == [row["text"] for row in outcome.rows()]
    assert "limit of 256" in outcome.err and "A new conversation." in outcome.err
    assert "/foo is not a command." in outcome.err and "sampler: confidence" in outcome.err


@pytest.mark.usefixtures("no_weights")
def test_chat_without_a_template_is_refused(run: Run) -> None:
    outcome = run("chat=true", model=ROOT / "tests" / "data" / "models" / "tiny-llada")
    assert outcome.code == 2 and "chat template" in outcome.err and "prompt=TEXT" in outcome.err


def test_token_ids_need_no_tokenizer(run: Run, tmp_path: Path) -> None:
    lines = ['{"tokens": [1, 2, 3]}', '{"prompt": [1, 2, 3]}', '{"prompt": "w1"}', '{"infill": [1000000000000]}']
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    outcome = run("prompts=p.jsonl", model=ROOT / "tests" / "data" / "models" / "tiny-llada")
    rows = outcome.rows()
    assert outcome.code == 0 and [row["prompt_tokens"] for row in rows] == [[1, 2, 3]] * 2
    assert "line 3 is skipped: model" in outcome.err and '{"tokens": [1, 2]}' in outcome.err
    assert "line 4 is skipped: infill has 1000000000000 masks" in outcome.err
    assert " ".join(map(str, rows[0]["tokens"])) in outcome.out


def test_runs_of_one_second_get_folders_of_their_own(tmp_path: Path) -> None:
    from dllm.parts import fresh_folder

    assert [fresh_folder(tmp_path / "runs", "now").name for _ in range(3)] == ["now", "now-2", "now-3"]


def test_a_rule_that_commits_nothing_ends_with_a_sentence_and_no_folder(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = "dllm.parts.samplers.confidence.Confidence.step"
    monkeypatch.setattr(step, lambda self, view, state: view.step(view.canvas.no_positions))
    outcome = run("prompt=w1 w2")
    assert outcome.code == 2 and outcome.err.startswith("Error: sampler=confidence decided nothing in 17 forwards")
    assert not outcome.folder.exists() or not any(outcome.folder.iterdir())


@pytest.mark.filterwarnings("always::dllm.common.errors.SettingWarning")
def test_a_mini_model_that_is_asked_something_else_says_so_in_a_short_line_once(run: Run, tmp_path: Path) -> None:
    warn_once.cache_clear()
    (tmp_path / "asked.jsonl").write_text(
        "".join(f'{{"prompt": "{one}?"}}\n' for one in ("Latin square", "Why", "Who"))
    )
    mini = locate("mini-llada")
    assert "Warning" not in run(r'prompt=Sort: ["Zoe", "Ada"]', model=mini).err
    assert (
        "Warning" not in run('prompts=[{"messages": [{"role": "user", "content": "Hi\\nSort: b, a"}]}]', model=mini).err
    )
    said = run("prompts=asked.jsonl", model=mini).err
    (line,) = [one for one in said.splitlines() if one.startswith("Warning")]
    assert line == "Warning: mini-llada was not trained on this. Try: Latin square: A,B,C,D" and len(line) < 80
    assert "Warning" not in run("prompt=Why?", model=mini).err
    warn_once.cache_clear()
    assert "Warning" not in run("prompt=Why?").err, "another model may know"
    assert "Warning" not in run("task=parallelbench", "task.tasks=[copy]", "task.count=1", "output=runs").err


def test_what_is_typed_beside_resume_is_named_where_it_differs_and_nothing_else_is(run: Run) -> None:
    assert run("prompt=w1", "name=week1", "sampler=localleap").code == 0
    assert run("resume=runs/week1", "sampler=localleap", "name=week1").code == 0
    for words, said in (
        (["name=week2"], "name=week2 is for a new run, and resume=runs/week1 goes on with its own. Drop one."),
        (["seed=3"], "was run with seed=0, not 3."),
        (["sampler=eb"], "was run with sampler=localleap, not eb."),
    ):
        refused = run("resume=runs/week1", *words)
        assert refused.code == 2 and said in refused.err, refused.err


def test_a_run_says_which_choices_its_parts_bring(run: Run, tiny: Path) -> None:
    plain = ("task=prompt", f"model.path={tiny}", "output=runs", "gen_length=16", "prompt=w1")
    assert "cache=elastic brings blocks=whole\n" in run(*plain, "cache=elastic").err
    assert "brings" not in run(*plain, "cache=elastic", "blocks=whole").err + run(*plain, "cache=dual").err
