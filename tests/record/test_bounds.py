"""Limits of a decode: by hand, against each other, and against FreeDave itself."""

from __future__ import annotations

from math import log2
from pathlib import Path

import torch

from dllm import Decoder, load
from dllm.record.bounds import (
    GuessRecorder,
    OpenGuesses,
    bits,
    fewest,
    jumps,
    lossless_minimum,
)
from dllm.record.trace import Trace
from dllm.record.turns import Commits, TurnRecord
from dllm.samplers.confidence import Confidence
from dllm.samplers.freedave import FreeDave
from dllm.samplers.static import Static


def guess(
    confidence: dict[int, float], committed: int, argmax: dict[int, int] | None = None, block: int = 0
) -> OpenGuesses:
    at = list(confidence)
    tokens = dict.fromkeys(at, 1) | (argmax or {})
    return OpenGuesses(block, at, [tokens[p] for p in at], list(confidence.values()), [committed], [tokens[committed]])


def test_a_jump_ends_where_the_guess_was_wrong_or_the_block_ends() -> None:
    turns = [
        guess({0: 0.9, 1: 0.8, 2: 0.7}, 0),
        guess({1: 0.5, 2: 0.6}, 2),  # forward 0 would have taken 1
        guess({1: 0.9}, 1),
        guess({3: 0.9, 4: 0.8}, 3, block=1),
        guess({4: 0.8}, 4, {4: 2}, block=1),  # forward 3 said 1
    ]
    assert jumps(turns) == [1, 2, 1, 1, 1]


def test_forwards_are_counted_as_freedave_counts_them() -> None:
    assert fewest([]) == 0
    assert fewest([1]) == 1  # the first forward drafts, the single mask left needs no other
    assert fewest([4, 3, 2, 1]) == 2  # one drafts, one verifies
    assert fewest([4, 3, 2, 1], depth=2) == 3
    assert fewest([1, 1, 1, 1]) == 4
    assert fewest([3, 1, 1, 1]) == 2  # 0 -> 3, and the last is free


def every_path(jump: list[int], at: int = 0) -> int:
    """Forwards after the first one, by trying everything."""
    if at == len(jump):
        return 0
    return (at != len(jump) - 1) + min(every_path(jump, at + step) for step in range(1, jump[at] + 1))


def greedy(jump: list[int]) -> int:
    """Forwards when every jump goes as far as it can: the fewest where t + J(t) never decreases."""
    at = forwards = 0
    while at < len(jump):
        forwards += at != len(jump) - 1
        at += jump[at]
    return forwards + 1


def test_dynamic_programming_equals_trying_everything() -> None:
    noise = torch.Generator().manual_seed(6)
    for _ in range(200):
        jump = [int(torch.randint(1, min(5, 9 - at) + 1, (1,), generator=noise)) for at in range(9)]
        assert fewest(jump) == 1 + every_path(jump) <= greedy(jump)
        steady = [max(jump[: at + 1][earlier] + earlier for earlier in range(at + 1)) - at for at in range(9)]
        assert fewest([max(1, j) for j in steady]) == greedy([max(1, j) for j in steady])


def test_freedave_stays_above_the_minimum_and_the_static_decode_is_it_at_depth_one(tiny: Path) -> None:
    model, prompts = load(tiny), ["w1 w2", "w3 w9 w4", "w5", "w8 w8 w2 w41"]
    seen = GuessRecorder()
    decoder = Decoder(model, Static(), eos="none", gen_length=32, batch_size=3)
    plain = decoder(list(prompts), observe=seen)
    for depth in (2, 4, None):
        draft = Decoder(model, FreeDave(Static(), depth or 32), eos="none", gen_length=32, batch_size=4)(list(prompts))
        for number, (row, other) in enumerate(zip(draft, plain, strict=True)):
            assert row.canvas == other.canvas
            assert lossless_minimum(seen.requests[number], depth) <= row.nfe
            assert lossless_minimum(seen.requests[number], 1) == other.nfe


def test_bits_of_a_trace() -> None:
    record = {"remasked": [[]], "filled": [[]], "queries": [1], "block": (0, 0, 3), "rolled": [[]]}
    turns = [
        TurnRecord(1, 0, [Commits([0, 1], [5, 5], [0.5, 0.25], [False, False])], **record),  # type: ignore[arg-type]
        TurnRecord(2, 0, [Commits([2], [5], [0.125], [True])], **record),  # type: ignore[arg-type]
    ]
    trace = Trace([60] * 3, [0] * 3, 60, 61, 0, 3, turns)
    assert bits(trace) == [3.0, 3.0]


def test_a_threshold_bounds_the_bits_of_what_it_accepts(tiny: Path) -> None:
    row = Decoder(load(tiny), Confidence(0.9), eos="none", gen_length=32)("w1 w2", trace=True)[0]
    assert row.trace is not None and len(bits(row.trace)) == row.nfe
    for record in row.trace.turns:
        commits = record.candidates[0]
        accepted = [p for p, forced in zip(commits.confidence, commits.forced, strict=True) if not forced]
        assert all(-log2(p) <= -log2(0.9) + 1e-9 for p in accepted)
