"""The processes that hold one model together: its ranks, and what they exchange.

Every rank runs the same loop on the same numbers. A sum over ranks gives all of them the same bits, so the next step is
the same on each, and nothing else has to be agreed on. One process alone has the ranks ``ALONE``, which exchange
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dllm.common.errors import UserError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass
class Account:
    """What a rank has exchanged, for tests and reports."""

    sums: int = 0  # calls of ``Ranks.sum``
    summed: int = 0  # their bytes
    gathers: int = 0  # calls of ``Ranks.gather``
    gathered: int = 0  # bytes that this rank has given to them
    numbers: int = 0  # that ``Ranks.number`` has given out

    def clear(self) -> None:
        """Begin again."""
        self.sums = self.summed = self.gathers = self.gathered = 0

    def note_sum(self, x: Tensor) -> None:
        self.sums, self.summed = self.sums + 1, self.summed + x.nbytes

    def note_gather(self, x: Tensor) -> None:
        self.gathers, self.gathered = self.gathers + 1, self.gathered + x.nbytes


@dataclass(frozen=True, eq=False)
class Ranks:
    """One process among those that hold a model."""

    rank: int = 0  # of this process, from 0
    size: int = 1  # how many there are
    group: ProcessGroup | None = None  # exchanges tensors: NCCL on GPUs, gloo on CPUs; None: alone
    control: ProcessGroup | None = None  # exchanges numbers of the host, over gloo; None: alone
    account: Account = field(default_factory=Account)  # of what was exchanged

    @staticmethod
    def joined(size: int | None = None, timeout: timedelta | None = None) -> Ranks:
        """The ranks of this process, in an initialised ``torch.distributed``, whose backend exchanges tensors.

        size: of a group (None: all processes). Each run of ``size`` processes makes a group, and every process of the
        world must call this. timeout: of an exchange (None: torch's own). Raises UserError where torch.distributed is
        not initialised, and for a size that does not divide its processes.
        """
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            raise UserError(
                f"tp={size} needs a process for each rank, and torch.distributed is not initialised. Start "
                f"{size or 'several'} processes with torchrun --nproc_per_node {size or 'N'}, and call "
                "torch.distributed.init_process_group first."
            )
        world, me = dist.get_world_size(), dist.get_rank()
        size = world if size is None else size
        if size < 1 or world % size:
            raise UserError(f"tp={size} must divide the {world} processes that were started.")
        if size == 1:
            return ALONE
        ranks = ALONE
        for first in range(0, world, size):
            members = list(range(first, first + size))
            group = dist.new_group(members, timeout)
            control = dist.new_group(members, timeout, backend="gloo")
            if me in members:
                ranks = Ranks(me - first, size, group, control)
        return ranks

    def sum(self, x: Tensor) -> Tensor:
        """The sum of all ranks' x, which all must have in one shape. x may be overwritten."""
        if self.size == 1:
            return x
        return self._reduced(x, "SUM")

    def sums(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """The sums of several tensors of one shape, in one exchange."""
        return list(parts) if self.size == 1 else list(self.sum(torch.stack(list(parts))))

    def mean(self, x: Tensor) -> Tensor:
        """The mean of all ranks' x. x may be overwritten."""
        return x if self.size == 1 else self.sum(x) / self.size

    def means(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """The means of several tensors of one shape, in one exchange."""
        return list(parts) if self.size == 1 else list(self.mean(torch.stack(list(parts))))

    def norm(self, own: Tensor) -> Tensor:
        """The norms of vectors whose entries ranks share, of the norms of their ``own``."""
        return own if self.size == 1 else self.sum(own.square()).sqrt()

    def largest(self, x: Tensor) -> Tensor:
        """The largest of all ranks' x, element by element. x may be overwritten."""
        if self.size == 1:
            return x
        return self._reduced(x, "MAX")

    def _reduced(self, x: Tensor, how: str) -> Tensor:
        import torch.distributed as dist

        x = x.contiguous()
        self.account.note_sum(x)
        dist.all_reduce(x, getattr(dist.ReduceOp, how), group=self.group)
        return x

    def gather(self, x: Tensor) -> Tensor:
        """x [...] of every rank, in the order of ranks: [size, ...]. All must have one shape."""
        if self.size == 1:
            return x[None]
        import torch.distributed as dist

        x = x.contiguous()
        self.account.note_gather(x)
        out = x.new_empty(self.size * x.numel())
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name since PyTorch 2.13
        gather(out, x.flatten(), group=self.group)
        return out.view(self.size, *x.shape)

    def whole(self, x: Tensor, size: int) -> Tensor:
        """Each rank's slice x [..., v], its ``share`` of ``size`` entries, joined to one [..., size]."""
        if self.size == 1:
            return x
        widest = -(-size // self.size)
        parts = self.gather(torch.nn.functional.pad(x, (0, widest - x.shape[-1])))
        ends = [rank * size // self.size for rank in range(self.size + 1)]
        return torch.cat(
            [part[..., : end - begin] for part, (begin, end) in zip(parts, pairwise(ends), strict=True)], -1
        )

    def least(self, number: int) -> int:
        """The least of all ranks' numbers. For the host, which waits for it."""
        if self.size == 1:
            return number
        import torch.distributed as dist

        tensor = torch.tensor(number)
        dist.all_reduce(tensor, dist.ReduceOp.MIN, group=self.control)
        return int(tensor)

    def number(self) -> int:
        """Another number in each call: a name for memory that is the same on all ranks, where addresses differ."""
        self.account.numbers += 1
        return self.account.numbers

    def share(self, things: int) -> tuple[int, int]:
        """Which of a number of things this rank holds, from and to: shares differ by one at most."""
        return self.rank * things // self.size, (self.rank + 1) * things // self.size


ALONE = Ranks()
