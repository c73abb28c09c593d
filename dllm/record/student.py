"""Student's t: how much wider an interval is whose variance was estimated."""

from __future__ import annotations

from functools import cache
from math import atan, cos, erf, pi, sin, sqrt, tan


def share_within(t: float, freedom: int) -> float:
    """P(|T| < t) for a whole number of degrees of freedom, by its finite sum (Abramowitz and Stegun 26.7.3, 4)."""
    angle = atan(t / sqrt(freedom))
    odd = freedom % 2
    term = cos(angle) if odd else 1.0
    total = 0.0
    for power in range(1 + odd, freedom, 2):
        total += term
        term *= cos(angle) ** 2 * power / (power + 1)
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total


@cache
def quantile_of_t(freedom: int, z: float = 1.96) -> float:
    """The t with as much between -t and t as the normal distribution has between -z and z. freedom: at least 1."""
    share, low, high = erf(z / sqrt(2)), 0.0, pi / 2
    for _ in range(60):  # halves the angle's range to less than a float's step
        middle = (low + high) / 2
        low, high = (middle, high) if share_within(tan(middle) * sqrt(freedom), freedom) < share else (low, middle)
    return tan(low) * sqrt(freedom)
