"""Decisions beside decodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dllm.tasks.mini import tasks as mini
from experiments.bench.decisions import ALTERNATIVES, bodies, furthest
from experiments.compare.decisions import Line, ages_of_records, last_names, towns_of_records, worse


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
            assert json.loads(begun + "}]") == [*rows[: int(number)], {**rows[int(number)]}], (
                "the records before it, and this one"
            )


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
        return [
            Line("x, local", [1.0] * decided + [0.0] * (100 - decided), (1, 1)),
            Line("x, decode", [1.0] * decoded + [0.0] * (100 - decoded), (1, 1)),
        ]

    assert not worse(found(60, 65), "x") and not worse(found(60, 50), "x") and worse(found(40, 65), "x")
    assert not worse(found(40, 65)[:1], "x")
