"""The terms of the loss: closed forms, and a slow reference that shares no code with it."""

from __future__ import annotations

import math
from random import Random

import pytest
import torch

from experiments.distill.loss import Loss


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
        pytest.approx(row) for row in wanted]  # fmt: skip
    assert loss(found).tolist() == pytest.approx([cross + 2 * entropy for cross, entropy, _ in wanted])
    assert Loss(0.0)(found).tolist() == pytest.approx([row[0] for row in wanted])


def test_closed_forms() -> None:
    one, place = torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long)
    even = Loss(1.0).terms(torch.zeros(1, 5, dtype=torch.float64), place, one, 1)  # the argmax of a tie is the first
    assert [float(even.cross_entropy), float(even.entropy), float(even.right)] == pytest.approx(
        [math.log(5), math.log(5), 1])  # fmt: skip
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
