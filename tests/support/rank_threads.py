"""Ranks as threads of one process: what gloo and NCCL exchange between processes, added up in the order of ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Semaphore, Thread
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from dllm.parts import Ranks

T = TypeVar("T")


class Apart(AssertionError):
    """Ranks asked for different exchanges."""


class Table:
    """Where threads lay down what they give. One runs at a time, from one exchange to the next: threads that wait for
    each other while all run take a hundred times as long."""

    def __init__(self, size: int) -> None:
        self.size, self.turns = size, [Semaphore(0) for _ in range(size)]
        self.laid, self.done = list[dict[int, Any]](), set[int]()  # of each round; ranks that run no more

    def exchange(self, rank: int, number: int, given: Any) -> list[Any]:
        """What all have given in a round, in the order of ranks."""
        if number == len(self.laid):
            self.laid.append({})
        here = self.laid[number]
        here[rank] = given
        self.pass_on(rank)
        self.turns[rank].acquire()
        if len(here) < self.size:
            raise Apart(f"rank {rank} asks for an exchange, and ranks {sorted({*range(self.size)} - {*here})} do not")
        return [here[one] for one in range(self.size)]

    def pass_on(self, rank: int) -> None:
        """Let the next rank run that is not done."""
        left = [one % self.size for one in range(rank + 1, rank + 1 + self.size) if one % self.size not in self.done]
        if left:
            self.turns[left[0]].release()


@dataclass(frozen=True, eq=False)
class ThreadRanks(Ranks):
    """A thread among those that hold a model. Raises Apart where they ask for exchanges that do not fit."""

    table: Table = field(default_factory=lambda: Table(1))
    rounds: list[str] = field(default_factory=list)  # what was exchanged, in order
    skipped: set[str] = field(default_factory=set)  # ``module.function`` whose sums are left out
    met: set[str] = field(default_factory=set)  # which asked for one

    def _exchange(self, kind: str, x: Tensor) -> list[Tensor]:
        asked = [kind, tuple(x.shape), x.dtype]
        found = self.table.exchange(self.rank, len(self.rounds), (asked, x.clone()))
        self.rounds.append(kind)
        if any(other != asked for other, _ in found):
            raise Apart(f"ranks ask for {[other for other, _ in found]}")
        return [one for _, one in found]

    def _reduced(self, x: Tensor, how: str) -> Tensor:
        self.met.add(site := asking())
        if site in self.skipped:
            return x
        self.account.note_sum(x)
        parts = torch.stack(self._exchange(how, x))
        return parts.sum(0) if how == "SUM" else parts.amax(0)

    def least(self, number: int) -> int:
        return min(map(int, self._exchange("least", torch.tensor(number))))

    def gather(self, x: Tensor) -> Tensor:
        self.account.note_gather(x)
        return torch.stack(self._exchange("gather", x))


def asking() -> str:
    """``module.function`` of the package that asks for an exchange."""
    frame = sys._getframe(2)
    while Path(frame.f_code.co_filename).stem == "ranks":
        assert frame.f_back is not None
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}"


def threads(size: int) -> list[Ranks]:
    """The ranks of one group."""
    table = Table(size)
    return [ThreadRanks(rank, size, table=table) for rank in range(size)]


def together(ranks: Sequence[Ranks], work: Callable[[int], T]) -> list[T]:
    """What ``work`` gives on each rank. Raises what the first of them raised."""
    found, errors = cast("list[Any]", [None] * len(ranks)), list[BaseException]()
    table = cast("ThreadRanks", ranks[0]).table
    table.__init__(len(ranks))  # type: ignore[misc]

    def run(rank: int) -> None:
        cast("ThreadRanks", ranks[rank]).rounds.clear()
        table.turns[rank].acquire()
        try:
            found[rank] = work(rank)
        except BaseException as error:
            errors.append(error)
        table.done.add(rank)
        table.pass_on(rank)

    running = [Thread(target=run, args=(rank,), daemon=True) for rank in range(len(ranks))]
    for thread in running:
        thread.start()
    table.turns[0].release()
    for thread in running:
        thread.join()
    if errors:
        raise next((one for one in errors if not isinstance(one, Apart)), errors[0])
    return found
