"""How the command line says no: one sentence, exit code 2, before weights are read."""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from dllm.models import bundle
from dllm.models.weights import shipped
from dllm.parts import SettingWarning, choices, config_groups, warn_once
from tests.app.command_line.conftest import Run

MODELS = Path(__file__).parents[2] / "data" / "models"
FILE = Path(__file__).parents[2] / "data" / "command_lines.json"
ROWS: list[dict[str, Any]] = json.loads(FILE.read_text())
# A list of choices, which a new part makes longer; what argparse says of choices, otherwise in each Python.
LIST, CHOICES = re.compile(r"(?:\S+, ){6,}\S+(?: (?:and|or) \S+)?"), re.compile(r" \(choose from [^)]*\)")


@pytest.mark.daily(40)
@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("number", range(len(ROWS)), ids=lambda number: " ".join(ROWS[number]["given"])[:60])
def test_a_line_is_refused_as_recorded_in_one_sentence_before_weights_are_read(run: Run, number: int) -> None:
    """Written anew by ``DLLM_WRITE=1 DLLM_LAWS=all pytest -k as_recorded`` on this file."""
    outcome = run(*(one.replace("MODELS", str(MODELS)) for one in ROWS[number]["given"]))
    assert outcome.code == 2 and outcome.out == "" and not outcome.folder.exists()
    assert outcome.err.startswith("Error: ") and outcome.err.count("\n") == 1 and "Traceback" not in outcome.err
    says = LIST.sub("...", CHOICES.sub("", outcome.err.removeprefix("Error: ").rstrip("\n")))
    says = says.replace(str(MODELS), "MODELS")
    if os.environ.get("DLLM_WRITE"):
        ROWS[number]["says"] = says
        FILE.write_text("[\n" + ",\n".join(map(json.dumps, ROWS)) + "\n]\n")
    assert says == ROWS[number]["says"]


@pytest.mark.daily(5)
@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sampler=joint_threshold"], "Warning: sampler.edit_threshold=0.5: models of the family llada were"),
        (["sampler=joint_threshold", "sampler.edit_threshold=null"], ""),
        (["sampler=prophet"], "Warning: sampler.region=all_masked: the ends of text after a short answer"),
        (["sampler=prophet", "sampler.region=none"], ""),
        (["sampler=remdm"], "Warning: sampler.per_step=4: this many tokens are committed however unsure"),
        (["sampler=remdm", "sampler.per_step=2", "sampler.number=1"], ""),
        (["sampler=pc"], "Warning: sampler.decay=0.25: positions further right wait"),
        (["sampler=pc", "sampler.decay=0"], ""),
        (
            ["cache=dllm_cache"],
            "Warning: cache.response_interval=7: rows of the answer that a forward does not compute",
        ),
        (["cache=dllm_cache", "cache.response_interval=1"], ""),
    ],
)
def test_what_may_do_harm_is_a_warning_before_weights_are_read(
    run: Run, capfd: pytest.CaptureFixture[str], words: Sequence[str], said: str
) -> None:
    with warnings.catch_warnings(), pytest.raises(AssertionError, match="weights were read"):
        warnings.simplefilter("always", SettingWarning)
        warn_once.cache_clear()
        run("prompt=w1", *words)
    err = capfd.readouterr().err
    assert err.startswith(said) and err.count("\n") == bool(said)


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("group", [group for group in config_groups() if group != "experiment"])
def test_null_for_a_group_names_its_choices(run: Run, group: str) -> None:
    outcome = run("prompt=w1", f"{group}=null")
    assert outcome.code == 2 and outcome.err.count("\n") == 1
    assert f"{group}=null leaves no {group}; choose one of {', '.join(choices(group))}." in outcome.err


@pytest.mark.parametrize("message", ["CUDA out of memory. Tried to allocate 2 GiB", "can't allocate memory: 8 bytes"])
def test_too_little_memory_is_a_sentence(run: Run, monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    def load(*arguments: Any, **options: Any) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr(bundle, "load", load)
    outcome = run("prompt=w1")
    assert outcome.code == 2 and "not enough memory" in outcome.err and "gen_length=8 or" in outcome.err
    assert "batch_size" not in outcome.err  # which is 1 already


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
    change(Path(shutil.copytree(tiny, tmp_path / "broken")))
    outcome = run("prompt=w1", model=tmp_path / "broken")
    assert outcome.code == 2 and outcome.err.count("\n") == 1
    assert all(word in outcome.err for word in words)


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("model", "arguments", "words"),
    [
        ("tiny-wedlm", ["cache=prefix"], ["cache=prefix is for models with full attention", "cache=finished"]),
        ("tiny-nbdiff", ["cache=dkv"], ["cache=dkv is for models with full attention", "cache=finished"]),
        ("tiny-llada", ["cache=finished"], ["with block-causal or causal attention; this one is full", "cache=dual"]),
        ("tiny-wedlm", ["sampling.guidance=1.5"], ["sampling.guidance=1.5", "known tokens before masks", "guidance=0"]),
        ("tiny-nbdiff", ["sampling.guidance=2"], ["sampling.guidance=2", "the block that is decoded", "guidance=0"]),
    ],
    ids=str,
)
def test_a_cache_of_another_kind_of_attention_is_one_sentence(
    run: Run, tiny: Path, tmp_path: Path, model: str, arguments: Sequence[str], words: Sequence[str]
) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "model"))
    shutil.copy(MODELS / model / "config.json", folder)
    outcome = run("prompt=w1", *arguments, model=folder)
    assert outcome.code == 2 and outcome.err.count("\n") == 1 and not outcome.folder.exists()
    assert all(word in outcome.err for word in words), outcome.err


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("experiment", ["wedlm", "nbdiff", "nbdiff_threshold", "ar blocks=fixed"])
def test_a_preset_of_another_kind_names_the_models_to_choose(
    run: Run, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experiment: str
) -> None:
    for name, source in (("mini-wedlm", "tiny-wedlm"), ("mini-nbdiff", "tiny-nbdiff"), ("mini-llada", "tiny-llada")):
        (tmp_path / "shipped" / name).mkdir(parents=True)
        shutil.copy(MODELS / source / "config.json", tmp_path / "shipped" / name)
    monkeypatch.setattr(shipped, "CHECKPOINTS", tmp_path / "shipped")
    outcome = run("prompt=w1", *f"experiment={experiment}".split(), model=tiny)
    assert outcome.code == 2 and outcome.err.count("\n") == 1
    assert "model=mini-nbdiff or model=mini-wedlm." in outcome.err
    plain = run("prompt=w1", "cache=prefix", model=tmp_path / "shipped" / "mini-wedlm")
    assert plain.code == 2 and "model=mini" not in plain.err


def test_a_pickle_is_never_opened(run: Run, tiny: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "pickled"))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    outcome = run("prompt=w1", model=folder)
    assert outcome.code == 2 and "pytorch_model.bin, a pickle" in outcome.err and "safetensors" in outcome.err
    assert not outcome.folder.exists()


def test_tensors_that_do_not_fit_are_named_and_leave_no_run(run: Run, tiny: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "wider"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "n_layers": 5}))
    outcome = run("prompt=w1", model=folder)
    assert outcome.code == 2 and "blocks.4" in outcome.err and "is missing" in outcome.err
    assert not outcome.folder.exists()


def test_a_place_that_cannot_be_written_is_one_sentence(run: Run, tmp_path: Path, no_weights: None) -> None:
    (tmp_path / "file").write_text("")
    outcome = run("prompt=w1", "output=file/runs")
    assert outcome.code == 2 and "cannot write to file/runs" in outcome.err and "output=FOLDER" in outcome.err
