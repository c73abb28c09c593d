"""How the command line says no: one sentence, exit code 2, before weights are read."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from dllm.models import bundle, shipped
from dllm.parts import SettingWarning, choices, config_groups, warn_once
from tests.app.command_line.conftest import Run

MODELS = Path(__file__).parents[2] / "data" / "models"
BAD: list[tuple[Sequence[str], Sequence[str]]] = [
    (["samplr=static"], ["samplr=static", "unknown", "'sampler'"]),
    (["sampler=statik"], ["sampler='statik'", "choose one of", "'static'"]),
    (["sampler.treshold=0.8"], ["sampler.treshold=0.8", "threshold", "Did you mean 'sampler.threshold'"]),
    (["gen_lenght=8"], ["gen_lenght=8", "'gen_length'", "--help"]),
    (["modell.path=x"], ["modell.path=x", "unknown"]),
    (["+task._target_=tests.app.questions.Questions"], ["+task._target_=", "unknown", "task has name"]),
    (["+model._target_=nowhere.Mine"], ["+model._target_=nowhere.Mine", "unknown"]),
    (["+a.b._target_=nowhere.Mine"], ["+a.b._target_=nowhere.Mine", "unknown"]),
    (["task.run=dllm.app.commands.prompt.run", "+task._target_=nowhere.Mine"], ["'nowhere.Mine'", "no module nowhere"]),
    (["static"], ["'static'", "write sampler=static"]),
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
    (["sampler=rcr", "sampler.steps=3", "blocks=growing"], ["sampler.steps=3", "the 2 blocks of gen_length=16"]),
    (["sampler=klass", "cache=dual"], ["'suffix'", "sampler.since=block", "works is cache=prefix"]),
    (["blocks=ahead", "sampler=lopa"], ["blocks=ahead", "sampler=lopa", "blocks=fixed"]),
    (["blocks=ahead", "cache=sliding"], ["cache=sliding", "blocks=ahead", "blocks=sliding"]),
    (["blocks=ahead", "blocks.opening_share=1.5"], ["blocks.opening_share=1.5", "[0, 1]"]),
    (["cache=sparse_dllm", "cache.keep_ratio=1.5"], ["cache.keep_ratio=1.5", "[0, 1]"]),
    (["cache=sparsed", "cache.select=1"], ["cache.select=1", "from 0 to below 1"]),
    (["cache=sparsed", f"model.path={MODELS / 'sdar_b4'}"], ["cache=sparsed", "models with full attention"]),
    (["cache=sparse_dllm", f"model.path={MODELS / 'sdar_b4'}"], ["cache=sparse_dllm", "models with full attention"]),
    (["prompt="], ["prompt is empty", "give it"]),
    (["prompt=" + "w1 " * 250], ["252 tokens", "limit of 256", "Shorten the prompt or lower gen_length"]),
    (["prompt=w1", "prompts=x.jsonl"], ["prompts='x.jsonl'", "exclude each other", "Drop one"]),
    (["prompts=missing.jsonl"], ["prompts='missing.jsonl'", "cannot be read", "Name a JSON-lines file"]),
    (["model.mask_id=99"], ["mask_id=99", "model.mask_id=ID"]),
    (["model.path=nowhere"], ["'nowhere'", "folder", "hub id"]),
    (["model.dtype=float8"], ["float8", "float32"]),
    (["model.device=cuda:9"], ["cuda:9", "device=cpu"]),
    (["sampling.temperature=-1"], ["sampling.temperature=-1", "at least 0. 0 is the argmax"]),
    (["sampling.top_p=0"], ["sampling.top_p=0", "null"]),
    (["stop=['']"], ["stop=['']", "empty string", "Drop it"]),
    (["chat=true", "compare=true"], ["chat=true", "drop"]),
    (["resume=nothing"], ["nothing", "not a run folder"]),
    (["task=replay"], ["trace=FILE", "trace=true"]),
    (["sampler/inner=eb"], ["sampler/inner=eb", "wrapper", "adas, credit, freedave, frontier, prior, prophet"]),
    (["sampler=prophet", "sampler/inner@sampler.inner.inner=eb"], ["sampler/inner=eb", "wrapper"]),
    (["engine=ray"], ["engine=ray", "task=prompt", "one process", "Drop it"]),
    (["chat=true", "engine=accelerate"], ["engine=accelerate", "task=prompt", "Drop it"]),
    (["task=check", "engine=ray"], ["engine=ray", "task=check", "Drop it"]),
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
BROUGHT: list[tuple[Sequence[str], str]] = [
    (["steps=16"], "steps=16 is not a setting here: write sampler=static sampler.steps=16."),
    (["sampler=order", "steps=16"], "steps=16 is not a setting here: write sampler.steps=16."),
    (["+top_p=0.9"], "top_p=0.9 is not a setting here: write sampling.top_p=0.9."),
    (["--port", "8001"], "--port 8001 is not a flag here: write task=serve task.port=8001."),
    (["--sampler", "eb"], "--sampler eb is not a flag here: write sampler=eb."),
    (["--max-new-tokens=8"], "--max-new-tokens=8 is not a flag here: write gen_length=8."),
    (["-n", "3"], "-n 3 is not a flag here: write samples=3."),
    (["--trace"], "--trace is not a flag here: write trace=true."),
    (["--seed"], "write seed=VALUE."),
    (["--cfg", "1.5"], "argument --cfg/-c: invalid choice: '1.5'"),
    (["-p", "Sort it"], "--package is not offered. Settings are NAME=VALUE"),
    (["--hepl"], "Did you mean '--help'? Settings are NAME=VALUE"),
    (["Sort the list: b, a"], "is not a setting: a prompt is written prompt='Sort the list: b, a'."),
    (["What is x=3?\nNow"], "a prompt is written prompt=$'What is x=3?\\nNow'."),
    (["mini-dream"], "'mini-dream' is not a setting: write model=mini-dream."),
    (["prefix"], "write cache=prefix."),
    (["gen_length"], "write gen_length=VALUE."),
    (["bananas"], "such as sampler=static or prompt=TEXT"),
    (["model=made/my"], "model='made/my' is no model here: write model.path=made/my."),
    (["model=made/LLaDA-8B-Instruct"], "write model=llada-8b-instruct model.path=made/LLaDA-8B-Instruct."),
    (["model=GSAI-ML/LLaDA-8B-Instruct"], "write model=llada-8b-instruct."),
    (["model=Mini-LLaDA"], "write model=mini-llada."),
    (["sampler=Local-Leap"], "Did you mean 'localleap'?"),
    (["sampler=EB"], "write sampler=eb."),
    (["sampler=low_confidence"], "write sampler=static."),
    (["model=bananas"], "choose one of"),
    (["grids=[{sampler: rising, sampler.low: 0.4]"], "a } is missing before its ] at character 36"),
    (["sampler=[eb"], "a ] is missing at its end, for the [ that begins '[eb'"),
    (["seed=1]"], "the ] at its character 2 closes nothing"),
    (["seed=['a]"], 'the quote that begins "\'a]"'),
]


@pytest.mark.daily(20)
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


@pytest.mark.daily(10)
@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(("arguments", "said"), BROUGHT, ids=[" ".join(arguments)[:40] for arguments, _ in BROUGHT])
def test_what_people_bring_is_answered_with_what_to_write(run: Run, arguments: Sequence[str], said: str) -> None:
    outcome = run("task=prompt", *arguments)
    assert outcome.code == 2 and outcome.err.startswith("Error: ") and outcome.err.count("\n") == 1
    assert said in outcome.err and not outcome.folder.exists()


@pytest.mark.daily(5)
@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(("words", "said"), [
    (["sampler=joint_threshold"], "Warning: sampler.edit_threshold=0.5: models of the family llada were"),
    (["sampler=joint_threshold", "sampler.edit_threshold=null"], ""),
    (["sampler=prophet"], "Warning: sampler.region=all_masked: the ends of text after a short answer"),
    (["sampler=prophet", "sampler.region=none"], ""),
    (["sampler=remdm"], "Warning: sampler.per_step=4: this many tokens are committed however unsure"),
    (["sampler=remdm", "sampler.per_step=2", "sampler.number=1"], ""),
    (["sampler=pc"], "Warning: sampler.decay=0.25: positions further right wait"),
    (["sampler=pc", "sampler.decay=0"], ""),
    (["cache=dllm_cache"], "Warning: cache.response_interval=7: rows of the answer that a forward does not compute"),
    (["cache=dllm_cache", "cache.response_interval=1"], ""),
])  # fmt: skip
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
@pytest.mark.parametrize(("model", "arguments", "words"), [
    ("tiny-wedlm", ["cache=prefix"], ["cache=prefix is for models with full attention", "cache=finished"]),
    ("tiny-nbdiff", ["cache=dkv"], ["cache=dkv is for models with full attention", "cache=finished"]),
    ("tiny-llada", ["cache=finished"], ["with block-causal or causal attention; this one is full", "cache=dual"]),
    ("tiny-wedlm", ["sampling.guidance=1.5"], ["sampling.guidance=1.5", "known tokens before masks", "guidance=0"]),
    ("tiny-nbdiff", ["sampling.guidance=2"], ["sampling.guidance=2", "the block that is decoded", "guidance=0"]),
], ids=str)  # fmt: skip
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
    assert "models for cache=finished: model=mini-nbdiff, model=mini-wedlm." in outcome.err
    plain = run("prompt=w1", "cache=prefix", model=tmp_path / "shipped" / "mini-wedlm")
    assert plain.code == 2 and "models for" not in plain.err


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
