"""Training by rewards: whole short runs, and the curve that rises."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from dllm import Decoder, UserError, load
from dllm.parts import Origin, trajectory_logprobs
from dllm.tasks.mini import tasks
from experiments.distill import student
from experiments.rl import __main__ as rl
from experiments.rl.recipe import Recipe, Where, parse
from experiments.rl.training import Run
from experiments.support.course import learning, log_of
from tests.support.harness import full

SHORT = ["task=replace_random", "count=6", "held_out=2", "groups=2", "samples=4", "save_every=1", "sampler.steps=8"]


def run_of(tmp_path: Path, **changes: Any) -> Run:
    model = load("mini-llada", trainable=True)
    job = rl.Job.of([*SHORT, f"out={tmp_path}", *(f"{name}={value}" for name, value in changes.items())])
    student.choose_learning(model.transformer, job.tuning)
    items = tasks.generate("replace_random", 1, 6, "train")
    return Run(job.decode.decoder(model), items, job.recipe, job.where, 4, 0, Accelerator(cpu=True))


def test_a_stopped_run_goes_on_to_the_same_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bit for bit; and the checkpoint that it leaves is one of the base's config that decodes."""
    folders = {name: tmp_path / name for name in ("straight", "stopped")}
    for name, folder in folders.items():
        for stop in (0,) if name == "straight" else (1, 2, 0):
            assert rl.main([*SHORT, "updates=3", f"stop_at={stop}", f"out={folder}"]) == 0
    weights = [torch.load(folder / "training.pt", weights_only=True)["weights"] for folder in folders.values()]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    logs = [[(line["step"], line["reward"], line["norm"]) for line in log_of(one)] for one in folders.values()]
    assert logs[0] == logs[1] and [line[0] for line in logs[0]] == [1, 2, 3]
    model, base = load(folders["stopped"] / "checkpoint"), load("mini-llada")
    assert model.config == base.config and Decoder(model, gen_length=8)('Copy the list:\n["Kai"]')[0].text
    report = json.loads((folders["stopped"] / "report.json").read_text())
    assert {*report["before"]} == {*report["after"]} == {"drawn", "argmax"} and report["starts"] == 3
    assert "stopped at update 1 of 3" in capsys.readouterr().out
    assert rl.main([*SHORT, "updates=3", "learning_rate=1e-3", f"out={folders['straight']}"]) == 2
    assert "holds a run begun with learning_rate=5e-05, not 0.001" in capsys.readouterr().err


def test_an_update_follows_the_gradient_of_the_weighted_sum(tmp_path: Path) -> None:
    """Against plain autograd of - sum A log p / tokens over the whole batch at once."""
    run = run_of(tmp_path, seed=1)
    rollouts = run.decoder.rollouts([one.messages for one in run.items[:2]], n=4, seed=0, step=0)
    advantages = rollouts.advantages([1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    tokens = run.learn(rollouts, advantages)
    found = {name: weight.grad.clone() for name, weight in run.learning.items() if weight.grad is not None}
    mask = rollouts.completion_mask.bool() & (rollouts.origin == Origin.DRAWN)
    assert tokens == int(mask[:4].sum()), "the second group has one reward"
    run.optimizer.zero_grad()
    logps = trajectory_logprobs(run.decoder.model, rollouts)
    (-(advantages[:, None] * logps * mask).sum() / tokens).backward()
    for name, weight in run.learning.items():
        assert weight.grad is not None and torch.allclose(found[name], weight.grad, atol=1e-6), name
    assert {name.split(".")[0] for name in found} == {"layers", "norm"}


def test_every_epoch_asks_each_prompt_once(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    epochs = []
    for epoch in range(2):
        seen = []
        for run.step in range(3 * epoch, 3 * epoch + 3):
            seen += [run.items.index(one) for one in run.chosen()]
        assert sorted(seen) == list(range(6))
        epochs.append(seen)
    assert epochs[0] != epochs[1]


def test_training_ends_where_rewards_are_high(tmp_path: Path) -> None:
    run = run_of(tmp_path, updates=9)
    for reward in (0.9, 0.9, 0.9, 0.9):
        run.step += 1
        run.note({"reward": reward})
        assert not run.is_over
    run.note({"reward": 0.3})
    assert not run.is_over
    run.note({"reward": 1.0})
    assert not run.is_over  # .8, and it must be passed
    run.note({"reward": 1.0})
    assert run.is_over
    run.step = 9
    assert run.is_over


def test_weights_that_learn_may_be_an_adapter(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    assert rl.main([*SHORT, "updates=1", "tune=lora", "rank=2", f"out={tmp_path}"]) == 0
    model = load("mini-llada", adapter=tmp_path / "adapter")
    assert Decoder(model, gen_length=8)('Copy the list:\n["Kai"]')[0].text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "task= is missing: give one of copy"),
        (["task=replace_randm"], "task='replace_randm' must be one of .*Did you mean 'replace_random'"),
        (["task=sort", "law=new"], "law='new' must be one of own, drawn"),
        (["task=sort", "samples=1"], "samples=1: rewards are compared within a prompt's group"),
        (["task=sort", "sampling.temperature=0"], "sampling.temperature=0 gives a prompt the same answer each time"),
        (["task=sort", "sampler=confidnce"], "confidnce.*confidence"),
        (["task=sort", "groups=9", "count=8"], "count=8 prompts are fewer than groups=9"),
        (["task=sort", "model.dtype=bfloat16", "tune=full"], "tune=full with dtype=bfloat16 would round away steps"),
        (["task=sort", "sort"], "'sort' is not an option; write NAME=VALUE"),
    ],
)
def test_bad_options_are_refused_before_weights_are_read(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        rl.Job.of(arguments)


def test_every_option_has_a_line_of_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert rl.main(["--help"]) == 0
    told = capsys.readouterr().out
    for entry in (*fields(Recipe), *fields(Where)):
        assert re.search(rf"^  {entry.name}=\S+ +\S", told, re.MULTILINE), entry.name
    with pytest.raises(UserError, match="lr=1e-4 is unknown.*Options of the training: python -m experiments.rl --help"):
        parse(["task=copy", "lr=1e-4"])


def test_decoding_takes_what_dllm_takes() -> None:
    recipe, where, plan = parse(["task=sort", "sampler=confidence", "cache=prefix", "seed=7", "threads=2"])
    assert (recipe, where) == (Recipe(task="sort"), Where(threads=2))
    assert (plan.options.samples, plan.options.gen_length, plan.options.seed) == (8, 32, 7)
    assert plan.sampling.temperature == 1.0 and plan.config["cache"]["_target_"].endswith("Prefix")


@pytest.mark.skipif(not full(), reason="three minutes of a core; runs under DLLM_LAWS=all")
def test_rewards_rise(tmp_path: Path) -> None:
    assert rl.main(["task=replace_random", f"out={tmp_path}"]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["updates"] <= 60 and report["before"]["argmax"] < 0.2 and report["after"]["argmax"] >= 0.6
    assert max(line["reward"] for line in log_of(tmp_path)) > 0.8
    assert learning(load(tmp_path / "checkpoint").transformer) == {}
