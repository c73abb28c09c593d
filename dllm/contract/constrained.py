"""What the loop and the constraints of its rows exchange. Letters as in ``dllm/contract/types.py``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Reproposer(Protocol):
    """What a forward offers to rows under constraints: its logits at a few of the positions that it scored.

    vocab: V. narrow: a draw looks at the likeliest ids only, so that what is drawn depends on what else fits.
    """

    @property
    def vocab(self) -> int: ...

    @property
    def narrow(self) -> bool: ...

    def cold(self) -> Reproposer:
        """The same without draws and filters."""

    def logits(self, row: Tensor, column: Tensor) -> Tensor:
        """Logits [k, V] of candidates ``row`` at ``column`` [k], -inf for banned ids."""

    def log_probabilities(self, row: Tensor, column: Tensor) -> Tensor:
        """Log-probabilities [k, V] in nats, float64, of the model's own distribution, at temperature 1."""

    def pick(self, row: Tensor, column: Tensor, logits: Tensor, allowed: Tensor) -> Tensor:
        """The proposal [k] among the ``allowed`` [k, V], as this forward makes them."""

    def compared(self, row: Tensor, column: Tensor, logits: Tensor, allowed: Tensor) -> Tensor:
        """The numbers [k, V] whose highest a proposal has; -inf outside the ``allowed`` [k, V]."""

    def statistics(
        self, logits: Tensor, row: Tensor, token: Tensor, allowed: Tensor, renormalised: bool
    ) -> dict[str, Tensor]:
        """Confidence and statistics [k] of proposals among the ``allowed`` [k, V]. renormalised: over these ids alone;
        ``own`` is always over all ids, and ``drawn`` over these."""


@dataclass(frozen=True)
class ConstraintMarks:
    """What a constraint changed in a turn."""

    corrected: Tensor  # [B, L] proposals that are not the model's own
    refused: Tensor  # [N, L] commits that wait, since they do not go together with others
    replaced: Tensor  # [N, L] commits of another token than was chosen, so that they go together with others


@dataclass(frozen=True)
class ConstraintReport:
    """What a constraint did to a row."""

    kind: str  # the constraint's name: choice, regex, json_schema, grammar, words
    states: int  # how many states its automaton over tokens has
    classes: int  # how many classes of tokens that automaton tells apart
    fewest: int | None  # tokens of the shortest text that it allows
    compile_seconds: float  # that compiling took, once for all rows of the language
    seconds: float  # of the host, while the row decoded
    corrected: int  # proposals that were not the model's own, counted in every turn
    refused: int  # commits that waited, over all turns (``ConstraintMarks``)
    replaced: int  # commits of another token, over all turns (``ConstraintMarks``)
    restored: int  # answers cut by the end-of-text policy that were taken back, since the rest was needed


class Constrained(Protocol):
    """The constraints of the rows of a batch, as others see them."""

    def report(self, row: int) -> ConstraintReport | None:
        """What a row's constraint has done so far; None: the row is free."""
