"""What a student is trained on: to give the teacher's tokens, and to be sure where it gives them already."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Loss:
    """beta: weight of the entropies (0: none, plain distillation on the teacher's answers). certain: where entropy is
    penalised, ``right`` (where the argmax is the teacher's token already; elsewhere it would harden mistakes) or
    ``all``. temperature: of the distributions whose entropy it is."""

    beta: float
    certain: str = "right"
    temperature: float = 0.5

    def __call__(self, terms: Terms) -> Tensor:
        """The loss of each view [R]."""
        return terms.cross_entropy + self.beta * terms.entropy

    def terms(self, logits: Tensor, target: Tensor, view: Tensor, views: int) -> Terms:
        """Means over the masked positions M of each of R views. logits [M, V], target [M], view [M]: which it is of."""
        right = logits.argmax(-1) == target
        wanted = right if self.certain == "right" else right | True
        member = (view == view.new_tensor(range(views))[:, None]).to(logits.dtype)  # [R, M]; a sum in a fixed order
        cross_entropy = F.cross_entropy(logits, target, reduction="none")
        return Terms(
            mean(cross_entropy, member), mean(entropy(logits / self.temperature), member * wanted),
            mean(right.to(logits.dtype), member),
        )  # fmt: skip


@dataclass(frozen=True)
class Terms:
    """Of each view [R]: mean cross entropy of its masked positions and mean entropy of the chosen ones, in nats, and
    the share of positions that it has right; 0 without positions."""

    cross_entropy: Tensor
    entropy: Tensor
    right: Tensor


def entropy(logits: Tensor) -> Tensor:
    """In nats, of the distributions of logits [..., V]."""
    logs = logits.log_softmax(-1)
    return -(logs.exp() * logs).sum(-1)


def mean(values: Tensor, member: Tensor) -> Tensor:
    """Means [R] of values [M] over the rows of ``member`` [R, M]; 0 for a row without members."""
    return member @ values / member.sum(1).clamp(min=1)
