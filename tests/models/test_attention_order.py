"""Who sees whom, against the words of the papers: a permutation, blocks and a triangle, laid out one pair at a time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch

from dllm.models.visibility import (
    FULL,
    AnswerBlocks,
    AttentionKind,
    BlockCausal,
    CausalByRank,
    ContextCausal,
    PromptBlock,
    SeededBlocks,
)

LENGTH = 13
Sees = Callable[[int, int, Sequence[bool], int], bool]


def by_rank(query: int, key: int, masked: Sequence[bool], start: int) -> bool:
    """Places in the published input: known tokens first, then masks, both as they stand; attention there is causal."""
    moved = [at for at in range(LENGTH) if not masked[at]] + [at for at in range(LENGTH) if masked[at]]
    return moved.index(key) <= moved.index(query)


def context(query: int, key: int, masked: Sequence[bool], start: int) -> bool:
    """Causal, and the block that holds the first mask sees itself whole; blocks of 4 count from the answer's start."""
    first = next((at for at in range(LENGTH) if masked[at]), None)
    active = [] if first is None else [at for at in range(start, LENGTH) if (at - start) // 4 == (first - start) // 4]
    return key <= query or (query in active and key in active)


def answer(query: int, key: int, masked: Sequence[bool], start: int) -> bool:
    """Blocks are laid from the answer's start to the right, and from there to the left."""
    ends = [start + 4 * block for block in range(-3, 4)]
    return key < next(end for end in ends if end > query)


def prompt_block(query: int, key: int, masked: Sequence[bool], start: int) -> bool:
    ends = [start, *(start + 4 * block for block in range(1, 5))]
    return key < next(end for end in ends if end > query)


@pytest.mark.parametrize(
    ("kind", "sees"),
    [
        (BlockCausal(4), lambda query, key, masked, start: key // 4 <= query // 4),
        (CausalByRank(), by_rank),
        (ContextCausal(4), context),
        (AnswerBlocks(4), answer),
        (PromptBlock(4), prompt_block),
        (SeededBlocks(4), lambda query, key, masked, start: key // 4 <= query // 4),
    ],
    ids=["block-causal", "causal-by-rank", "context-causal", "answer-blocks", "prompt-block", "seeded-blocks"],
)
def test_a_column_sees_what_the_paper_says(kind: AttentionKind, sees: Sees) -> None:
    draw = random.Random(3)
    start = [draw.randrange(1, 6) for _ in range(40)]
    masked = [[at >= first and draw.random() < share for at in range(LENGTH)]
              for first, share in zip(start, [0, 0.2, 0.5, 0.8, 1] * 8, strict=True)]  # fmt: skip
    order = kind.order(torch.tensor(masked), torch.tensor(start))
    assert order is not None
    visible = order.visible(order, None).tolist()
    for row, (holes, first) in enumerate(zip(masked, start, strict=True)):
        expected = [[sees(query, key, holes, first) for key in range(LENGTH)] for query in range(LENGTH)]
        assert visible[row] == expected


def test_full_attention_is_no_order() -> None:
    masked = torch.zeros(1, LENGTH, dtype=torch.bool)
    assert FULL.order(masked, torch.tensor([0])) is None and FULL.predicted(masked, torch.tensor([0])) is None


def test_the_forward_that_opens_a_block_predicts_its_first_column_alone() -> None:
    """Two blocks of 4 behind a prompt of 3; the second opens when the first is full."""
    kind, start = ContextCausal(4), torch.tensor([3] * 4)
    holes = ["...mmmmmmmm", "....mm.mmmm", ".......mmmm", ".........m."]
    masked = torch.tensor([[sign == "m" for sign in row] for row in holes])
    predicted, alone = (
        ["".join(".x"[int(sign)] for sign in row) for row in found(masked, start)]  # type: ignore[union-attr]
        for found in (kind.predicted, kind.alone)
    )
    assert predicted == ["...x.......", "....xxx....", ".......x...", "........xxx"]
    assert alone == ["...x.......", "...........", ".......x...", "..........."]
    assert kind.pieces(masked, start)[0].tolist() == [0] * 3 + [1] * 4 + [2] * 4


def test_seeds_of_blocks_from_column_0_leave_the_prompts_block_alone() -> None:
    """Blocks of 4; the prompt has 3 columns, so the first seed is column 4."""
    kind, start = SeededBlocks(4), torch.tensor([3] * 3)
    masked = torch.tensor([[sign == "m" for sign in row] for row in ["...mmmmmmmm", "....mmmmmmm", ".....mm.mmm"]])
    predicted, alone = (
        ["".join(".x"[int(sign)] for sign in row) for row in found(masked, start)]
        for found in (kind.predicted, kind.alone)
    )
    assert predicted == [".xxx.......", "....x......", ".....xxx..."]
    assert alone == ["...........", "....x......", "..........."]
