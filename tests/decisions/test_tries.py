"""The trie of alternatives and the count of canvases, against prefixes written out; wordings; numbers of levels."""

from __future__ import annotations

from math import log
from random import Random

import pytest

from dllm.decisions import Choice, Predicate, Score
from dllm.decisions.calibration import Labelled, quality
from dllm.decisions.estimators import ESTIMATORS, AlternativesTrie, Slot, canvases, planned
from dllm.decisions.questions import question_of
from dllm.errors import UserError


def drawn(seed: int) -> tuple[tuple[int, ...], ...]:
    dice = Random(seed)
    return tuple({tuple(dice.choices((4, 5), k=dice.randint(1, 5))) for _ in range(dice.randint(1, 12))})


@pytest.mark.parametrize("seed", range(30))
def test_nodes_are_beginnings_and_canvases_are_counted(seed: int) -> None:
    alternatives = drawn(seed)
    trie, begins = AlternativesTrie.of(alternatives), dict[tuple[int, ...], set[int]]()
    for one in alternatives:
        for at in range(len(one)):
            begins.setdefault(one[:at], set()).add(one[at])
    assert {
        alternatives[one][:at]: set(tokens) for (one, at), tokens in zip(trie.places, trie.onward, strict=True)
    } == begins
    for one, path in zip(alternatives, trie.paths, strict=True):
        assert [alternatives[trie.places[node][0]][: trie.places[node][1]] for node in path] == [
            one[:at] for at in range(len(one))
        ]
    slot = Slot((1, 2), alternatives, (3,), 2, 60, 6)
    for estimator in ESTIMATORS:
        assert canvases(slot, estimator) == len({query.canvas for query in planned(slot, estimator).queries})


def test_long_alternatives_take_no_square_of_memory() -> None:
    one = tuple(range(100_000))
    assert len(AlternativesTrie.of([one, (*one[:50_000], 7)]).places) == 100_000


@pytest.mark.parametrize("label", ["inf", "-Infinity", "nan", "1e400", "1_0", "0x1", "", "one", "١"])
def test_labels_that_are_no_finite_numbers_have_no_value(label: str) -> None:
    assert Score([label or "-", "1", "2"]).numbers is None
    assert Score(["-1.5", "+2", "3e2", ".5", "4."]).numbers == [-1.5, 2.0, 300.0, 0.5, 4.0]


def test_what_the_prompt_says_of_a_question() -> None:
    assert Choice(["x", "y"], "Which?", labels="letters").asked() == "Which?\nA: x\nB: y"
    assert Choice(["x", "y"], "", "It is {slot}", labels="letters").asked() == "A: x\nB: y"
    assert Choice(["x", "y"], "", "It is {slot}", ["big", ""]).asked() == "- x: big\n- y"
    assert Choice(["x", "y"], "Which?").asked() == "Which?\n- x\n- y"
    assert Choice(["x", "y"], "Which?", "It is {slot}").asked() == "Which?"
    assert Predicate().asked() == ""


def test_a_misspelt_field_of_a_question_is_refused() -> None:
    with pytest.raises(UserError, match="'lables' is not a field of a choice.* Did you mean 'labels'"):
        question_of({"type": "choice", "choices": ["a", "b"], "lables": "letters"})


def test_confidences_are_binned_apart() -> None:
    items = [Labelled([log(0.95), log(0.05)], 1), Labelled([log(0.55), log(0.45)], 0)]
    assert quality(items).ece == pytest.approx((0.95 + 0.45) / 2)
