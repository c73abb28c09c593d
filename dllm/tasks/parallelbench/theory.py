"""What parallel decoding costs a perfect model on list operations, exactly (the analysis of ParallelBench, section 3).

A list of n items is n tokens 0..n-1, the newcomer is token n, and every valid answer is equally likely. A model that
fills several positions at once draws them independently from its marginals. However good these are, its answers are
invalid with a known probability, which this module computes by enumerating the valid answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from math import prod

from dllm.common.errors import UserError, nearest
from dllm.common.grouping import grouped

Output = tuple[int, ...]
Steps = Sequence[Sequence[int]]  # positions filled together, step by step
THEORY_OPERATIONS = ("copy", "shuffle", "shuffle_other", "insert_random", "remove_random", "replace_random")


def outputs(operation: str, n: int) -> list[Output]:
    """Every valid answer. ``shuffle_other`` leaves out the list as it was; copy stands for all with one answer."""
    if operation not in THEORY_OPERATIONS:
        hint = nearest(operation, THEORY_OPERATIONS)
        raise UserError(f"operation={operation!r} is unknown; choose one of {', '.join(THEORY_OPERATIONS)}.{hint}")
    if n < 2:
        raise UserError(f"n={n} must be at least 2.")
    items = tuple(range(n))
    match operation:
        case "shuffle":
            return list(permutations(items))
        case "shuffle_other":
            return list(permutations(items))[1:]
        case "insert_random":
            return [(*items[:at], n, *items[at:]) for at in range(n + 1)]
        case "remove_random":
            return [items[:at] + items[at + 1 :] for at in range(n)]
        case "replace_random":
            return [(*items[:at], n, *items[at + 1 :]) for at in range(n)]
    return [items]


def _split(valid: Sequence[Output], step: Sequence[int]) -> dict[Output, list[Output]]:
    """Answers by what they hold at the positions of a step."""
    return grouped((tuple(y[at] for at in step), y) for y in valid)


def accuracy(valid: Sequence[Output], steps: Steps) -> float:
    """Chance that a perfect model, sampling the positions of each step independently, ends with a valid answer."""
    if not steps:
        return 1.0
    marginals = [Counter(y[at] for y in valid) for at in steps[0]]
    return sum(
        prod(counts[token] / len(valid) for counts, token in zip(marginals, values, strict=True))
        * accuracy(group, steps[1:])
        for values, group in _split(valid, steps[0]).items()
    )


def left_to_right(length: int, k: int) -> list[list[int]]:
    """Steps of k positions from the left."""
    return [list(range(at, min(at + k, length))) for at in range(0, length, k)]
