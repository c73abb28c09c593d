"""What parallel decoding costs a perfect model on list operations, exactly (the analysis of ParallelBench, section 3).

A list of n items is n tokens 0..n-1, the newcomer is token n, and every valid answer is equally likely. A model that
fills several positions at once from its marginals, however good they are, draws them independently: it cannot get
nearer to the data than the conditional total correlation, and its answers clash with a known probability. Everything
here enumerates the valid answers; natural logarithms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import permutations
from math import lgamma, log, perm, prod

from dllm.errors import UserError, nearest

Output = tuple[int, ...]
Steps = Sequence[Sequence[int]]  # positions filled together, step by step
OPERATIONS = ("copy", "shuffle", "shuffle_other", "insert_random", "remove_random", "replace_random")


def outputs(operation: str, n: int) -> list[Output]:
    """Every valid answer. ``shuffle_other`` leaves out the list as it was; copy stands for all with one answer."""
    if operation not in OPERATIONS:
        hint = nearest(operation, OPERATIONS)
        raise UserError(f"operation={operation!r} is unknown; choose one of {', '.join(OPERATIONS)}.{hint}")
    if n < 2:
        raise UserError(f"n={n} must be at least 2.")
    given = tuple(range(n))
    match operation:
        case "shuffle":
            return list(permutations(given))
        case "shuffle_other":
            return list(permutations(given))[1:]
        case "insert_random":
            return [(*given[:at], n, *given[at:]) for at in range(n + 1)]
        case "remove_random":
            return [given[:at] + given[at + 1 :] for at in range(n)]
        case "replace_random":
            return [(*given[:at], n, *given[at + 1 :]) for at in range(n)]
    return [given]


def total_correlation(valid: Sequence[Output]) -> float:
    """C(Y|X): entropies of the positions minus the entropy of the whole, in nats."""
    return sum(entropy([y[at] for y in valid]) for at in range(len(valid[0]))) - entropy(valid)


def entropy(values: Sequence[Hashable]) -> float:
    return -sum(count / len(values) * log(count / len(values)) for count in Counter(values).values())


def bound(valid: Sequence[Output], steps: Steps) -> float:
    """The least KL divergence from the data that any model can reach in these steps: the correlation inside each."""
    if not steps:
        return 0.0
    inside = total_correlation([tuple(y[at] for at in steps[0]) for y in valid])
    rest = [len(group) / len(valid) * bound(group, steps[1:]) for group in _split(valid, steps[0]).values()]
    return inside + sum(rest)


def _split(valid: Sequence[Output], step: Sequence[int]) -> dict[Output, list[Output]]:
    """Answers by what they hold at the positions of a step."""
    groups: dict[Output, list[Output]] = {}
    for y in valid:
        groups.setdefault(tuple(y[at] for at in step), []).append(y)
    return groups


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


def shuffle_correlation(n: int) -> float:
    """n ln n - ln n!: grows like n."""
    return n * log(n) - lgamma(n + 1)


def replace_correlation(n: int) -> float:
    """(n - 1) ln(n / (n - 1)): tends to 1."""
    return (n - 1) * log(n / (n - 1))


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
