"""A kept property is computed once for each value."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dllm.parts import kept_property


@dataclass(frozen=True)
class Pair:
    one: Tensor
    other: Tensor

    @kept_property
    def both(self) -> Tensor:
        """Their sum."""
        return self.one + self.other


def test_it_is_computed_once_for_each_value_and_is_no_field() -> None:
    pair = Pair(torch.ones(2), torch.ones(2))
    assert pair.both is pair.both and pair.both.tolist() == [2, 2]
    assert replace(pair, one=torch.zeros(2)).both.tolist() == [1, 1]
    assert isinstance(Pair.both, kept_property) and Pair.both.__doc__ == "Their sum."
