"""The command line: what it decodes, what it leaves behind, and how it says no."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dllm.app.command_line import main as cli
from dllm.app.command_line.overrides import names, quote, quoted
from dllm.compose.parts import choices, composed, groups
from dllm.models import bundle

ROOT = Path(__file__).parent.parent


@dataclass
class Outcome:
    code: int
    out: str
    err: str
    folder: Path  # where runs go

    @property
    def run(self) -> Path:
        (folder,) = [entry for entry in self.folder.iterdir() if entry.is_dir()]
        return folder

    def rows(self, name: str = "results.jsonl") -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run / name).read_text().splitlines()]


Run = Callable[..., Outcome]


@pytest.fixture
def run(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """``python run.py ARGUMENTS`` with the tiny model, in this process."""

    def call(*arguments: str, model: Path = tiny) -> Outcome:
        monkeypatch.chdir(tmp_path)
        given = [f"model.path={model}", "output=runs", "blocks.block_length=8", "gen_length=16", *arguments]
        plain = any(argument.startswith(("resume=", "task=", "-")) for argument in arguments)
        monkeypatch.setattr(sys, "argv", ["run.py", *(arguments if plain else given)])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err, tmp_path / "runs")

    return call


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading weights is an error."""

    def load(*arguments: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(bundle, "load", load)


def test_a_prompt_ends_as_text_a_table_and_a_run_folder(run: Run) -> None:
    outcome = run("prompt=w1 [w2], 'w3'")
    assert outcome.code == 0
    (row,) = outcome.rows()
    assert outcome.out.splitlines()[0] == row["text"]
    for word in ("tokens (useful)", "forwards (NFE)", "tokens per forward", "tokens per second", "query", "stopped by"):
        assert word in outcome.out
    assert row["prompt"] == "w1 [w2], 'w3'" and row["prompt_tokens"] == [62, 1, 0, 0, 63]
    environment = json.loads((outcome.run / "environment.json").read_text())
    assert environment["device"] == "cpu" and environment["dtype"] == "float32" and environment["versions"]["torch"]
    assert "gen_length: 16" in (outcome.run / "config.yaml").read_text()


def test_every_part_and_number_can_be_chosen(run: Run) -> None:
    outcome = run("sampler=static", "sampler.steps=4", "eos=keep", "samples=2", "batch_size=2", "seed=7", "prompt=w1")
    assert [row["nfe"] for row in outcome.rows()] == [4, 4]
    assert [row["seed"] for row in outcome.rows()] == [7, 8]


BAD: list[tuple[Sequence[str], Sequence[str]]] = [
    (["samplr=static"], ["samplr=static", "unknown", "'sampler'"]),
    (["sampler=statik"], ["sampler='statik'", "choose one of", "'static'"]),
    (["sampler.treshold=0.8"], ["sampler.treshold=0.8", "threshold", "Did you mean 'sampler.threshold'"]),
    (["gen_lenght=8"], ["gen_lenght=8", "'gen_length'", "--help"]),
    (["modell.path=x"], ["modell.path=x", "unknown"]),
    (["static"], ["'static'", "NAME=VALUE"]),
    (["task=paralelbench"], ["task='paralelbench'", "Did you mean 'parallelbench'"]),
    (["task=parallelbench", "prompt=x"], ["task=parallelbench", "drop prompt"]),
    (["sampler.threshold=high"], ["sampler.threshold='high'", "must be a number"]),
    (["sampler.threshold=[0.5,0.6]"], ["sampler.threshold=", "one number", "Python"]),
    (["sampler.threshold=1.5"], ["sampler.threshold=1.5", "[0, 1]"]),
    (["gen_length=many"], ["gen_length='many'", "whole number"]),
    (["gen_length=0"], ["gen_length=0", "at least 1"]),
    (["gen_length=256"], ["gen_length=256", "256", "limit"]),
    (["batch_size=0"], ["batch_size=0", "at least 1"]),
    (["trace=yes_please"], ["trace='yes_please'", "task=replay"]),
    (["sampler=static", "sampler.steps=4", "gen_length=20"], ["gen_length=20", "block_length=8", "multiple"]),
    (["sampler=static", "sampler.steps=1"], ["sampler.steps=1", "2 blocks"]),
    (["prompt="], ["prompt is empty", "give it"]),
    (["prompt=" + "w1 " * 250], ["252 tokens", "limit of 256", "Shorten the prompt or lower gen_length"]),
    (["prompt=w1", "prompts=x.jsonl"], ["prompts='x.jsonl'", "exclude each other", "Drop one"]),
    (["prompts=missing.jsonl"], ["prompts='missing.jsonl'", "cannot be read", "Name a JSON-lines file"]),
    (["model.mask_id=99"], ["mask_id=99", "model.mask_id=ID"]),
    (["model.path=nowhere"], ["'nowhere'", "folder", "hub id"]),
    (["model.dtype=float8"], ["float8", "float32"]),
    (["model.device=cuda:9"], ["cuda:9", "device=cpu"]),
    (["sampling.temperature=-1"], ["sampling.temperature=-1", "0 or more. 0 is the argmax"]),
    (["sampling.top_p=0"], ["sampling.top_p=0", "null"]),
    (["stop=['']"], ["stop=['']", "empty string", "Drop it"]),
    (["chat=true", "compare=true"], ["chat=true", "drop"]),
    (["resume=nothing"], ["nothing", "no run folder"]),
    (["task=replay"], ["trace=FILE", "trace=true"]),
    (["sampler/inner=eb"], ["sampler/inner=eb", "wrapper", "credit, freedave, prophet"]),
    (["sampler=prophet", "sampler/inner@sampler.inner.inner=eb"], ["sampler/inner=eb", "wrapper"]),
    (["sampler.inner=static"], ["sampler.inner=static", "unknown"]),
    (["sampler=[static,eb]"], ["one name", "-m sampler="]),
    (["sampler=static,eb"], ["sampler=static,eb", "-m"]),
    (["sampler=5"], ["sampler=5", "static"]),
    (["sampler._target_=nope.Nope"], ["sampler._target_='nope.Nope'", "MODULE.CLASS", "sampler=NAME"]),
    (["sampler._target_=dllm.cache.none.NoCache"], ["is no Sampler", "sampler=NAME"]),
    (["sampler=prophet", "sampler.inner.per_step=a"], ["sampler.inner.per_step='a'", "whole number"]),
    (["sampler.threshold=true"], ["sampler.threshold=True", "number"]),
    (["sampler.threshold=nan"], ["sampler.threshold=nan", "number"]),
    (["sampler=prophet", "sampler.thresholds=5"], ["sampler.thresholds=5", "list of numbers"]),
    (["stop=[[1]]"], ["stop=[[1]]", "list of texts"]),
    (["sampling=null"], ["sampling=null must be set one by one", "sampling.temperature=VALUE"]),
    (["sampling={foo: 1}"], ["sampling={foo: 1}", "temperature"]),
    (["model.mask_id=abc"], ["model.mask_id='abc'", "whole number or null"]),
    (["~sampler"], ["~sampler", "take away", "sampler=VALUE"]),
    (["~batch_size"], ["~batch_size", "batch_size=VALUE"]),
    (["+foo=1"], ["+foo=1", "unknown", "--help"]),
    (["++gen_lenght=8"], ["gen_lenght=8", "'gen_length'"]),
    (["+seed=1"], ["+seed=1", "write seed=1"]),
    (["name=../../x"], ["name='../../x'", "one folder", "output=FOLDER"]),
    (["name=" + "x" * 300], ["200 bytes", "Shorten"]),
    (["task=prompt", "experiment=small"], ["experiment=small", "62 combinations", "add -m"]),
    (["grids=5"], ["grids=5", "list of {NAME: [VALUES]}"]),
    (["-m", "grids=5"], ["grids=5", "list of {NAME: [VALUES]}"]),
    (["-m", "resume=x"], ["resume", "name=NAME"]),
    (["--nope"], ["--nope", "--help"]),
    (["prompt=\udcff"], ["prompt=", "UTF-8"]),
    (["hydra.job.chdir=true"], ["hydra.job.chdir=true", "hydra.run.dir"]),
    (["hydra.run.dir=x", "name=y"], ["hydra.run.dir=x", "name=y", "Drop one"]),
    (["seed=" + "[" * 300], ["cannot be read"]),
    (["task=replay", "trace=x.json", "sampler=static"], ["sampler", "Drop it"]),
]


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(("arguments", "words"), BAD, ids=[" ".join(arguments)[:40] for arguments, _ in BAD])
def test_bad_input_is_one_sentence_before_weights_are_read(
    run: Run, arguments: Sequence[str], words: Sequence[str]
) -> None:
    needs_prompt = not any(argument.startswith(("prompt", "task=")) for argument in arguments)
    outcome = run(*["prompt=w1"] * needs_prompt, *arguments)
    assert outcome.code == 2
    assert outcome.err.startswith("Error: ") and outcome.err.count("\n") == 1 and "Traceback" not in outcome.err
    for word in words:
        assert word in outcome.err
    assert outcome.out == "" and not outcome.folder.exists()


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("group", [group for group in groups() if group != "experiment"])
def test_null_for_a_group_names_its_choices(run: Run, group: str) -> None:
    outcome = run("prompt=w1", f"{group}=null")
    assert outcome.code == 2 and outcome.err.count("\n") == 1
    assert f"{group}=null leaves no {group}; choose one of {', '.join(choices(group))}." in outcome.err


def test_no_experiment_and_a_number_as_a_stop_string_are_nothing_special(run: Run) -> None:
    outcome = run("prompt=w1", "experiment=null", "stop=[1]")
    assert outcome.code == 0 and len(outcome.rows()) == 1


def test_hydra_run_dir_is_the_runs_folder(run: Run, tiny: Path, tmp_path: Path) -> None:
    outcome = run("task=prompt", f"model.path={tiny}", "prompt=w1", "gen_length=4", "hydra.run.dir=else/where")
    assert outcome.code == 0 and (tmp_path / "else" / "where" / "results.jsonl").is_file()
    assert not outcome.folder.exists()


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


@pytest.mark.parametrize("message", ["CUDA out of memory. Tried to allocate 2 GiB", "can't allocate memory: 8 bytes"])
def test_too_little_memory_is_a_sentence(run: Run, monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    def load(*arguments: Any, **options: Any) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr(bundle, "load", load)
    outcome = run("prompt=w1")
    assert outcome.code == 2 and "not enough memory" in outcome.err and "batch_size" in outcome.err


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "config.json").unlink(), ["config.json", "model.path"]),
        (lambda folder: (folder / "config.json").write_text('{"architectures": ["Bert"]}'), ["Bert", "LLaDA"]),
        (lambda folder: (folder / "config.json").write_text("{"), ["config.json", "JSON"]),
    ],
    ids=["no config", "unknown architecture", "broken config"],
)
def test_a_broken_checkpoint_is_one_sentence(
    run: Run, tiny: Path, tmp_path: Path, change: Callable[[Path], Any], words: Sequence[str]
) -> None:
    import shutil

    change(Path(shutil.copytree(tiny, tmp_path / "broken")))
    outcome = run("prompt=w1", model=tmp_path / "broken")
    assert outcome.code == 2 and outcome.err.count("\n") == 1
    assert all(word in outcome.err for word in words)


def test_a_pickle_is_never_opened(run: Run, tiny: Path, tmp_path: Path) -> None:
    import shutil

    folder = Path(shutil.copytree(tiny, tmp_path / "pickled"))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    outcome = run("prompt=w1", model=folder)
    assert outcome.code == 2 and "pytorch_model.bin, a pickle" in outcome.err and "safetensors" in outcome.err
    assert list(outcome.folder.iterdir()) == []


def test_tensors_that_do_not_fit_are_named_and_leave_no_run(run: Run, tiny: Path, tmp_path: Path) -> None:
    import shutil

    folder = Path(shutil.copytree(tiny, tmp_path / "wider"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "n_layers": 5}))
    outcome = run("prompt=w1", model=folder)
    assert outcome.code == 2 and "blocks.4" in outcome.err and "is missing" in outcome.err
    assert list(outcome.folder.iterdir()) == []


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
"""


def test_broken_lines_of_prompts_are_reported_and_skipped(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(PROMPTS)
    outcome = run("prompts=p.jsonl", "batch_size=3", "eos=keep")
    assert outcome.code == 0
    assert [row["id"] for row in sorted(outcome.rows(), key=lambda row: row["seed"])] == ["first", "3", "5", "6"]
    skipped = re.findall(r"line (\d+) is skipped", outcome.err)
    assert skipped == ["2", "7", "8", "9", "10", "11"]
    assert "no JSON" in outcome.err and "id 'first' stands in line 1 already" in outcome.err
    infilled = next(row for row in outcome.rows() if row["id"] == "5")
    assert infilled["canvas"][3] == 9 and len(infilled["canvas"]) == 8 and infilled["useful_tokens"] <= 7


@pytest.mark.usefixtures("no_weights")
def test_a_file_without_a_usable_line_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_bytes(b"\xff\n")
    outcome = run("prompts=p.jsonl")
    assert outcome.code == 2 and "p.jsonl' holds no usable line" in outcome.err


def test_compare_shows_both_ways_and_whether_they_agree(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "w1 w2"}\n{"prompt": "w3"}\n')
    outcome = run("prompts=p.jsonl", "compare=true", "eos=keep", "sampler.threshold=0.2")
    fast, slow = outcome.rows(), outcome.rows("compare.jsonl")
    assert [row["nfe"] for row in slow] == [16, 16] and sum(row["nfe"] for row in fast) < 32
    same = sum(a["tokens"] == b["tokens"] for a, b in zip(fast, slow, strict=True))
    assert f"{same} of 2" in outcome.out and "one token per step" in outcome.out


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
    assert "is no trace" in run("task=replay", "trace=no.json").err


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
    from dllm.app.jobs.store import Store

    write = Store.write

    def interrupted(self: Store, *arguments: Any) -> None:
        write(self, *arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, "write", interrupted)
    (tmp_path / "p.jsonl").write_text('{"prompt": "w1"}\n{"prompt": "w2"}\n')
    outcome = run("prompts=p.jsonl", "name=c")
    assert outcome.code == 130 and "1 of 2 samples are in runs/c. Go on with resume=runs/c" in outcome.err
    monkeypatch.setattr(Store, "write", write)
    assert len(run("resume=runs/c").rows()) == 2


def test_a_conversation_keeps_its_history_without_end_of_text(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("w1 w2\n\nw3\n" + "w4 " * 300 + "\n/new\nw5\n/exit\nw6\n"))
    outcome = run("chat=true")
    assert outcome.code == 0
    first, second, third = outcome.rows()
    assert first["prompt_tokens"] == [62, 1, 2, 63]
    assert second["prompt_tokens"][:4] == [62, 1, 2, 63] and second["prompt_tokens"][-3:] == [62, 3, 63]
    assert 61 not in second["prompt_tokens"] and third["prompt_tokens"] == [62, 5, 63]
    assert outcome.out.splitlines()[:3] == [row["text"] for row in outcome.rows()]
    assert "limit of 256" in outcome.err and "/new" in outcome.err


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
    assert 'line 3 is skipped: model' in outcome.err and '{"tokens": [1, 2]}' in outcome.err
    assert "line 4 is skipped: infill has 1000000000000 masks" in outcome.err
    assert " ".join(map(str, rows[0]["tokens"])) in outcome.out


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


@pytest.mark.parametrize("text", TEXTS)
def test_a_prompt_reaches_the_program_as_it_was_typed(text: str) -> None:
    (argument,) = quoted([f"prompt={text}"])
    assert composed([argument]).prompt == text
    assert composed([f"prompt={quote(text)}"]).prompt == text


def test_only_texts_and_places_are_quoted() -> None:
    plain = ["prompt='a'", "prompt=null", "stop=[a,b]", "resume=runs/x", "sampler=static", "-m", "trace=true", "seed=1"]
    assert quoted(plain) == plain
    assert quoted(["resume=my runs/(1)", "stop=###"]) == ["resume='my runs/(1)'", "stop='###'"]


def readme_commands() -> list[str]:
    """Every command of the README that starts with python run.py."""
    text = (ROOT / "README.md").read_text()
    return re.findall(r"^ *python run\.py(.*)$", text, re.MULTILINE)


def test_the_commands_of_the_readme_name_things_that_exist() -> None:
    commands = readme_commands()
    assert len(commands) >= 5
    for command in commands:
        arguments = quoted([word for word in shlex.split(command, comments=True) if not word.startswith("-")])
        config = composed(arguments)
        assert all(name.split(".")[0] in [*config, *groups()] for name in names(arguments))


def test_runs_of_one_second_get_folders_of_their_own(tmp_path: Path) -> None:
    from dllm.app.jobs.plan import fresh_folder

    assert [fresh_folder(tmp_path / "runs", "now").name for _ in range(3)] == ["now", "now-2", "now-3"]


def test_a_place_that_cannot_be_written_is_one_sentence(run: Run, tmp_path: Path, no_weights: None) -> None:
    (tmp_path / "file").write_text("")
    outcome = run("prompt=w1", "output=file/runs")
    assert outcome.code == 2 and "cannot write to file/runs" in outcome.err and "output=FOLDER" in outcome.err


def test_the_python_example_of_the_readme_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(example.strip().splitlines()) < 10
    if (ROOT / "dllm" / "models" / "checkpoints" / "mini-llada").is_dir():
        exec(compile(example, "README.md", "exec"), {})
