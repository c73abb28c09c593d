"""The figures of the methods' claims: their arithmetic by hand, and what must hold of any decode."""

from __future__ import annotations

from math import log2

import pytest

from dllm import load
from dllm.parts import bits
from experiments.method_claims import bits as rounds
from experiments.method_claims.__main__ import main
from experiments.method_claims.bits import fit, least_rounds, text_bits
from experiments.method_claims.prophet import BRACKET, PLAIN, Course, Standing, at_share, courses, never
from experiments.method_claims.runs import items_of, less, run, text_of, until_end


def test_shares_by_hand() -> None:
    """A quarter of 32 forwards are done with the eighth, a quarter of 3 with the first."""
    assert [at_share(32, share) for share in (0.25, 0.5, 0.75)] == [7, 15, 23]
    assert [at_share(3, share) for share in (0.25, 0.5, 0.75)] == [0, 1, 2] and at_share(1, 0.25) == 0
    assert until_end([5, 6, 0, 7], (0,)) == 2 and until_end([5], (0,)) == 1
    assert less(3.0, 4.0) == "25 %"


@pytest.mark.parametrize(
    ("stands", "settled"), [([True] * 4, 0.25), ([True, False, True, True], 0.75), ([False, False, False, True], 1.0)]
)
def test_an_answer_is_settled_when_it_stands_for_good(stands: list[bool], settled: float) -> None:
    assert Course(stands, [], 0.0).settled() == settled


def test_the_bound_on_rounds_by_hand() -> None:
    """Three tokens at once, each at least 1 - 0.5 / 4: together at least 1 - 3 / 8 = 5 / 8, so log2(8 / 5) bits."""
    assert least_rounds(log2(8 / 5), 3, 0.5) == pytest.approx(1.0)
    assert least_rounds(2.0, 1, 1.0) == pytest.approx(2.0)  # one token of at least a half: one bit


def test_a_line_fits_points_on_it() -> None:
    assert fit([1.0, 2.0, 3.0], [5.0, 7.0, 9.0]) == pytest.approx(1.0)
    assert fit([1.0, 2.0], [4.0, 4.0]) == 0.0


def test_what_stands_in_the_last_forward_is_the_answer_and_its_bits_follow_the_chain_rule() -> None:
    """One token a forward: each was committed given all before it. A given bracket is part of the answer."""
    model, items = load("mini-llada"), items_of(("copy",), 1)
    for options in (PLAIN, BRACKET):
        seen = Standing()
        done = run(model, items, never("static", **options), 12, eos="none", trace=True, observe=seen)
        assert all(one.stands[-1] and len(one.right) == 3 for one in courses(model, items, done, seen))
        assert all(len(seen.seen[number]) == row.nfe for number, row in enumerate(done.rows))
        assert all(text_of(model, row.canvas).startswith('["') for row in done.rows)
    row = done.rows[0]
    assert text_bits(model, row) == pytest.approx(sum(bits(row.traced())), abs=1e-3)


def test_a_part_prints_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(rounds.mini, "SHORT_ANSWERS", ("copy", "reverse"))
    monkeypatch.setattr(rounds, "RULES", {"factor 0.5": ("factor", {"factor": 0.5, "commit_last": False})})
    assert main(["mini-llada", "--only", "ete", "--count", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "### Bits and rounds, mini-llada, 2 items" and lines[4].startswith("| factor 0.5 |")
