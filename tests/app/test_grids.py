"""The ready grids: how many settings they have, that all of them exist, and that each family means what it says."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.types import Glob

from dllm.app.command_line.grids import combinations as combinations
from dllm.app.command_line.grids import expanded, grids_of
from dllm.app.command_line.overrides import parsed_override
from dllm.compose.choice_files import choice_file
from dllm.compose.fitted import Parts
from dllm.compose.parts import choices, composed
from dllm.contract.setting import Sampling
from dllm.errors import UserError


def grids(name: str) -> list[dict[str, list[str]]]:
    texts = grids_of(composed([f"experiment={name}"]).grids)
    return [{key: tried(key, values) for key, _, values in (text.partition("=") for text in grid)} for grid in texts]


def tried(key: str, values: str) -> list[str]:
    found = parsed_override(f"{key}={values}")
    value = found.value() if found is not None and values.startswith("glob(") else None
    return value.filter(choices(key)) if isinstance(value, Glob) else values.split(",")


def count(grid: dict[str, list[str]]) -> int:
    return prod(len(values) for values in grid.values())


def family(name: str, sampler: str) -> int:
    return sum(count(grid) for grid in grids(name) if grid["sampler"] == [sampler])


# Experiments that are no grids: the parts of a published decoder under one word, as their head says.
EXPERIMENTS = [name for name in choices("experiment") if "/" not in name]
PRESETS = [name for name in EXPERIMENTS if "(no grid)" in choice_file("experiment", name)]


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
            config = composed([f"experiment={name}", *overrides, "sampler.reference=[]"] if "oracle" in str(overrides)
                              else [f"experiment={name}", *overrides])  # fmt: skip
            assert Parts.of(config, Sampling()) and config.task.run == "dllm.app.commands.evaluate.run"


def test_the_grids_of_the_paper_have_its_sizes() -> None:
    """Bounded of the benchmark's own sweeps for answers of 64 tokens (arXiv 2510.04767, its released configuration)."""
    assert family("paper", "static") == 4 * 28  # pairs of a block length and positions per step, powers of two
    assert family("paper", "confidence") == 6 * 7 and family("paper", "factor") == 5 * 7
    assert all(int(k) <= int(b) for grid in grids("paper") if grid["sampler"] == ["static"]
               for b in grid["blocks.block_length"] for k in grid["sampler.per_step"])  # fmt: skip
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
        ["sampler=static,eb", "cache=none", *place], ["sampler=order", "cache=none", *place],
    ]  # fmt: skip
    assert expanded(["hydra.sweep.dir=there/y"]).grids == [["name='y'", "hydra.sweep.dir='there/y'"]]
    with pytest.raises(UserError, match="hydra.sweep.dir and name=x both"):
        expanded(["hydra.sweep.dir=there/y", "name=x"])


def test_values_of_a_grid_arrive_as_they_are_written() -> None:
    grids = [{"prompt": ["a, b", "it's"], "sampler": "eb", "blocks.lengths": [[8, 8], None]}]
    assert list(grids_of(grids)) == [["prompt='a, b','it\\'s'", "sampler=eb", "blocks.lengths=[8, 8],null"]]
    assert combinations(["eos=glob(stop*)", "seed=range(3)", "sampler=a,b"]) == 3 * 3 * 2
