"""Scout beside the published rules, defaults beside published settings, and decisions beside decodes."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from harness import of_noise

from dllm import Result, part
from dllm.parts import choices, configurations
from dllm.tasks.mini import tasks as mini
from experiments.bench.decisions import ALTERNATIVES, bodies, furthest
from experiments.compare import defaults as compare_defaults
from experiments.compare import published_settings
from experiments.compare.choosing import Column, Place, Pool, saving
from experiments.compare.decisions import (
    Line,
    ages_of_records,
    last_names,
    towns_of_records,
    worse,
)
from experiments.compare.defaults import Row, Scores, beside, main
from experiments.compare.own_sampler import Bench, methods
from experiments.compare.published_settings import differences


def column(method: str, setting: str, nfe: list[int], right: list[float]) -> Column:
    rows = [Result([1], [2], "", [2], count, 4 * count, 1.0, "eos", 0, [1]) for count in nfe]
    return Column(method, setting, rows, right, 1.0)


def bench(*columns: Column) -> Bench:
    """Four items of two tasks, two in each half, without a model."""
    out = object.__new__(Bench)
    out.items = [item for task in mini.SHORT_ANSWERS[:2] for item in mini.generate(task, 1, 2)]
    places = [Place(1, half) for half in (0, 1, 0, 1)]
    out.pool = Pool(places, column("static", "one token", [8] * 4, [1.0] * 4), columns)
    out.oracle = column("oracle", "told the answer", [1, 2, 1, 2], [1.0] * 4)
    return out


def test_single_splits_and_their_spread() -> None:
    """Two items a half, two halves of one seed: each half shows what the other chose."""
    pool = bench(
        column("a", "fast here", [2, 9, 2, 9], [1.0] * 4), column("a", "fast there", [4, 3, 4, 3], [1.0] * 4),
        column("**scout**", "only", [2, 2, 2, 2], [1.0, 1.0, 0.0, 1.0]),
    ).pool  # fmt: skip
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in pool.splits().splitlines()[2:]]
    assert lines[0] == ["seed 1, first half", "a: fast there", "+0.0", "50.0 % at -50.0 points"]
    assert lines[1][1:] == ["a: fast here", "+0.0", "77.8 % at +0.0 points"]
    assert lines[2][3] == "63.9 %, 19.6"
    drawn = pool.shown([1, 3], [0, 2])
    assert (drawn.best.setting, drawn.fewer["**scout**"]) == ("fast there", (50.0, -50.0))
    assert [line.split("|")[1].strip() for line in pool.sizes().splitlines()[2:]] == ["1", "2"]
    wrong = Pool(pool.places, pool.static, [column("b", "wrong", [1] * 4, [0.0] * 4)])
    assert wrong.shown([0], [1]).lost == 100  # nobody scores enough, so the best score counts


def test_a_setting_is_chosen_by_one_half_and_shown_on_the_other() -> None:
    found = bench(
        column("a", "fast here", [2, 9, 2, 9], [1.0] * 4), column("a", "fast there", [4, 3, 4, 3], [1.0] * 4),
        column("b", "wrong there", [3, 2, 3, 2], [1.0, 0.0, 1.0, 1.0]),
        column("**scout**", "only", [2, 2, 2, 2], [1.0] * 4),
    )  # fmt: skip
    for half, fast in enumerate(("fast here", "fast there")):
        assert found.pool.chosen(found.pool.of(half))["a"].setting == fast
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in found.table(0).splitlines()[2:]]
    shown = {line[0]: line for line in lines}
    # By the second half b scores too little, so a is the best there; its four forwards here are twice scout's.
    assert shown["a"][1:5] == ["fast there", "100.0", "the best published", "4.00"]
    assert shown["**scout**"][4:8] == ["2.00", "50.0 % ±0.0", "0.500", "4.0"]
    assert shown["b"][2] == "100.0" and [line[0] for line in lines] == ["oracle", "**scout**", "b", "a", "static"]


def test_the_interval_of_a_saving_is_that_of_paired_items() -> None:
    assert saving([2, 4, 6], [4, 8, 12]) == "50.0 % ±0.0"  # every item saves alike
    # What is left of 1, 1, 1 without 3/4 of 1, 2, 1 is 1/4, -1/2, 1/4: squares that sum to 0.375.
    assert saving([1, 1, 1], [1, 2, 1]) == f"25.0 % ±{100 * 1.96 * (0.375 / 2 / 3) ** 0.5 / (4 / 3):.1f}"


def test_every_sampler_that_ships_takes_part_with_settings_that_differ() -> None:
    found = list(methods())
    assert len({(method, words) for method, words, *_ in found}) == len(found) > 100
    needy = {"flash_verify", "linear_spec", "d2f", "dmax"}  # of its own cache, or of models that attend by blocks
    assert {rule for _, _, rule, _ in found} == set(choices("sampler")) - {"oracle"} - needy - of_noise()
    assert min(Counter(method for method, *_ in found).values()) > 1  # nobody at its defaults alone
    for _, _, rule, options in found:
        assert part("sampler", rule, **options)


def test_freedave_meets_every_rule_that_scout_meets() -> None:
    inner = {
        word: {words.partition(" over ")[2] for _, words, rule, _ in methods() if rule == word}
        for word in ("scout", "freedave")
    }
    assert inner["scout"] < inner["freedave"] and len(inner["scout"]) == 5


def test_requests_ask_ten_questions_of_sixteen_alternatives() -> None:
    for body, sample in zip(bodies(3, 1), mini.generate("records", 1, 3, "test", (5, 5)), strict=True):
        rows, templates = json.loads(sample.answer), body["diffusion"]["template"]
        assert len(body["questions"]) == 10
        for question in body["questions"]:
            values = [choice["value"] for choice in question["choices"]]
            assert len(set(values)) == ALTERNATIVES
            key, number = question["name"].split()
            truth = str(rows[int(number)][key])
            if key == "age":
                assert truth in values
            begun = templates[question["name"]].replace("{slot}", truth)
            assert json.loads(begun + "}]") == [
                *rows[: int(number)], {**rows[int(number)]}
            ], "the records before it, and this one"  # fmt: skip


def answer(choice: str, *probabilities: float) -> list[dict[str, Any]]:
    return [{"choice": choice, "probabilities": [{"probability": p} for p in probabilities]}]


def test_the_furthest_probability_and_another_choice_are_noticed() -> None:
    first = [answer("a", 0.75, 0.25), answer("b", 0.5, 0.5)]
    assert furthest(first, first) == 0
    assert furthest([answer("a", 0.75, 0.25), answer("b", 0.5, 0.5 + 1e-6)], first) == pytest.approx(1e-6)
    assert furthest([answer("a", 0.75, 0.25), answer("a", 0.5, 0.5)], first) == float("inf")


def test_items_hold_their_truth_and_their_text() -> None:
    for item in [*towns_of_records(4, 1), *ages_of_records(4, 1), *last_names(4, 1)]:
        assert item.truth in item.values and len(set(item.values)) == len(item.values)
        assert item.truth in {
            str(v) for row in json.loads(f"{item.before}{item.truth}{item.behind}") for v in row.values()
        }


def test_a_decision_that_is_worse_than_the_decode_is_noticed() -> None:
    def found(decided: int, decoded: int) -> list[Line]:
        return [Line("x, local", [1.0] * decided + [0.0] * (100 - decided), (1, 1)),
                Line("x, decode", [1.0] * decoded + [0.0] * (100 - decoded), (1, 1))]  # fmt: skip

    assert not worse(found(60, 65), "x") and not worse(found(60, 50), "x") and worse(found(40, 65), "x")
    assert not worse(found(40, 65)[:1], "x")


TASKS = len(mini.SHORT_ANSWERS)


def scores(right: list[float], doubt: str = "") -> Scores:
    return Scores("m", "sampler=x", 0, right, [4] * len(right), doubt)


def row(default: list[float], best: list[float], doubt: str = "") -> Row:
    return Row("sampler=x", scores(default, doubt), "sampler.y=1", scores(best))


def test_settings_are_read_from_the_published_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """klass: its file's numbers. dkv_dream: 256 steps of 256 tokens, 512 of 512, are 32 of 32; 128 and 256 are 16."""
    names, others = ["published/klass", "published/dkv_dream"], published_settings.choices
    monkeypatch.setattr(published_settings, "choices", lambda group: names if group == "experiment" else others(group))
    monkeypatch.setattr(published_settings, "ELSEWHERE", {"sampler=klass": ("sampler.threshold=0.7",)})
    found = published_settings.published_settings()
    assert found["sampler=klass"] == [
        "sampler.threshold=0.6 sampler.kl=0.015", "sampler.threshold=0.6", "sampler.threshold=0.7", "sampler.kl=0.001",
        "sampler.kl=0.005",
    ]  # fmt: skip
    assert found["cache=dkv"] == ["cache.refresh_interval=4 cache.shift_type=un"]
    assert found["sampler=dream"] == ["sampler.steps=32", "sampler.steps=16"]
    assert found["cache=none"] == []


def test_differences_are_words_of_the_command_line() -> None:
    usual: dict[str, Any] = {"text": None, "open": True, "steps": None, "inner": {"_target_": "a.B"}, "list": [1]}
    credit = configurations("sampler", "credit")["sampler"]
    chosen = {"text": "The answer is", "open": False, "steps": 64, "inner": credit, "list": [1, 2]}
    words = " ".join(differences("sampler", chosen, usual, 0.5))
    assert shlex.split(words) == [
        "sampler.text=The answer is", "sampler.open=false", "sampler.steps=32", "sampler/inner=credit",
        "sampler.list=[1,2]",
    ]  # fmt: skip
    assert [*differences("blocks", {"block_length": 64}, {"block_length": 32}, 1.0)] == []  # no answer is longer


def test_what_stands_beside_a_part() -> None:
    assert [beside(f"cache={name}") for name in ("dual", "elastic", "dkv_greedy")] == [
        "blocks.block_length=8", "", "sampler=order blocks.block_length=8",
    ]  # fmt: skip
    assert beside("sampler=eb") == beside("eos=none") == ""


@pytest.mark.parametrize(
    ("wrong", "doubt", "verdict"),
    [(0, "", "stays"), (-4, "", "stays"), (4, "", "**too far**"), (4, "mind", "warns"), (1, "", "stays")],
)
def test_a_default_that_is_too_far_behind_needs_a_warning(wrong: int, doubt: str, verdict: str) -> None:
    """wrong: of eight answers to each task, those that only the published setting gets right; < 0: only the default."""
    lost, won = (([0.0] * max(count, 0) + [1.0] * (8 - max(count, 0))) * TASKS for count in (wrong, -wrong))
    if wrong == 1:  # in one task alone: a point
        lost = [0.0] + [1.0] * (8 * TASKS - 1)
    assert row(lost, won, doubt).verdict() == verdict


def test_a_few_items_are_no_sure_loss() -> None:
    """Two answers of 26: eight points, but by chance now and then."""
    assert row([0.0, 1.0, 0.0, 1.0] + [1.0] * 22, [1.0] * 26).verdict() == "stays, not surely worse"


def test_a_line_by_hand() -> None:
    """One of 13 tasks of 2 items all wrong: 24 of 26 against 26, on average 1/13 less, which is 8 points."""
    found = row([0.0, 0.0] + [1.0] * 2 * (TASKS - 1), [1.0] * 2 * TASKS)
    cells = str(found).strip("| ").split(" | ")
    assert cells[:6] == ["sampler=x", "92 (76-98)", "4.0", "`sampler.y=1`", "100 (87-100)", "4.0"]
    assert cells[6].startswith("-8 (-") and cells[7] == "26"


def test_the_command_goes_on_from_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mini, "SHORT_ANSWERS", ("copy",))
    settings = {"sampler=dus": ["blocks.block_length=8", "sampler.base=1"]}  # base 1 is refused, and left out
    monkeypatch.setattr(compare_defaults, "published_settings", lambda: settings)
    kept = tmp_path / "kept.jsonl"
    words = ["mini-llada", "--parts", "sampler=dus", "--count", "1", "--again", "2", "--keep", str(kept)]
    main(words)
    first, decoded = capsys.readouterr().out, kept.read_text()
    assert "| sampler=dus | " in first and "`blocks.block_length=8`" in first
    assert decoded.count("\n") in (2, 4)
    monkeypatch.setattr(compare_defaults.Bench, "decoded", lambda *_: pytest.fail("it was decoded before"))
    monkeypatch.setattr(compare_defaults, "published_settings", lambda: {"sampler=dus": ["blocks.block_length=8"]})
    main(words)
    assert capsys.readouterr().out == first and kept.read_text() == decoded
