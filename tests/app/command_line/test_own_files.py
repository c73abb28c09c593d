"""Files of somebody else, experiments of --config-dir and run folders: nothing runs, and refusals are a sentence."""

from __future__ import annotations

import json
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from dllm.parts import Codes, named_settings, read_cells, strange_interpolation
from tests.app.command_line.conftest import Run
from tests.common.test_plain_yaml import bomb
from tests.report.report_cells import config_of, row, stored

HEAD = "# @package _global_\n"


class Marks:
    """Its pickle makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that appears where ``evilmod`` is imported or ``p.pkl`` is unpickled."""
    found = tmp_path / "mark"
    (tmp_path / "evilmod.py").write_text(f"from pathlib import Path\nPath({str(found)!r}).touch()\nclass Mine: pass\n")
    (tmp_path / "evil.yaml").write_text("task: evil\ndoc_to_text: !function evilmod.Mine\n")
    (tmp_path / "p.pkl").write_bytes(pickle.dumps(Marks(found)))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "evilmod", raising=False)
    return found


PICKLE = "{_target_: pandas.read_pickle, filepath_or_buffer: p.pkl}"
EXPERIMENTS = {
    "target": (f"{HEAD}sampler: {{_target_: evilmod.Mine}}", "names sampler._target_='evilmod.Mine'"),
    "family": (f"{HEAD}model: {{family: evilmod.FAMILY}}", "names model.family='evilmod.FAMILY'"),
    "inner": (f"{HEAD}sampler: {{inner: {{_target_: evilmod.Mine}}}}", "names sampler._target_="),
    "run": (f"{HEAD}task: {{run: hydra.utils.instantiate, x: {PICKLE}}}", "names task._target_="),
    "command": (f"{HEAD}task: {{run: timeit.main}}", "task.run='timeit.main' is no command"),
    "callback": (f"{HEAD}hydra: {{callbacks: {{x: {PICKLE}}}}}", "sets hydra, which may start programs"),
    "package": (f"# @package hydra.callbacks.x\n{PICKLE}", "would change Hydra's own settings"),
    "place": (f"{HEAD}defaults: ['/sampler/eb@hydra.job.env_set']", "which may start programs"),
    "override": (f"{HEAD}defaults: [{{override /hydra/launcher: joblib}}]", "which may start programs"),
    "secret": (f"{HEAD}prompt: '${{oc.env:HOME}}'", "holds ${oc.env:HOME} in prompt"),
    "built": (f"{HEAD}sampler: \"${{oc.create:'{{_target_: evilmod.Mine}}'}}\"", "holds ${oc.create:"),
    "nested": (f"{HEAD}prompt: '${{${{name}}:HOME}}'", "holds ${${name}"),
    "consent": (f"{HEAD}allow_code: true", "allow_code=True, which is for you to say"),
    "cluster": (f"{HEAD}engine: {{address: 'ray://1.2.3.4:5'}}", "which is for you to say"),
    "itself": (f"{HEAD}prompt: '${{prompt}}'", "prompt refers to itself"),
    "circle": (f"{HEAD}prompt: '${{name}}'\nname: '${{prompt}}'", "refers to itself"),
    "key": (f"{HEAD}smapler: eb", "Did you mean 'sampler'?"),
    "head": ("gen_length: 4", "# @package _global_"),
    "heads": ("# @package a b\ngen_length: 4", "begins with a broken header"),
    "bracket": (f"{HEAD}prompt: [a, b", "line 2 is no YAML"),
    "bomb": (HEAD + bomb(4), "entries by aliases"),
    "list": ("- 1", "must hold NAME: VALUE"),
    "number": (f"{HEAD}task: 5", "task"),
    "none": (f"{HEAD}model:", "model"),
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_of_others_runs_nothing(name: str, run: Run, mark: Path, tmp_path: Path) -> None:
    text, said = EXPERIMENTS[name]
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "x.yaml").write_text(text)
    began = time.process_time()
    found = run("--config-dir", "conf", "experiment=x", *["prompt=w1"] * ("prompt" not in text))
    assert (found.code, found.err.count("\n")) == (2, 1), found.err
    assert said in found.err and not mark.exists()
    assert time.process_time() - began < 5


def test_an_experiment_of_ones_own_still_does_what_a_command_line_may(run: Run, mark: Path, tmp_path: Path) -> None:
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    file = tmp_path / "conf" / "experiment" / "x.yaml"
    file.write_text(
        f"{HEAD}defaults: [{{override /sampler: static}}]\nsampler: {{per_step: 2}}\nprompt: '${{name}} \\${{x:y}}'\n"
        "name: w1\ngen_length: 8\noutput: runs\n"
    )
    found = run("--config-dir", "conf", "experiment=x", "model=mini-llada")
    assert found.code == 0, found.err
    stored_settings = yaml.safe_load((tmp_path / "runs" / "w1" / "config.yaml").read_text())
    assert (stored_settings["sampler"]["per_step"], stored_settings["prompt"]) == (2, "w1 ${x:y}")
    file.write_text(f"{HEAD}sampler: {{_target_: evilmod.Mine}}")
    named = run("--config-dir", "conf", "experiment=x", "task.packages=[evilmod]", "prompt=w1")
    assert mark.exists() and "is no Sampler" in named.err


CHANGES: dict[str, Any] = {
    "run": {"task": {"run": "hydra.utils.instantiate", "x": {"_target_": "pandas.read_pickle"}}},
    "sampler": {"sampler": {"_target_": "evilmod.Mine"}},
    "list": {"sampler": {"inner": [{"_target_": "evilmod.Mine"}]}},
    "engine": {"engine": {"_target_": "evilmod.Mine"}}, "command": {"task": {"run": "evilmod.Mine"}},
    "cluster": {"engine": {"address": "ray://1.2.3.4:5"}}, "task": {"task": [1]}, "model": {"model": None},
    "key": {"gen_length": {"a": 1}}, "choices": {"choices": 5},
    "kind": {"seed": "x"}, "sampling": {"sampling": {"a": 1}},
    "harness": {"task": {"name": "lm_eval", "run": "dllm.app.commands.evaluate.run", "harness": "{tmp}/evil",
                         "_target_": "dllm.tasks.standard.harness.Harness"}},
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_run_folder_of_others_runs_nothing(name: str, run: Run, mark: Path, tmp_path: Path) -> None:
    folder = run("prompt=w1", "name=own").run
    file = folder / "config.yaml"
    changed = json.loads(json.dumps(CHANGES[name]).replace("{tmp}", str(tmp_path)))
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **changed}))
    found = run(f"resume={folder}")
    assert (found.code, found.err.count("\n")) == (2, 1), found.err
    assert not mark.exists()


def test_names_that_a_run_folder_says_are_only_shown(run: Run) -> None:
    folder = run("prompt=w1", "name=own").run
    file = folder / "config.yaml"
    odd = {"eos": "${oc.env:HOME}", "cache": "../../x", "../x": "y", "sampler": ["a"], "blocks": None}
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "choices": odd}))
    found = run(f"resume={folder}")
    assert found.code == 0, found.err


@pytest.mark.parametrize(
    "text",
    ["[1]", "a: [", "5", "", bomb(6), "!!python/object/apply:os.system [x]"],
    ids=["list", "cut", "number", "empty", "bomb", "tag"],
)
def test_a_broken_run_folder_is_a_sentence(text: str, run: Run) -> None:
    folder = run("prompt=w1", "name=own").run
    (folder / "config.yaml").write_text(text)
    found = run(f"resume={folder}")
    assert (found.code, found.err.count("\n")) == (2, 1), found.err


def test_a_report_imports_nothing(mark: Path, tmp_path: Path) -> None:
    config = {**config_of(), "sampler": {"_target_": "evilmod.Mine", "x": 1, "inner": {"_target_": "evilmod.Mine"}}}
    stored(tmp_path / "runs" / "a", config, [row("copy", 0, 1.0, 4)], content={"sampler's code": "0"})
    cells, _ = read_cells(tmp_path / "runs")
    assert named_settings(cells)
    assert [*Codes(cells).notes()] == []
    assert not mark.exists()


@pytest.mark.parametrize(("text", "wrong"), [
    ("${gen_length}", None), ("${blocks.block_length} ${..a}", None), (r"\${oc.env:HOME}", None), ("$HOME {a:b}", None),
    ("${oc.env:HOME}", "${oc.env:HOME}"), (r"\\${oc.env:A}", "${oc.env:A}"), ("${ oc.env:A}", "${ oc.env:A}"),
    ("${${a}:b}", "${${a}:b}"), ("${", "${"), (5, None),
], ids=str)  # fmt: skip
def test_a_file_may_refer_to_settings_alone(text: Any, wrong: str | None) -> None:
    assert strange_interpolation(text) == wrong
