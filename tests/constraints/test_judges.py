"""The judges themselves."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

from judges import Real


def test_a_number_is_whole_as_it_is_written() -> None:
    parts = product(("", "-"), ("0", "7", "120", "1" * 70), ("", ".0", ".20", ".01"), ("", "e0", "E2", "e-1", "E-3"))
    for text in map("".join, parts):
        assert Real(text).is_integer() == (Fraction(text).denominator == 1), text
    assert Real("1E1717").is_integer() and Real("-2.5e1717") == -1e300
