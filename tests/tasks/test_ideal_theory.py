"""Parallel decoding of a perfect model: closed forms, enumeration, and real samplers must agree."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from math import exp, perm, sqrt

import pytest

from dllm import Decoder, UserError
from dllm.parts import PROMPT, Confidence, Order, Sampler, Static, ideal, left_to_right, length, outputs
from dllm.tasks.parallelbench import theory

ROWS = 1500


def shuffle_accuracy(n: int, k: int) -> float:
    """Product over the steps of (m)_g / m^g: m items are left and g = min(k, m) are drawn. n! / n^n for k = n."""
    chance, left = 1.0, n
    while left:
        drawn = min(k, left)
        chance *= perm(left, drawn) / left**drawn
        left -= drawn
    return chance


def replace_accuracy(n: int, k: int) -> float:
    """The newcomer must be drawn exactly once, in whichever step. (1 - 1/n)^(n-1) for k = n, which tends to 1/e."""
    if n == 0:
        return 0.0  # nobody was replaced
    drawn = min(k, n)
    once = drawn / n * (1 - 1 / n) ** (drawn - 1)
    return once + (1 - 1 / n) ** drawn * replace_accuracy(n - drawn, k)


@pytest.mark.parametrize(
    ("operation", "accuracy"),  # for lists of 2, 3, 4 and 5 items
    [
        ("copy", [1, 1, 1, 1]),
        ("replace_random", [0.5, 0.444, 0.422, 0.410]),
        ("shuffle", [0.5, 0.222, 0.094, 0.038]),
        ("insert_random", [0.296, 0.188, 0.123, 0.082]),
        ("remove_random", [1, 0.889, 0.75, 0.614]),
    ],
)
def test_values_of_the_analysis(operation: str, accuracy: list[float]) -> None:
    for n, right in zip(range(2, 6), accuracy, strict=True):
        valid = outputs(operation, n)
        assert theory.accuracy(valid, [range(len(valid[0]))]) == pytest.approx(right, abs=6e-4)


def test_leaving_out_the_list_as_it_was_changes_shuffling_little() -> None:
    for n, right in ((3, 0.224), (4, 0.0919)):
        assert theory.accuracy(outputs("shuffle_other", n), [range(n)]) == pytest.approx(right, abs=6e-4)


@pytest.mark.parametrize("n", range(2, 7))
def test_closed_forms_equal_enumeration(n: int) -> None:
    shuffled, replaced = outputs("shuffle", n), outputs("replace_random", n)
    for k in range(1, n + 1):
        steps = left_to_right(n, k)
        assert theory.accuracy(shuffled, steps) == pytest.approx(shuffle_accuracy(n, k))
        assert theory.accuracy(replaced, steps) == pytest.approx(replace_accuracy(n, k))


def test_the_limit_of_replacing() -> None:
    assert replace_accuracy(4000, 4000) == pytest.approx(exp(-1), abs=1e-4)


def test_accuracy_need_not_fall_with_parallelism() -> None:
    by_k = [replace_accuracy(6, k) for k in range(1, 7)]
    assert by_k == pytest.approx([1, 0.7335, 0.6044, 0.6269, 0.8038, 0.4019], abs=6e-5)
    by_k = [shuffle_accuracy(6, k) for k in range(1, 7)]
    assert by_k == pytest.approx([1, 0.3125, 0.1235, 0.1389, 0.0926, 0.0154], abs=6e-5)


def brute_force(operation: str, n: int, steps: Sequence[Sequence[int]]) -> float:
    """Accuracy by drawing every combination of tokens at every step, valid or not."""
    valid = outputs(operation, n)

    def run(known: dict[int, int], left: Sequence[Sequence[int]]) -> float:
        agree = [y for y in valid if all(y[at] == token for at, token in known.items())]
        if not agree or not left:
            return float(bool(agree))
        chance = 0.0
        for drawn in product(range(n + 1), repeat=len(left[0])):
            weight = 1.0
            for at, token in zip(left[0], drawn, strict=True):
                weight *= sum(y[at] == token for y in agree) / len(agree)
            if weight:
                chance += weight * run({**known, **dict(zip(left[0], drawn, strict=True))}, left[1:])
        return chance

    return run({}, steps)


@pytest.mark.parametrize("operation", theory.THEORY_OPERATIONS)
@pytest.mark.parametrize("steps", [[[0, 1, 2]], [[0], [1, 2]], [[2, 0], [1]], [[1], [2], [0]]], ids=str)
def test_accuracy_equals_brute_force_in_any_order(operation: str, steps: list[list[int]]) -> None:
    size = length(operation, 3)
    cut = [[at for at in step if at < size] for step in steps]
    cut = [step for step in cut if step] + ([[3]] if size == 4 else [])
    assert theory.accuracy(outputs(operation, 3), cut) == pytest.approx(brute_force(operation, 3, cut))


def right(operation: str, n: int, sampler: Sampler, rows: int = ROWS, temperature: float = 1.0) -> tuple[float, float]:
    """Share of valid answers and mean forwards when a sampler decodes the perfect model."""
    size = length(operation, n)
    decoder = Decoder(
        ideal(operation, n), sampler, "whole", eos="none", gen_length=size, batch_size=rows, temperature=temperature
    )
    found, valid = decoder(PROMPT, samples=rows), set(outputs(operation, n))
    share = sum(tuple(result.canvas) in valid for result in found) / rows
    return share, sum(result.nfe for result in found) / rows


def evenly(size: int, count: int) -> list[list[int]]:
    """Positions from the left in ``count`` steps, the first steps taking one more, as the samplers split them."""
    ends = [0]
    for step in range(count):
        ends.append(ends[-1] + size // count + (step < size % count))
    return [list(range(start, end)) for start, end in pairwise(ends)]


@pytest.mark.daily(6)
@pytest.mark.parametrize("operation", ["shuffle", "replace_random", "insert_random", "remove_random"])
@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_a_real_sampler_loses_what_the_theory_says(operation: str, k: int) -> None:
    size = length(operation, 5)
    steps = evenly(size, -(-size // k))
    expected = theory.accuracy(outputs(operation, 5), steps)
    share, nfe = right(operation, 5, Order(positions="left_to_right", steps=len(steps)))
    assert nfe == len(steps)
    assert abs(share - expected) <= 4 * sqrt(max(expected * (1 - expected), 1 / ROWS) / ROWS)


def test_random_order_is_as_good_as_any_for_symmetric_operations() -> None:
    for operation, formula in (("shuffle", shuffle_accuracy), ("replace_random", replace_accuracy)):
        expected = formula(6, 2)
        share, _ = right(operation, 6, Static(steps=3, score="random"))
        assert abs(share - expected) <= 4 * sqrt(expected * (1 - expected) / ROWS)


def test_greedy_decoding_in_one_step_copies_what_should_be_replaced() -> None:
    for n in (3, 4, 6):
        decoder = Decoder(ideal("replace_random", n), Static(steps=1), "whole", eos="none", gen_length=n)
        assert decoder(PROMPT)[0].canvas == list(range(n))


def test_greedy_shuffling_in_one_step_repeats_one_item() -> None:
    decoder = Decoder(ideal("shuffle", 5), Static(steps=1), "whole", eos="none", gen_length=5)
    assert len(set(decoder(PROMPT)[0].canvas)) == 1


def test_the_threshold_that_is_safe_depends_on_the_operation() -> None:
    n = 4
    assert right("shuffle", n, Confidence(threshold=0.51), 400)[0] == 1.0
    unsafe = right("replace_random", n, Confidence(threshold=0.51), 400, temperature=0.0)
    assert unsafe[0] == 0.0 and unsafe[1] == 1.0  # 1 - 1/n passes: the input comes back in one step
    assert right("replace_random", n, Confidence(threshold=1 - 1 / n + 0.01), 400)[0] == 1.0


def test_unknown_operations_are_refused() -> None:
    with pytest.raises(UserError, match="Did you mean 'shuffle'"):
        outputs("shufle", 4)
    with pytest.raises(UserError, match="n=1 must be at least 2"):
        outputs("shuffle", 1)
