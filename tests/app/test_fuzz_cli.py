"""Random command lines through the real entry point: a complete result, or one sentence and exit code 2.

45 of them, seeded; ``DLLM_FUZZ=5000`` for more. ``tests.support.fuzz`` makes them.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from hydra._internal.core_plugins.importlib_resources_config_source import ImportlibResourcesConfigSource
from omegaconf import OmegaConf

from dllm.app.command_line import main as cli
from dllm.models import bundle
from dllm.parts import composed
from tests.support.fuzz import command, theirs

CASES = int(os.environ.get("DLLM_FUZZ", "45"))
FILES: dict[str, Any] = {}
FILED = max(10, CASES // 7)  # files of others
GROUPS = 5  # the cases are dealt out to so many tests, which may run in as many processes
# What Python and its libraries say of themselves; nobody who decodes text has to know their words.
LEAKS = re.compile(
    r"Traceback|NoneType|DictConfig|ListConfig|QuotedString|__\w+__|<class|unexpected keyword|positional argument|"
    r"object is not|has no attribute|cannot unpack|unhashable|subscriptable|has no len|invalid literal|not in struct|"
    r"object of type|not supported between|full_key|unsupported operand|expected str|PathLike|Exception|Error\(|"
    r"0x[0-9a-f]{6}"
)


@pytest.fixture
def place(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files to name, and a model that is read once: command lines differ in what they do with it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    (tmp_path / "p.jsonl").write_text('{"prompt": "w1"}\n{"prompt": [1, 2]}\n')
    (tmp_path / "evilmod.py").write_text("open('mark', 'w')\n")
    (tmp_path / "p.pkl").write_bytes(b"cbuiltins\nexec\n(S\"open('mark', 'w')\"\ntR.")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "theirs" / "sampler").mkdir(parents=True)
    (tmp_path / "theirs" / "sampler" / "theirs.yaml").write_text("_target_: dllm.parts.samplers.static.Static\n")
    (tmp_path / "q.jsonl").write_text('{"prompt": "w1", "answer": "w2"}\n')
    monkeypatch.setattr(ImportlibResourcesConfigSource, "load_config", read_once(ImportlibResourcesConfigSource))
    monkeypatch.setattr(bundle, "load", once(bundle.load))
    monkeypatch.setattr(bundle, "describe", once(bundle.describe))
    return tmp_path


def read_once(source: Any) -> Callable[..., Any]:
    """Hydra's reading of our YAML files, each once: a fifth of the time that a command line takes."""
    remembered = lru_cache(None)(source.load_config)
    return lambda self, config_path: deepcopy(remembered(FILES.setdefault(self.path, self), config_path))


def once(read: Callable[..., Any]) -> Callable[..., Any]:
    """``read``, remembering what it read; arguments that cannot be remembered go to itself."""
    remembered = lru_cache(read)

    def call(*given: Any, **named: Any) -> Any:
        try:
            return remembered(*given, **named)
        except TypeError:
            return read(*given, **named)

    return call


def outcome(arguments: list[str], capture: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, output and errors of ``python run.py ARGUMENTS``. Whatever else it raises fails the test."""
    sys.argv = ["run.py", *arguments]
    code = 0
    try:
        cli.main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    return code, *capture.readouterr()


def problems(code: int, out: str, err: str) -> Iterator[str]:
    """Why this is neither a result nor a refusal."""
    if code == 2:
        lines = err.strip().splitlines()
        if len(lines) != 1 or not lines[0].startswith("Error: "):
            yield "the error is no single sentence"
        if found := LEAKS.search(err):
            yield f"the error speaks Python: {found[0]!r}"
    elif code == 0 and not (out + err).strip():
        yield "a success without a word"
    elif code not in (0, 1):
        yield "an exit code for something else"


def unfinished(folder: Path) -> Iterator[str]:
    """Run folders whose results are not whole."""
    for file in folder.rglob("results.jsonl"):
        for line in file.read_text().splitlines():
            if not json.loads(line)["canvas"]:
                yield f"{file} holds an empty answer"


def folders(place: Path) -> set[Path]:
    return {folder for folder in place.rglob("*") if folder.is_dir()}


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_command_line_gives_a_result_or_one_sentence(
    group: int, place: Path, tiny: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    codes = []
    for seed in range(group, CASES, GROUPS):
        arguments = command(Random(seed), str(tiny))
        before = folders(place)
        try:
            code, out, err = outcome(arguments, capfd)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {' '.join(arguments)!r} ended with {error!r}") from error
        assert (found := list(problems(code, out, err))) == [], f"seed {seed}: {arguments}: {found}\n{err}"
        if code == 2 and "-m" not in arguments:
            assert folders(place) <= before, f"seed {seed}: {arguments} was refused and left a folder"
        codes.append(code)
    assert list(unfinished(place)) == []
    assert codes.count(0) > len(codes) / 10 and codes.count(2) > len(codes) / 4, "both kinds must be met"


def experiment(rng: Random) -> dict[str, Any]:
    """What an experiment may hold: a few settings of any group."""
    whole: Any = OmegaConf.to_container(composed(["prompt=w1"]), resolve=False)
    kept = rng.sample(sorted(whole), 4)
    return {**{name: whole[name] for name in kept if name not in ("grids", "experiment")}, "gen_length": 8}


@pytest.mark.parametrize("group", range(GROUPS))
def test_files_of_others_give_a_result_or_one_sentence(
    group: int, place: Path, tiny: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Experiments of --config-dir and run folders: nothing that they name runs."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    words = [f"model.path={tiny}", "output=runs", "name=own", "prompt=w1", "gen_length=8"]
    assert outcome(words, capfd)[0] == 0
    own, codes = yaml.safe_load((place / "runs" / "own" / "config.yaml").read_text()), []
    (place / "theirs" / "experiment").mkdir()
    for seed in range(group, FILED, GROUPS):
        rng = Random(seed)
        if seed % 2:
            folder = place / f"copy{seed}"
            shutil.copytree(place / "runs" / "own", folder)
            text = theirs(rng, own)
            (folder / "config.yaml").write_text(text, encoding="utf-8")
            arguments = [f"resume={folder.name}"]
        else:
            text = theirs(rng, experiment(rng), "# @package _global_\n")
            (place / "theirs" / "experiment" / "x.yaml").write_text(text, encoding="utf-8")
            arguments = ["--config-dir=theirs", "experiment=x", f"model.path={tiny}", "output=runs"]
            arguments += ["prompt=w1"] * (seed % 4 == 0)
        began = time.process_time()
        try:
            code, out, err = outcome(arguments, capfd)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {text!r} ended with {error!r}") from error
        assert (found := list(problems(code, out, err))) == [], f"seed {seed}: {text}: {found}\n{err}"
        assert not (place / "mark").exists(), f"seed {seed}: {text} ran code"
        assert time.process_time() - began < 20, f"seed {seed}: {text}"
        codes.append(code)
    assert 0 in codes or FILED < 50
