"""Sweeps: a cell for each combination, those that cannot work noted, nothing done twice, nothing lost."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.core.override_parser.types import Glob

from dllm import UserError
from dllm.app.command_line import sweep
from dllm.models import bundle
from dllm.parts import (
    Parts,
    Sampling,
    Transformer,
    choice_text,
    choices,
    command,
    composed,
    expanded,
    grids_of,
    parsed_override,
    pooled_settings,
    read_cells,
)
from dllm.parts import combinations as combinations
from tests.app.conftest import Run, cells_of

SWEEP = Path("runs/s")
SMALL = ["-m", "name=s", "+task.count=4"]


def test_a_sweep_has_a_cell_for_each_combination(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    loads, load = [], bundle.load
    monkeypatch.setattr(bundle, "load", lambda **named: loads.append(named) or load(**named))
    outcome = run(*SMALL, "sampler=confidence,localleap", "cache=none,dual")
    assert outcome.code == 0 and outcome.out.count("4 samples") == 4
    assert len(cells_of(SWEEP)) == 4 and all(len(rows) == 4 for rows in cells_of(SWEEP).values())
    *lines, where, report = outcome.out.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"cell {n} of 4" for n in (1, 2, 3, 4)]
    assert where == "Sweep folder: runs/s" and report == f"Tables and pictures: {command('report runs/s')}"
    assert len(loads) <= 1  # the weights are read once (or an earlier test of this process has read them)
    more = run(*SMALL, "sampler=confidence,credit")
    assert more.code == 0 and len(cells_of(SWEEP)) == 5
    assert [line.endswith(", done before") for line in more.out.splitlines()[:2]] == [True, False]


@pytest.mark.program
def test_what_the_declarations_refuse_is_noted_and_the_rest_goes_on(run: Run) -> None:
    outcome = run(*SMALL, "sampler=static", "sampler.steps=3,null")
    assert outcome.code == 0 and "refused: sampler.steps=3" in outcome.out
    (note,) = SWEEP.glob("*/refused.json")
    assert "sampler.steps=3" in json.loads(note.read_text())["sentence"] and len(cells_of(SWEEP)) == 1
    again = run(*SMALL, "sampler=static", "sampler.steps=3,null")
    assert again.code == 0 and len(list(SWEEP.iterdir())) == 3  # note, cell, Hydra's record


def test_seeds_that_change_nothing_are_said_once_and_their_spread_is_a_dash(run: Run) -> None:
    """At temperature 0 a rule that draws nothing decodes the same under every seed; a random order does not."""
    outcome = run(*SMALL, "sampler=confidence,order", "seed=0,1,2")
    assert outcome.err.count("seeds change nothing") == outcome.err.count("sampler=confidence draws nothing") == 1
    (one,) = (
        one
        for one in pooled_settings(read_cells(SWEEP)[0])
        if "confidence" in one.config["sampler"]["_target_"].lower()
    )
    assert one.seeds == [0, 1, 2] and one.spread == 0 and one.seeds_change_nothing
    assert "seeds change nothing" not in run(*SMALL, "sampler=confidence", "seed=0,1", "sampling.temperature=1.0").err
    assert "seeds change nothing" not in run(*SMALL, "sampler=confidence", "seed=3").err


def test_what_is_wrong_in_all_cells_is_refused_once_and_one_reason_is_written_once(run: Run) -> None:
    grid = ("-m", "name=t", "task=parallelbench", "task.tasks=[copi]", "sampler=confidence,eb", "cache=none,dual")
    outcome = run(*grid, bare=True)
    assert (outcome.code, outcome.out, outcome.err.count("copi"), outcome.err.count("\n")) == (2, "", 1, 1)
    outcome = run(*SMALL, "sampler=static", "sampler.steps=3", "seed=0,1,2")
    assert outcome.out.count("refused: sampler.steps=3") == 1 and outcome.out.count("refused, as cell 1 of 3") == 2


@pytest.mark.program
def test_a_sweep_of_nothing_but_refusals_fails(run: Run) -> None:
    outcome = run(*SMALL, "sampler=static", "sampler.steps=3,5")
    assert outcome.code == 2 and outcome.out.count("refused: ") == 2
    assert outcome.err.startswith("Error: ") and outcome.err.count("\n") == 1
    assert "2 combinations" in outcome.err and "runs/s/*/refused.json" in outcome.err
    run(*SMALL, "sampler=static")  # a cell of an earlier command does not make up for it
    assert run(*SMALL, "sampler=static", "sampler.steps=3,5").code == 2


@pytest.mark.program
def test_a_cell_that_does_not_fit_into_memory_loses_nothing_of_the_others(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named with what fits, exit code 3, and the same command with room finishes it."""
    forward = Transformer.forward

    def limited(self: Transformer, tokens: torch.Tensor, *given: object, **named: object) -> object:
        if len(tokens) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(self, tokens, *given, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Transformer, "forward", limited)
        outcome = run(*SMALL, "batch_size=4,1")
    assert outcome.code == 3 and "Use batch_size=1" in outcome.err and "Failed: " in outcome.err
    assert sorted(len(rows) for rows in cells_of(SWEEP).values())[-1] == 4
    assert run(*SMALL, "batch_size=4,1").code == 0
    assert [len(rows) for rows in cells_of(SWEEP).values()] == [4, 4]


def test_cells_of_other_processes_are_judged_by_what_they_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with hydra/launcher=joblib, whose processes take the cells."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep.STATE, "evaluated", [])
    with pytest.raises(UserError, match="nothing was decoded: all of the 3 combinations were refused"):
        sweep.refuse_empty_sweep(3, SWEEP)
    (SWEEP / "cell").mkdir(parents=True)
    (SWEEP / "cell" / "results.jsonl").touch()
    sweep.refuse_empty_sweep(3, SWEEP)


def test_a_value_that_the_user_sets_takes_the_place_of_the_grids() -> None:
    grid = ["sampler=static,order", "sampler.per_step=1,2,4", "sampler=static"]  # the grid's values, then the user's
    assert combinations(grid) == 3


@pytest.mark.program
def test_several_grids_make_one_sweep(run: Run) -> None:
    grids = "grids=[{sampler:static,sampler.score:[low_confidence,margin]},{sampler:[confidence,eb]}]"
    first = run(*SMALL, grids)
    assert len(cells_of(SWEEP)) == 4 and "cell 4 of 4" in first.out
    run(*SMALL, grids, "sampler.score=margin", "sampler=static")  # what the user sets rules over the grids
    assert len(cells_of(SWEEP)) == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sampler=static,statik"], ["sampler='statik'", "Did you mean 'static'"]),
        (["sampler=static,order", "sampler.stesp=4"], ["sampler.stesp=4", "Did you mean 'sampler.steps'"]),
        (["sampler=confidence,static", "sampler.steps=3"], ["sampler.steps=3", "to sampler=confidence", "grids"]),
        (["experiment=smal"], ["experiment='smal'", "'small'"]),
        (["grids=[3]"], ["grids must be a list"]),
    ],
    ids=lambda value: value[0],
)
def test_mistakes_in_a_sweep_are_sentences(run: Run, arguments: list[str], words: list[str]) -> None:
    outcome = run(*SMALL, *arguments)
    assert outcome.code == 2 and outcome.err.startswith("Error: ") and outcome.err.count("\n") == 1
    assert all(word in outcome.err for word in words)


def test_a_sweep_needs_a_task_with_questions(run: Run) -> None:
    outcome = run("-m", "sampler=static,order", bare=True)
    assert outcome.code == 2 and "task=prompt holds no questions to score. Choose one of" in outcome.err


def test_a_place_that_cannot_be_written_is_a_sentence(run: Run) -> None:
    Path("file").write_text("")
    outcome = run(*SMALL, "output=file")
    assert outcome.code == 2 and "cannot write to file/s" in outcome.err and outcome.err.count("\n") == 1


@pytest.mark.program
def test_sweeps_and_single_runs_do_not_share_a_folder(run: Run) -> None:
    run(*SMALL, "sampler=confidence")
    assert "is the folder of a sweep" in run("name=s", "+task.count=4").err
    run("name=one", "+task.count=2")
    refused = run("-m", "name=one", "+task.count=2")
    assert refused.code == 2 and "is the folder of a single run" in refused.err
    assert "is a sweep" in run("resume=runs/s", bare=True).err


@pytest.mark.program
@pytest.mark.parametrize("named", [["name=s"], [], ["hydra.sweep.dir=there/in/s"]], ids=["named", "unnamed", "placed"])
def test_a_refused_sweep_leaves_no_folder(run: Run, named: list[str]) -> None:
    Path("mine").mkdir()
    refused = (["sampler=static,order"], ["sampler=static", "seed=-1,0"], ["sampler=static", "task=gsm9k"])
    for arguments in refused if named == ["name=s"] else refused[1:2]:
        assert run("-m", *named, *arguments, bare=True).code == 2
        assert [file.name for file in Path().iterdir()] == ["mine"]
    Path("runs/s").mkdir(parents=True)
    assert run("-m", "name=s", "sampler=static,order", bare=True).code == 2
    assert Path("runs/s").exists()  # it was the user's


@pytest.mark.program
def test_lines_of_a_sweep_differ_in_what_the_cells_do(run: Run) -> None:
    lines = run(*SMALL, "grids=[{stop: [[a], [b]]}, {seed: 1, cache: [none, dpad]}]").out.splitlines()[:-2]
    labels = [line.partition(": ")[2].partition(": score")[0] for line in lines]
    assert len(set(labels)) == len(labels) == 4
    assert "confidence fixed(block_length=8) dpad task=" in labels[-1] and labels[-1].endswith(" seed=1")
    assert labels[1].endswith(' stop=["b"]')


def grids(name: str) -> list[dict[str, list[str]]]:
    texts = grids_of(composed([f"experiment={name}"]).grids)
    return [{key: tried(key, values) for key, _, values in (text.partition("=") for text in grid)} for grid in texts]


def tried(key: str, values: str) -> list[str]:
    found = parsed_override(f"{key}={values}")
    value = found.value() if found is not None and values.startswith("glob(") else None
    if isinstance(value, Glob):
        return value.filter(choices(key))
    return list(found.sweep_string_iterator()) if found is not None and found.is_sweep_override() else [values]


def count(grid: dict[str, list[str]]) -> int:
    return prod(len(values) for values in grid.values())


def family(name: str, sampler: str) -> int:
    return sum(count(grid) for grid in grids(name) if grid["sampler"] == [sampler])


# Experiments that are no grids: the parts of a published decoder under one word, as their head says.
EXPERIMENTS = [name for name in choices("experiment") if not name.startswith("published/")]
PRESETS = [name for name in EXPERIMENTS if "(no grid)" in choice_text("experiment", name)]


@pytest.mark.daily(6)
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_one_setting_of_parts_that_exist(name: str) -> None:
    config = composed([f"experiment={name}"])
    assert Parts.of(config, Sampling()) and grids(name) == [{}]


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", sorted(set(EXPERIMENTS) - set(PRESETS)))
def test_every_grid_names_parts_and_options_that_exist(name: str) -> None:
    for grid in grids(name):
        for at in (0, -1):  # both ends of every list
            overrides = [f"{key}={values[at]}" for key, values in grid.items()]
            config = composed(
                [f"experiment={name}", *overrides, "sampler.reference=[]"]
                if "oracle" in str(overrides)
                else [f"experiment={name}", *overrides]
            )
            assert Parts.of(config, Sampling()) and config.task.run == "dllm.app.commands.evaluate.run"


def test_the_grids_of_the_paper_have_its_sizes() -> None:
    """Bounded of the benchmark's own sweeps for answers of 64 tokens (arXiv 2510.04767, its released configuration)."""
    assert family("paper", "static") == 4 * 28  # pairs of a block length and positions per step, powers of two
    assert family("paper", "confidence") == 6 * 7 and family("paper", "factor") == 5 * 7
    assert all(
        int(k) <= int(b)
        for grid in grids("paper")
        if grid["sampler"] == ["static"]
        for b in grid["blocks.block_length"]
        for k in grid["sampler.per_step"]
    )
    assert family("paper", "rcr") and family("paper", "remdm") and family("paper", "order")
    assert family("paper_r2", "static") == 4 * 6 and family("paper_r2", "order") == 6


def test_all_methods_are_all_samplers() -> None:
    """Of models of masks, each at least once: what the first grid leaves out has its own, with the cache it needs."""
    every, order, *verify = grids_of(composed(["experiment=methods"]).grids)
    assert (
        every == ["sampler=glob(*, exclude=[ancestral, flash_verify, linear_spec, renoise])"]
        and order[0] == "sampler=order"
    )
    assert combinations(every) == len(choices("sampler")) - 4
    assert [one[0] for one in verify] == ["sampler=flash_verify", "sampler=linear_spec"]


def test_a_sweep_is_given_to_hydra_grid_by_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert expanded(["sampler=static", "name=x"]).grids == [["sampler=static", "name='x'", "hydra.sweep.dir='runs/x'"]]
    found = expanded(["cache=none", "grids=[{sampler:[static,eb]},{sampler:order}]", "name=x", "output=here"]).grids
    place: list[Any] = ["name='x'", "hydra.sweep.dir='here/x'"]
    assert [[text for text in one if not text.startswith(("grids", "output"))] for one in found] == [
        ["sampler=static,eb", "cache=none", *place],
        ["sampler=order", "cache=none", *place],
    ]
    assert expanded(["hydra.sweep.dir=there/y"]).grids == [["name='y'", "hydra.sweep.dir='there/y'"]]
    with pytest.raises(UserError, match="hydra.sweep.dir and name=x both"):
        expanded(["hydra.sweep.dir=there/y", "name=x"])


def test_values_of_a_grid_arrive_as_they_are_written() -> None:
    grids = [{"prompt": ["a, b", "it's"], "sampler": "eb", "blocks.lengths": [[8, 8], None]}]
    assert list(grids_of(grids)) == [["prompt='a, b','it\\'s'", "sampler=eb", "blocks.lengths=[8, 8],null"]]
    assert combinations(["eos=glob(stop*)", "seed=range(3)", "sampler=a,b"]) == 4 * 3 * 2
