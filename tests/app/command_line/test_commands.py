"""Short commands: what they stand for, their own help, and what is not a model."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shlex
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dllm.app.command_line import main as cli
from dllm.compose.comparisons import compared_config
from dllm.compose.naming import typed_name
from dllm.compose.parts import plain_config
from dllm.parts import (
    COMMANDS,
    FIT_OPTIONS,
    WORD_COMMANDS,
    UserError,
    choice_notes,
    command_help,
    composed,
    config_groups,
    hydra_quote,
    hydra_quoted,
    options_of_choices,
    setting_names,
    with_command,
)
from dllm.view import __main__ as view
from tests.app.command_line.conftest import Run
from tests.app.conftest import ROOT

CASES: list[tuple[list[str], list[str]]] = [
    (["run", "Sort: a, b"], ["prompt=Sort: a, b"]),
    (["run", "x = 3?", "seed=1"], ["prompt=x = 3?", "seed=1"]),
    (["run", "mini-dream", "hello", "sampler=eb"], ["model=mini-dream", "prompt=hello", "sampler=eb"]),
    (["run", "mini-llada"], ["chat=true", "model=mini-llada"]),
    (["serve", "hf.co/some/one"], ["task=serve", "model.path=some/one"]),
    (["run", "some/one/a.gguf@v1", "x"], ["model.path=some/one/a.gguf@v1", "prompt=x"]),
    (["run", "sampler=eb"], ["sampler=eb"]),
    (["run"], []),
    (["chat", "MINI-LLADA"], ["chat=true", "model=mini-llada"]),
    (["serve", "task.port=0"], ["task=serve", "task.port=0"]),
    (["serve"], ["task=serve"]),
    (["serve", "GSAI-ML/LLaDA-8B-Instruct"], ["task=serve", "model=llada-8b-instruct"]),
    (["serve", "--help"], ["task=serve", "--help"]),
    (["sampler=eb", "serve"], ["sampler=eb", "serve"]),
    (["check", "/no/such"], ["task=check", "model.path=/no/such"]),
    (
        ["check", "Dream-7b-Base", "gpu=24", "length=2048", "cache=dual"],
        ["task=check", "model=dream-7b-base", "task.gpu=24", "task.length=2048", "cache=dual"],
    ),
    (
        ["serve", "mini-dream", "port=9000", "task.host=::1", "host=localhost"],
        ["task=serve", "model=mini-dream", "task.port=9000", "task.host=::1", "task.host=localhost"],
    ),
    (["check", "mini-llada", "length=fixed"], ["task=check", "model=mini-llada", "length=fixed"]),
    (["train", "filter", "mini-llada", "items=8"], ["train=filter", "model=mini-llada", "items=8"]),
    (["sweep", "sampler=eb,static", "task=gsm8k"], ["-m", "sampler=eb,static", "task=gsm8k"]),
    (["sweep", "--config-dir", "a", "sampler=b,c"], ["-m", "--config-dir", "a", "sampler=b,c"]),
    (["run", "-cd", "a", "a"], ["prompt=a", "-cd", "a"]),
    (["chat", "--config-dir=a"], ["chat=true", "--config-dir=a"]),
]


@pytest.mark.parametrize(("typed", "meant"), CASES, ids=str)
def test_a_command_stands_for_settings(typed: list[str], meant: list[str]) -> None:
    assert with_command(typed) == meant


def test_the_options_of_check_are_those_of_its_file() -> None:
    notes = choice_notes("task", "check")
    assert COMMANDS["check"].options == tuple((f"{name}=null", notes[name]) for name in FIT_OPTIONS)


def test_the_options_of_serve_have_the_defaults_of_its_file() -> None:
    options = options_of_choices("task")["serve"]
    defaults = dict(word.split("=", 1) for word, _ in COMMANDS["serve"].options)
    assert defaults and {name: str(options[name]) for name in defaults} == defaults


def test_a_folder_is_a_model(tmp_path: Path) -> None:
    assert with_command(["serve", str(tmp_path)]) == ["task=serve", f"model.path={tmp_path}"]


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["serve", "mini-lada"], "Did you mean 'mini-llada'?"),
        (["chat", "why so?"], "dllm run 'why so?'"),
        (["run", "a", "b", "c"], 'write dllm run [MODEL] "PROMPT"'),
        (["sweep", "a"], "write dllm sweep NAME=VALUE,VALUE"),
        (["train", "mini-llada"], "write dllm train filter [MODEL]"),
    ],
    ids=str,
)
def test_what_is_no_model_has_a_way_out(typed: list[str], words: str) -> None:
    with pytest.raises(UserError) as refused:
        with_command(typed)
    assert words in str(refused.value)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in WORD_COMMANDS])
def test_help_of_a_command_is_short_and_its_own(name: str) -> None:
    lines = command_help(name, with_command([name]), 100).replace("-m", "").splitlines()
    assert lines[0].startswith(f"dllm {name} ") and len(lines) < 84 and max(map(len, lines)) <= 100
    assert all(any(example in line for line in lines) for example, _ in COMMANDS[name].examples)


def test_one_prompt_under_several_samplers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run(
        "prompt=w1 w2", "sampler=static", "sampler.steps=4", "sampling.forbid_eos=true", "compare=[confidence,static]"
    )
    (own,), (other,) = outcome.rows(), outcome.rows("compare-confidence.jsonl")
    assert outcome.out == own["text"] + "\n" and own["nfe"] == 4
    assert other["prompt"] == own["prompt"] and "confidence" in outcome.err
    assert not (outcome.run / "compare-static.jsonl").exists(), "the chosen one is not decoded twice"
    assert "same as the last" in outcome.err and sys.argv


def test_one_prompt_under_several_choices_of_a_group_leaves_all_traces(run: Run) -> None:
    """Each column is the run of its own command, and its trace holds its own settings."""
    outcome = run("prompt=w1 w2", "compare=[cache=none,cache=dual,static]", "trace=true", "name=all")
    assert outcome.code == 0
    alone = run("prompt=w1 w2", "cache=dual", "name=alone")
    row = json.loads((outcome.folder / "all" / "compare-cache=dual.jsonl").read_text())
    own = json.loads((alone.folder / "alone" / "results.jsonl").read_text())
    assert (row["canvas"], row["turns"], row["query_tokens"]) == (own["canvas"], own["turns"], own["query_tokens"])
    traces = {name: outcome.folder / "all" / name / "1-0.json" for name in ("traces", "traces-compare-cache=dual")}
    targets = [json.loads(file.read_text())["config"]["cache"]["_target_"] for file in traces.values()]
    assert [one.rpartition(".")[2] for one in targets] == ["NoCache", "Dual"]
    assert (outcome.folder / "all" / "traces-compare-static" / "1-0.json").is_file()


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("engine=local", "engine cannot be compared"),
        ("cache=duel", "Did you mean 'dual'?"),
        ("elastic", "Write cache=elastic."),
    ],
)
def test_what_cannot_be_compared_is_refused(run: Run, entry: str, sentence: str) -> None:
    outcome = run("prompt=w1", f"compare=[{entry}]")
    assert outcome.code == 2 and sentence in outcome.err


@pytest.mark.parametrize("given", [[], ["blocks"]])
def test_a_choice_is_compared_with_what_it_brings(given: list[str]) -> None:
    config = plain_config(composed(["cache=elastic"]))
    config["blocks"] = plain_config(composed([])["blocks"]) if given else config["blocks"]
    back = compared_config(config, "cache=none", given)
    there = compared_config(plain_config(composed([])), "cache=elastic", given)
    assert typed_name(back, "cache") == "none" and typed_name(back, "blocks") == "fixed"
    assert typed_name(there, "cache") == "elastic" and typed_name(there, "blocks") == ("fixed" if given else "whole")


def test_the_version_is_this_programs(run: Run) -> None:
    outcome = run("--version")
    assert outcome.code == 0 and outcome.out.startswith("dllm ") and "Hydra" not in outcome.out


def test_a_reader_that_leaves_ends_it_silently(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # as head does
    with os.fdopen(writer, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        outcome = run("--help")
    assert (outcome.code, outcome.err) == (141, "")


def test_a_checkpoint_is_checked_without_weights(run: Run, tiny: Path, tmp_path: Path, no_weights: None) -> None:
    outcome = run("task=check", f"model.path={tiny}")
    assert outcome.code == 0 and "ready" in outcome.out
    (tmp_path / "empty").mkdir()
    assert run("task=check", "model.path=empty").code != 0


def test_help_shows_examples_choices_and_settings(run: Run) -> None:
    outcome = run("--help", "-m", "sampler=static,eb")
    assert outcome.code == 0 and "Hydra" not in outcome.out
    for word in ("python run.py chat=true", "  sampler=\n", "gen_length=null", "* confidence", "task=replay"):
        assert word in outcome.out


TEXTS = ["a", "", "[b, a]", "it's", 'say "x"', "a\\", "\\'", "${x}", "\\${x", "a=b,c", "#(\n{"]


@pytest.mark.daily(6)
@pytest.mark.parametrize("text", TEXTS)
def test_a_prompt_reaches_the_program_as_it_was_typed(text: str) -> None:
    (argument,) = hydra_quoted([f"prompt={text}"])
    assert composed([argument]).prompt == text
    assert composed([f"prompt={hydra_quote(text)}"]).prompt == text


def test_only_texts_and_places_are_quoted() -> None:
    plain = ["prompt='a'", "prompt=null", "stop=[a,b]", "resume=runs/x", "sampler=static", "-m", "trace=true", "seed=1"]
    assert hydra_quoted(plain) == plain
    assert hydra_quoted(["resume=my runs/(1)", "stop=###"]) == ["resume='my runs/(1)'", "stop='###'"]


def readme_commands() -> list[str]:
    """What follows ``python -m dllm`` in the README."""
    text = (ROOT / "README.md").read_text()
    return re.findall(r"^ +python -m dllm (?!\w+\.)(.*)$", text, re.MULTILINE)


def test_the_commands_of_the_readme_name_things_that_exist() -> None:
    commands = readme_commands()
    assert len(commands) >= 5
    for command in commands:
        words = with_command(shlex.split(command, comments=True))
        arguments = hydra_quoted([word for word in words if not word.startswith("-")])
        config = composed(arguments)
        assert all(name.split(".")[0] in [*config, *config_groups()] for name in setting_names(arguments))


def test_the_python_example_of_the_readme_runs() -> None:
    names: dict[str, Any] = {}
    for example in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL):
        assert len(example.strip().splitlines()) < 12
        exec(compile(example, "README.md", "exec"), names)
    assert names["result"].text == '["Hugo", "Emma", "Kai"]'


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("output=~/out", "output={home}/out"),
        ("task.questions=~/q.json", "task.questions={home}/q.json"),
        ("model.adapter='~/a b'", "model.adapter='{home}/a b'"),
        ("+own.file=~", "+own.file={home}"),
        ("model.path=~/a,~/b", "model.path={home}/a,{home}/b"),
        ("--config-dir=~/conf", "--config-dir={home}/conf"),
        ("prompt=~/is a letter", "prompt='~/is a letter'"),
        ("output=a~b", "output='a~b'"),
        ("~task.x=1", "~task.x=1"),
    ],
)
def test_a_value_that_begins_with_a_tilde_is_in_the_home_folder(
    typed: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hydra_quoted([typed]) == [meant.format(home=tmp_path)]


ESCAPES = "A\x1b[2J\x1b]0;t\x07B"
SHOWN = "A␛[2J␛]0;t␇B"
# What rich and tqdm send to move and colour: no clearing of screens, no titles, no bell.
OWN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[2K|\x1b\[[0-9]*A|\x1b\[\?25[lh]|\r")
Typed = Callable[..., str]


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Typed:
    """What a terminal receives of a command, as text without the sequences that are our own."""

    def call(command: Callable[[], Any], *arguments: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
        master, slave = pty.openpty()
        received: list[bytes] = []
        reader = threading.Thread(target=drain, args=(master, received))
        reader.start()
        with os.fdopen(slave, "w", encoding="utf-8") as stream, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            patch.setattr(sys, "stderr", stream)
            with suppress(SystemExit):
                command()
        reader.join()
        os.close(master)
        return OWN.sub("", b"".join(received).decode())

    return call


def drain(master: int, received: list[bytes]) -> None:
    """All that arrives until the other side closes."""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # Linux says so when the last writer has left
            return
        if not part:
            return
        received.append(part)


def written(folder: Path) -> Path:
    """Two prompts whose ids and answers hold escape sequences."""
    chosen = {"name": "choice", "options": [ESCAPES]}
    rows = [{"prompt": "Sort", "id": f"{number}{ESCAPES}", "constraint": chosen} for number in range(2)]
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + f"{ESCAPES}\n")
    return file


@pytest.mark.parametrize("live", ["live=true", "live=false compare=true"])
def test_answers_ids_and_broken_lines(live: str, terminal: Typed, tmp_path: Path) -> None:
    settings = ["model=mini-llada", f"prompts={written(tmp_path)}", "gen_length=32", "sampler=static", "batch_size=2"]
    text = terminal(cli.main, *settings, *live.split())
    assert "\x1b" not in text and "\x07" not in text
    assert text.count(SHOWN) >= 4  # twice an id and an answer


def test_a_prompt_and_its_run_folder(terminal: Typed) -> None:
    text = terminal(cli.main, f"prompt='{ESCAPES}'", f"output='{ESCAPES}'", "gen_length=4", "trace=true")
    assert "\x1b" not in text and text.count(SHOWN) >= 3


def test_a_conversation(terminal: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{ESCAPES}\n"))
    chosen = ["constraint=choice", f"constraint.options=['{ESCAPES}']"]
    text = terminal(cli.main, "chat=true", "gen_length=32", *chosen)
    assert "\x1b" not in text and SHOWN in text


def test_names_in_errors_reports_and_replays(terminal: Typed, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / ESCAPES).symlink_to(tiny)
    trace = tmp_path / f"{ESCAPES}.json"
    trace.write_text(f'"{ESCAPES}')
    for command, *arguments in (
        (cli.main, "task=check", f"model.path='{ESCAPES}'"),
        (cli.main, f"{ESCAPES}=3"),
        (cli.main, "task=replay", f"trace='{trace}'"),
        (lambda: view.main([str(trace)]),),
        (lambda: view.main([ESCAPES] * 3),),
        (lambda: view.main(["no.json", "-o", ESCAPES]),),
    ):
        text = terminal(command, *arguments)
        assert text and "\x1b" not in text, arguments


def test_in_a_pipe_an_answer_is_raw(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["run.py", f"prompts={written(tmp_path)}", "gen_length=32"])
    cli.main()
    out, err = capfd.readouterr()
    assert out == f"{ESCAPES}\n" * 2 and "\x1b" not in err
