"""Regular expressions of others: as ``re`` has them, and never long."""

from __future__ import annotations

import re
from random import Random
from time import process_time

import pytest

from dllm.parts import RULE, UserError, expression

ENDS = ["a", "b", ".", r"\.", "[ab]", "[^a]", r"\w", r"\b", "^", "$", r"\Z", "(?:)", "(aa|b)", ".*", "b+?", "a{1,3}"]
REPEATS = ["*", "+", "?", "*?", "+?", "??", "{2}", "{1,3}", "{0,2}?", "{2,}"]
NAME = "model.layers.3.self_attn.q_proj" + "a" * 60
# What peft's users write of models for several senses, shortened: four repeats in a row, and choices of words.
WIDE = (
    r"(?:.*?(?:language|text).*?(?:self_attn|attention|attn|mlp).*?(?:q_proj|k_proj|o_proj).*?)"
    r"|(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|mlp)\.(?:(?:q_proj|k_proj|o_proj)))"
)


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


def test_what_is_accepted_matches_soon_what_re_matches() -> None:
    draw, long, accepted = Random(7), "ab" * 20 + "a" * 40, 0
    for _ in range(2000):
        pattern = drawn(draw, 4)
        text = "".join(draw.choice("ab.\n") for _ in range(draw.randrange(8)))
        try:
            found = expression(pattern).matches(text)
            began = process_time()
            expression(f"(?:{pattern})$").matches(long)
        except UserError:
            continue
        assert found == (re.match(pattern, text) is not None), (pattern, text)
        assert process_time() - began < 0.5, pattern
        accepted += 1
    assert accepted > 1000


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+$x", "(.+)+x", "(.|.)*x", ".*" * 40 + "x", "(?=(.+)+x)", "(?:.?){200}x", "(((.{0,60000}){0,60000})*)*x",
     "(.|.)" * 80 + "x", "((((((.*)*)*)*)*)*)*x", "(aa|a)*x", "(a|aa)" * 40 + "x", "a?" * 90 + "a" * 90,
     "(?:m.){4000000000}", "(?:){4000000000}"],
)  # fmt: skip
def test_an_expression_that_re_would_try_for_ever_is_refused(pattern: str) -> None:
    began = process_time()
    with pytest.raises(UserError):
        expression(pattern).matches(NAME)
    assert process_time() - began < 0.3


def test_more_ways_than_are_tried_are_a_sentence() -> None:
    with pytest.raises(UserError, match="may match model.* in more than 4,194,304 ways. Write it with fewer repeats"):
        expression(".*" * 6).matches(NAME)
    with pytest.raises(UserError, match="ways"):
        expression(".*a.*a.*").matches("a" * 1001)


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        (WIDE, True),
        (r"^(?!.*visual).*(?:q_proj|k_proj)$", False),
        (r".*layers\.(?:1|3)\..*", True),
        (r"(?:model\.)?layers\.\d+\.", True),
    ],
)
def test_what_people_write_is_matched(pattern: str, matched: bool) -> None:
    assert expression(pattern).matches(NAME[:40]) == matched


@pytest.mark.parametrize(
    "pattern",
    ["(", r"(a)\1", "(?i)a", "(?i:a)", "(?>a)", "a++", "a{99999999999}", "(" * 600, "x" * 1001,
     "(?<=a*)b", "(a*)*", "(a|b.)+"],
)  # fmt: skip
def test_what_may_not_be_written_is_refused(pattern: str) -> None:
    with pytest.raises(UserError) as refused:
        expression(pattern)
    assert RULE in str(refused.value)
    assert len(str(refused.value)) < 400
