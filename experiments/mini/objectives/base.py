"""The contract of an objective: what a step learns from, and the losses of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import torch
from tokenizers import Tokenizer
from torch import Tensor

from dllm.models.network.transformer import Transformer
from experiments.mini.recipe import Recipe


class Group(Protocol):
    """Rows that go through the network together, with M terms of the loss."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """What the log's sums are called."""

    def to(self, device: torch.device) -> Group:
        """The same on a device."""

    def share(self) -> Tensor:
        """Weight [M] of each term in the step's loss."""

    def counted(self) -> tuple[Tensor, Tensor]:
        """Of each term [M]: the number of the task that the log counts it for, and its weight there."""


G = TypeVar("G", bound=Group)


class Objective(Generic[G]):
    """What a model learns. Without state: batches are functions of recipe and step."""

    def batches(self, vocab: Tokenizer, recipe: Recipe, step: int) -> Sequence[G]:
        """The groups of a step's rows, drawn from the recipe's seed and the step alone."""
        raise NotImplementedError

    def hardened(self, model: Transformer, batch: G, recipe: Recipe, seed: int) -> G:
        """The batch with what the model itself finds hard."""
        return batch

    def losses(self, model: Transformer, batch: G) -> Tensor:
        """Cross entropies [M] of the terms, in nats."""
        raise NotImplementedError
