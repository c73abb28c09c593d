"""What a report says of its cells: where they come from, which were refused, how they differ on the same items."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import pytest

from dllm import UserError
from dllm.parts import Comparison, baseline, differences_of, methods, origin, processor_name, read_cells, write_report
from tests.report.report_cells import cell, points

STAMP = {
    "started": "2026-03-01T10:00:00+00:00",
    "versions": {"dllm": "0.1.0", "torch": "2.9.1"},
    "python": "3.12.1",
    "commit": "a" * 40,
    "dirty": True,
    "device": "cuda",
    "gpus": ["NVIDIA H200"],
    "dtype": "bfloat16",
    "threads": 8,
}


def stamped(folder: Path, **changes: Any) -> None:
    (folder / "environment.json").write_text(json.dumps({**STAMP, **changes}))


def test_a_report_says_where_its_numbers_come_from(sweep: Path) -> None:
    for name in "abcd":
        stamped(sweep / name)
    page = write_report([sweep], sweep / "report").read_text()
    text = (sweep / "report" / "report.md").read_text()
    facts = {
        "dllm": "0.1.0",
        "commit": "a" * 40,
        "files": "edited (dirty)",
        "decoded": "2026-03-01",
        "torch": "2.9.1",
        "Python": "3.12.1",
        "seeds": "0",
        "cells": "4",
        "eos": "fill_after_block",
        "items of a sub-task": "2",
        "gen_length": "each item's own (8)",
    }
    for name, value in facts.items():
        assert f"| {name} | {value} |" in text and f"<td>{name}</td><td>{escape(value)}</td>" in page
    (machine,) = re.findall(r"^\| machine \| (.*) \|$", text, re.MULTILINE)
    assert machine == "NVIDIA H200, threads 8, in bfloat16" and "versions of dllm" not in text


def test_what_differs_between_cells_is_counted_and_two_versions_are_named(sweep: Path) -> None:
    for name in "abc":
        stamped(sweep / name)
    stamped(sweep / "d", commit="b" * 40, resumed=[{**STAMP, "started": "2026-03-05T01:00:00+00:00"}])
    write_report([sweep], sweep / "report")
    text = (sweep / "report" / "report.md").read_text()
    assert f"| commit | {'a' * 40} (4 of 4 cells); {'b' * 40} (1 of 4 cells) |" in text
    assert "| decoded | 2026-03-01 (4 of 4 cells); 2026-03-05 (1 of 4 cells) |" in text
    assert f"these cells are of 2 versions of dllm: 0.1.0 at commit {'a' * 12}, edited ({sweep}/a, {sweep}/b" in text
    assert f"0.1.0 at commit {'b' * 12}, edited ({sweep}/d)" in text


def about(folder: Path) -> dict[str, str]:
    """The report's first table."""
    return dict(origin(read_cells(folder)[0]).rows)


def test_every_setting_that_is_not_usual_is_said_though_all_cells_share_it(tmp_path: Path) -> None:
    """Sampled scores must not be read as greedy ones; seeds stand by size."""
    shared = ["sampling.temperature=0.5", "sampling.forbid_eos=true", "gen_length=16", "eos=none"]
    cells = {
        "a": ["sampler=confidence", "seed=10"],
        "b": ["sampler=confidence", "sampler.threshold=0.8", "seed=2"],
        "c": ["sampler=confidence", "sampler.threshold=0.7", "cache=dual", "seed=2"],
    }
    for name, own in cells.items():
        cell(tmp_path / name, [*own, *shared], {"copy": [1, 1], "sort": [1] if name == "c" else [1, 0]}, 4)
    found = about(tmp_path)
    assert set(found["settings that are not usual"].split("; ")) == {
        "sampling.temperature=0.5",
        "sampling.forbid_eos=true",
        "sampler.threshold=0.7, 0.8 (2 of 3 cells)",
        "cache=dual (1 of 3 cells)",
    }
    assert "confidence(threshold=0.9)" in found["defaults"]
    assert found["seeds"] == "2 (2 of 3 cells); 10 (1 of 3 cells)"
    assert (found["gen_length"], found["eos"]) == ("16", "none")
    assert found["items of a sub-task"] == "2 (2 of 3 cells); copy 2, sort 1 (1 of 3 cells)"


def test_a_report_of_usual_settings_says_so(sweep: Path) -> None:
    found = about(sweep)
    assert found["settings that are not usual"].startswith("sampler=static, oracle") and "T=" not in str(found)
    assert found["gen_length"] == "each item's own (8)" and found["eos"] == "fill_after_block"


def test_an_automatic_length_is_said_with_its_rule(tmp_path: Path) -> None:
    cell(tmp_path / "a", ["gen_length=auto"], {"copy": [1]}, 4)
    assert about(tmp_path)["gen_length"] == "auto (16 masks, then rho_eos(limit=128, checked=12, low=0.1, high=0.9))"


def test_a_processor_is_called_as_its_maker_does(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC 9554 64-Core\nflags: a\n")
    assert processor_name(tmp_path / "cpuinfo") == "AMD EPYC 9554 64-Core"
    assert processor_name(tmp_path / "none")


def test_every_refused_combination_is_named_with_its_reason(sweep: Path) -> None:
    page = write_report([sweep], sweep / "report").read_text()
    text = (sweep / "report" / "report.md").read_text()
    (line,) = re.findall(r"^\| (.*) \| This pair cannot work\. \|$", text, re.MULTILINE)
    assert line.split() == ["sampler=wino", "sampler.threshold=0.7", "blocks=fixed", "cache=dkv_pd"]
    assert "cache=dkv_pd" in page and "Refused: 1 combinations" in page


def test_results_without_their_configuration_are_a_sentence(sweep: Path) -> None:
    (sweep / "a" / "config.yaml").unlink()
    with pytest.raises(UserError, match="a is not a whole run folder: its config.yaml is missing or broken"):
        read_cells(sweep)


def test_differences_are_those_of_the_same_items(sweep: Path) -> None:
    """static at 4: shuffle falls by 100, copy stays; the oracle stays. Half of items is -50 in the mean."""
    found = differences_of(points(*read_cells(sweep)[0]))
    assert found is not None and found.notes[0].startswith("Baseline: static, per step=1 (a). ")
    lines = {(line[0], line[1]): line[2:6] for line in found.whole.rows}
    assert lines.keys() == {("confidence", "defaults"), ("oracle", "defaults"), ("static", "per step=4")}
    assert lines["static", "per step=4"][:2] == ["4", "-50.0"] and lines["oracle", "defaults"][:2] == ["4", "0.0"]
    # Bonett and Price by hand, of two sub-tasks of two items: 4 of 6 items, no variance within, mean -2 / 6.
    half = 196 * ((2 + 2 * 0.25 * 4 / 6) / 36) ** 0.5
    assert lines["static", "per step=4"][2:] == [f"{-200 / 6 - half:+.1f}", f"{-200 / 6 + half:+.1f}"]
    tasks = {(line[0], line[1]): line[2:] for line in found.tasks.rows}
    assert tasks["static", "per step=4"] == ["0.0", "-100.0"] and tasks["confidence", "defaults"] == ["0.0", "-50.0"]


def test_an_item_that_cannot_be_paired_is_left_out_and_counted(tmp_path: Path) -> None:
    base, other = points(
        cell(tmp_path / "a", ["sampler=static"], {"copy": [1, 1, 1, None, 1], "sort": [1]}, 8, prompt="asked"),
        cell(tmp_path / "b", ["sampler=confidence"], {"copy": [0, 1, None, 1], "shuffle": [0]}, 4, prompt="asked"),
    )
    compared = Comparison.of(other, base)
    assert compared.groups == {"lists/copy": [-1, 0]} and compared.left_out == 5  # 2 unjudged, 3 of one cell alone
    other = replace(other, rows=[{**other.rows[0], "prompt": "in other words"}, *other.rows[1:]])
    assert Comparison.of(other, base).groups == {"lists/copy": [0]}
    found = differences_of([base, other])
    assert found is not None and found.whole.rows == [["confidence", "defaults", "1", "6", "0.0", "-92.4", "+92.4"]]


def test_answers_to_one_item_count_as_one(tmp_path: Path) -> None:
    cells = [
        cell(tmp_path / "a", ["sampler=static"], {"copy": [1, 0]}, 8),
        cell(tmp_path / "b", ["sampler=confidence"], {"copy": [0, 0]}, 4),
    ]
    for one in cells:
        for number, row in enumerate(one.rows):
            row |= {"id": "same", "sample": number}
    base, other = points(*cells)
    assert Comparison.of(other, base).groups == {"lists/copy": [-0.5]}


def test_settings_that_share_no_item_are_named(tmp_path: Path) -> None:
    settings = points(
        cell(tmp_path / "a", ["sampler=confidence"], {"copy": [1]}, 8),
        cell(tmp_path / "b", ["sampler=eb"], {"copy": [1]}, 4),
        cell(tmp_path / "c", ["sampler=wino"], {"sort": [1]}, 4),
    )
    found = differences_of(settings)
    assert found is not None and "Baseline: confidence, defaults (a)." in found.notes[0]  # none has one token a step
    assert found.notes[1] == "Not compared, since they share no judged item with the baseline: wino, defaults."
    assert differences_of(settings[:1]) is None
    unjudged = points(cell(tmp_path / "d", ["sampler=static"], {"copy": [None]}, 8))
    assert differences_of([*unjudged, replace(settings[0], rows=[])]) is None


def test_a_model_with_an_adapter_is_another_model(tmp_path: Path) -> None:
    made = points(
        *(
            cell(tmp_path / name, overrides, {"copy": [1]}, 2)
            for name, overrides in (("a", []), ("b", ["model.adapter=runs/some/lora"]))
        )
    )
    assert [one.model for one in made] == ["mini-llada", "mini-llada + lora"]
    assert made[0].layout != made[1].layout


@pytest.mark.parametrize("more", [["cache=dual"], ["constraint=json"], ["sampler.per_step=2"]], ids=str)
def test_only_plain_static_decoding_is_the_baseline(more: list[str], tmp_path: Path) -> None:
    """One token per step under a cache or a constraint is none: speed-ups would be relative to another method."""
    other = cell(tmp_path / "a", ["sampler=static", *more], {"copy": [1]}, 8)
    assert baseline(methods(points(other))) is None
    plain = cell(tmp_path / "b", ["sampler=static"], {"copy": [1]}, 8)
    found = baseline(methods(points(other, plain)))
    assert found is not None and found.first.folder == plain.folder
