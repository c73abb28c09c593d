"""The views of an answer: every position of the segment hidden in exactly one, clean before it, masked behind it."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from experiments.distill.masking import complementary

MASK = 99
PROMPT, ANSWER = 5, 37  # an answer of four blocks of 8 and 5 tokens more


def drawn(seed: int, block: int | None, answer: int = ANSWER) -> tuple[list[list[int]], list[list[bool]], list[int]]:
    ids = list(range(PROMPT + answer))
    views = complementary(torch.tensor(ids), PROMPT, block, MASK, torch.Generator().manual_seed(seed))
    return views.tokens.tolist(), views.loss.tolist(), ids


@pytest.mark.parametrize("block", [8, 32, None])
def test_each_position_of_the_segment_is_hidden_in_exactly_one_view(block: int | None) -> None:
    starts: Counter[int] = Counter()
    hidden = total = 0
    for seed in range(600):
        tokens, loss, ids = drawn(seed, block)
        inside = [place for place in ids if loss[0][place] or loss[1][place]]
        # What is masked in both views is the tail, what in neither is the clean beginning; between them one of the two.
        masked = [[token == MASK for token in view] for view in tokens]
        both = [place for place in ids if masked[0][place] and masked[1][place]]
        neither = [place for place in ids if not masked[0][place] and not masked[1][place]]
        one = [place for place in ids if masked[0][place] != masked[1][place]]
        assert inside == one and neither + one + both == ids  # three runs, in this order
        assert set(range(PROMPT)) <= set(neither)
        for view, counts, other in zip(tokens, loss, masked, strict=True):
            assert [place for place in ids if counts[place]] == [place for place in inside if other[place]]
            assert all(view[place] in (place, MASK) for place in ids)
        starts[len(neither) - PROMPT] += 1
        if block is None:
            assert len(one) == ANSWER
        else:  # a whole block, or what is left behind the last whole one
            left = ANSWER % block
            assert len(one) == (left if len(neither) - PROMPT == ANSWER - left else block)
        hidden, total = hidden + sum(loss[0]), total + len(one)
    assert abs(hidden / total - 0.5005) < 4 * 0.5 / total**0.5  # the released code's (1 - 0.001) / 2 + 0.001
    wanted = [0] if block is None else range(0, ANSWER + 1, block)
    assert set(starts) == set(wanted)
    mean = 600 / len(wanted)
    assert all(abs(count - mean) < 5 * mean**0.5 for count in starts.values())  # uniform, to five deviations


def test_whole_blocks_alone_leave_an_empty_rest_as_often_as_any_block() -> None:
    empty = sum(not any(map(any, drawn(seed, 8, answer=16)[1])) for seed in range(300))
    assert 70 < empty < 130  # one in three


def test_a_generator_decides_everything() -> None:
    assert drawn(7, 8) == drawn(7, 8) != drawn(8, 8)
