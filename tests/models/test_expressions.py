"""Regular expressions of others: as ``re`` has them, and never long."""

from __future__ import annotations

import re
from random import Random
from time import process_time

import pytest

from dllm.parts import RULE, UserError, expression

ENDS = ["a", "b", ".", r"\.", "[ab]", "[^a]", r"\w", r"\b", "^", "$", r"\Z", "(?:)"]
REPEATS = ["*", "+", "?", "*?", "+?", "??", "{2}", "{1,3}", "{0,2}?", "{2,}"]
NAME = "model.layers.3.self_attn.q_proj" + "a" * 60


def drawn(draw: Random, depth: int) -> str:
    """A random expression."""
    kind = draw.randrange(11) if depth > 0 else 0
    if kind < 4:
        return draw.choice(ENDS)
    if kind < 6:
        return drawn(draw, depth - 1) + drawn(draw, depth - 1)
    if kind < 7:
        return f"({drawn(draw, depth - 1)}|{drawn(draw, depth - 1)})"
    if kind < 10:
        return f"(?:{drawn(draw, depth - 1)}){draw.choice(REPEATS)}"
    return f"({draw.choice(['?=', '?!', '?<=', '?<!'])}{drawn(draw, depth - 2)})"


def test_random_expressions_match_what_re_matches() -> None:
    draw, tried = Random(7), 0
    while tried < 1500:
        pattern = drawn(draw, 4)
        text = "".join(draw.choice("ab.\n") for _ in range(draw.randrange(8)))
        try:
            wanted = re.match(pattern, text) is not None
        except re.error:  # what is before a position must have one width
            with pytest.raises(UserError):
                expression(pattern)
            continue
        assert expression(pattern).matches(text) == wanted, (pattern, text)
        tried += 1


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+$x", "(.+)+x", "(.|.)*x", ".*" * 40 + "x", "(?=(.+)+x)", "(?:.?){200}x", "(((.{0,60000}){0,60000})*)*x",
     "(.|.)" * 80 + "x", "((((((.*)*)*)*)*)*)*x",
     "(?:m.){4000000000}"],
)  # fmt: skip
def test_an_expression_that_re_would_try_for_ever_ends(pattern: str) -> None:
    began = process_time()
    assert not expression(pattern).matches(NAME)
    assert process_time() - began < 0.3


def test_more_than_the_steps_of_a_text_is_a_sentence() -> None:
    with pytest.raises(UserError, match="takes more than 20,000 steps on model.*Write it with fewer repeats"):
        expression("(?:){4000000000}").matches(NAME)
    with pytest.raises(UserError, match="has more than 1000 characters"):
        expression(".*").matches("a" * 1001)


@pytest.mark.parametrize(
    "pattern",
    ["(", r"(a)\1", "(?i)a", "(?i:a)", "(?>a)", "a++", "a{99999999999}", "(" * 400 + ")" * 400, "x" * 1001, "(?<=a*)b",
     "(" * 22 + "a" + ")" * 22],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused(pattern: str) -> None:
    with pytest.raises(UserError) as refused:
        expression(pattern)
    assert RULE in str(refused.value)
    assert len(str(refused.value)) < 400
