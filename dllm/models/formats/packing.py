"""How files hold the numbers of a tensor in few bits, and the sixteen steps that four bits are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Part = Callable[..., Tensor]  # a stored tensor, or what slices of it name


@dataclass(frozen=True)
class FourBits:
    """Weights [N, D] on sixteen steps of their groups of 32 columns, as int4 products take them: w = q s + z."""

    steps: Tensor  # q, int8 [N, D], from -8 to 7
    sizes: Tensor  # s and z, float32 [N, D / 32, 2]


class Packing(ABC):
    """One tensor in few bits. Rows are those of the tensor [N, D] as it is published."""

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Of all that holds it."""

    @abstractmethod
    def numbers(self, part: Part, begin: int, end: int) -> Tensor:
        """Rows in float32. part: reads what the packing names."""

    def four_bits(self, part: Part, begin: int, end: int) -> FourBits | None:
        """The same rows as steps; None: they are not sixteen steps in groups of 32 columns."""
        return None
