"""Distillation: the terms of the loss and the masks against a slow reference."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

import pytest
import torch

from experiments.distill.student import Loss
from experiments.distill.train import complementary


def slow(
    logits: list[list[float]], target: list[int], view: list[int], views: int, everywhere: bool
) -> list[list[float]]:
    """Cross entropy, entropy and share right of each view, position by position."""
    found = []
    for number in range(views):
        crosses, entropies, right = [], [], []
        for row, wanted, of in zip(logits, target, view, strict=True):
            if of != number:
                continue
            crosses.append(-math.log(math.exp(row[wanted]) / sum(map(math.exp, row))))
            right.append(row.index(max(row)) == wanted)
            if right[-1] or everywhere:
                sharp = [math.exp(value / 0.5) for value in row]
                entropies.append(-sum(p / sum(sharp) * math.log(p / sum(sharp)) for p in sharp))
        found.append([sum(values) / len(values) if values else 0.0 for values in (crosses, entropies, right)])
    return found


@pytest.mark.parametrize("certain", ["right", "all"])
def test_terms_are_those_of_a_slow_reference(certain: str) -> None:
    rng = Random(1)
    logits = [[rng.gauss(0, 2) for _ in range(7)] for _ in range(40)]
    target = [rng.choice((row.index(max(row)), rng.randrange(7))) for row in logits]
    view = [rng.choice((0, 1, 3)) for _ in logits]  # view 2 has no masks
    loss = Loss(2.0, certain)
    found = loss.terms(torch.tensor(logits, dtype=torch.float64), torch.tensor(target), torch.tensor(view), 4)
    wanted = slow(logits, target, view, 4, certain == "all")
    assert torch.stack([found.cross_entropy, found.entropy, found.right], 1).tolist() == [
        pytest.approx(row) for row in wanted
    ]
    assert loss(found).tolist() == pytest.approx([cross + 2 * entropy for cross, entropy, _ in wanted])
    assert Loss(0.0)(found).tolist() == pytest.approx([row[0] for row in wanted])


def test_closed_forms() -> None:
    one, place = torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long)
    even = Loss(1.0).terms(torch.zeros(1, 5, dtype=torch.float64), place, one, 1)  # the argmax of a tie is the first
    assert [float(even.cross_entropy), float(even.entropy), float(even.right)] == pytest.approx(
        [math.log(5), math.log(5), 1]
    )
    gap = 1.3  # of two logits; at temperature 0.5 the odds are squared
    two = Loss(1.0).terms(torch.tensor([[gap, 0.0]], dtype=torch.float64), place, one, 1)
    p = 1 / (1 + math.exp(-2 * gap))
    assert float(two.cross_entropy) == pytest.approx(math.log(1 + math.exp(-gap)))
    assert float(two.entropy) == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p))


def test_entropy_pushes_only_where_the_token_is_right_already() -> None:
    target, view = torch.tensor([0, 0]), torch.tensor([0, 0])
    gradients = {}
    for certain in ("right", "all"):
        logits = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], requires_grad=True)  # right, wrong
        loss = Loss(1.0, certain)
        loss.terms(logits, target, view, 1).entropy.sum().backward()
        gradients[certain] = logits.grad
    right, everywhere = gradients["right"], gradients["all"]
    assert right is not None and everywhere is not None
    assert right[0, 0] < 0 and not right[1].any()  # certainty grows there, and there alone
    assert everywhere[1, 1] < 0  # the ablation makes the model surer of its mistake


def test_a_view_without_masks_has_no_loss_and_no_gradient() -> None:
    weight = torch.ones(3, requires_grad=True)
    loss = Loss(2.0)
    none = torch.zeros(0, dtype=torch.long)
    found = loss(loss.terms(torch.zeros(0, 3) * weight, none, none, 2))
    found.sum().backward()
    assert found.tolist() == [0, 0] and weight.grad is not None and not weight.grad.any()


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
