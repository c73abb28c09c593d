"""What a task's rows say of every forward, beside the same decode's trace."""

from __future__ import annotations

from typing import Any

import pytest

from dllm import Decoder, load, part
from dllm.parts import DecisionCount, Trace

PROMPTS = ["Latin square:\nA,B,C,D", 'Sort the list:\n["Kai", "Emma", "Hugo"]']


@pytest.mark.parametrize(
    ("cache", "blocks"), [("none", "fixed"), ("dual", "fixed"), ("elastic", "whole"), ("dkv", "fixed")]
)
def test_refreshes_are_those_of_the_trace(cache: str, blocks: str) -> None:
    counted: Any = DecisionCount()
    decoder = Decoder(load("mini-llada"), cache=cache, blocks=blocks, gen_length=32, batch_size=2)
    results = decoder(PROMPTS, trace=True, observe=counted)
    for number, result in enumerate(results):
        columns = counted.columns(number)
        turns = [record.refreshed for record, _ in result.traced().path()]
        layers = max(map(len, turns))
        wide = [[rows > 0 for rows in turn] if len(turn) == layers else [turn[0] > 0] * layers for turn in turns]
        expected = [sum(layer) for layer in zip(*wide, strict=True)]
        found = columns["refreshed_by_layer"]
        assert (found if len(found) == layers else found * layers) == expected
        assert columns["refreshed"] == pytest.approx(sum(expected) / layers, abs=1e-4)
        kept = cache != "none"  # without a cache nothing is refreshed
        assert 0 < columns["refreshed"] <= result.nfe if kept else columns["refreshed"] == 0


def late_by_hand(trace: Trace) -> list[int]:
    """For each forward of a decode's path: its commits whose token was the last proposal of an earlier forward."""
    proposals: dict[int, int] = {}
    found = []
    for record, number in trace.path():
        commits = record.candidates[number]
        same = [proposals.get(at) == token for at, token in zip(commits.positions, commits.tokens, strict=True)]
        found.append(sum(same))
        proposals |= dict(zip(record.guesses.positions, record.guesses.tokens, strict=True))
    return found


@pytest.mark.parametrize(
    ("sampler", "blocks", "cache"),
    [
        ("confidence", "fixed", "none"),
        ("static", "whole", "none"),  # one token a forward: nearly all are late
        ("eb", "fixed", "dual"),
        ("freedave", "fixed", "prefix"),  # several candidates
        ("saber", "fixed", "none"),  # remasks
        ("confidence", "whole", "elastic"),
        ("confidence", "adablock", "none"),
    ],
)
def test_late_commits_are_those_that_an_earlier_forward_proposed(sampler: str, blocks: str, cache: str) -> None:
    """Of five prompts in a batch of two, where rows leave and wider ones join."""
    counted = DecisionCount()
    options = {"delimiter_ids": [204]} if blocks == "adablock" else {}
    decoder = Decoder(
        load("mini-llada"), sampler, part("blocks", blocks, **options), cache, gen_length=24, batch_size=2
    )
    prompts = ["Sort:\n[2, 1]", *PROMPTS, "Reverse the list:\n" + '["Kai", "Emma", "Hugo", "Anna", "Ben"]' * 3, "a"]
    results = decoder(prompts, trace=True, observe=counted)
    every = [(counted.columns(number)["late"], late_by_hand(one.traced())) for number, one in enumerate(results)]
    assert [counts for counts, _ in every] == [expected for _, expected in every]
    assert sum(sum(counts) for counts, _ in every) > 0
    assert all(counts[0] == 0 for counts, _ in every), "nothing was proposed before the first forward"
