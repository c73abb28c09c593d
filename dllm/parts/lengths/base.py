"""The contract of a part that says how long a row is: it may grow, be cut, and have masks inserted, turn by turn."""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar

import torch
from torch import Tensor

from dllm.contract import Need, State, Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.clash import Clash
from dllm.contract.reshape import LengthChange
from dllm.contract.traits import LengthTraits, declared
from dllm.models.text.ids import Ids

Search = Generator[int, float, int]  # sizes to try, how sure the model is of each, and the size found


class Length:
    """Base of all parts that say how long rows are. The loop calls ``change`` at the end of every turn if the traits
    say so. Order of calls: ``resolved`` when the model's ids are known, ``start`` once for a batch, then in every
    turn ``change``. B rows, L columns.
    """

    traits: LengthTraits
    clashes: ClassVar[tuple[Clash, ...]] = ()  # what it does not go together with
    per_request: tuple[str, ...] = ()  # names of parameters that may have one entry per request

    def __init_subclass__(cls) -> None:
        declared(cls, "LengthTraits", "change")

    def resolved(self, ids: Ids, most: int) -> Length:
        """The part with the model's ``ids``. most: columns that a prompt and its answer may have together."""
        return self

    def needs(self) -> tuple[Need, ...]:
        """What must be scored for the part, in every forward."""
        return ()

    def search(self, most: int) -> Search:
        """Find the size of a gap of at most ``most`` masks: yields sizes to try, is sent the mean probability of the
        likeliest tokens in a gap of that size, and returns the size. Only parts whose traits say that they probe."""
        raise NotImplementedError

    def start(self, canvas: Canvas) -> State:
        """What the part remembers of the rows of ``canvas`` [B], every tensor [B, ...]."""
        return {}

    def waits(self, state: State) -> Tensor | None:
        """Rows [B] in which nothing is decided yet (None: none ever waits)."""
        return None

    def may_wait(self, canvas: Canvas) -> Tensor:
        """In how many turns more the rows of ``canvas`` [B] may have as much left to decide as they ever had."""
        return torch.zeros_like(canvas.end)

    def change(self, canvas: Canvas, view: View, step: Step, state: State) -> tuple[LengthChange, State]:
        """What becomes of the rows ``canvas`` [B] after a turn, and the changed entries of ``state``. view, step: what
        the sampler saw and decided."""
        raise NotImplementedError
