"""What a part asks of every forward: where it needs scores, and what it reads there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import Tensor

from dllm.common.errors import in_choices
from dllm.contract.canvas import Canvas
from dllm.contract.readouts import Readout, Statistic, check_reads
from dllm.contract.types import BlockState

Region = Literal["block", "suffix", "answer", "ahead", "before"]
REGIONS: tuple[Region, ...] = get_args(Region)


@dataclass(frozen=True)
class Need:
    """What a part needs scored: a region of the canvas, and what it reads there besides token and confidence."""

    # ``block`` (the open blocks), ``suffix`` (from the block's start on), ``answer`` (all of it, or its columns
    # ``span``), ``ahead`` (columns ``span`` from the block's start on, or ``ratio`` of the answer), ``before`` (all up
    # to the open blocks' end)
    region: Region = "block"
    committed: bool = False  # score committed and given positions, too
    span: tuple[int, int] | None = None  # columns of the region, from its origin
    ratio: float | None = None  # the region's length as a share of the answer's
    reads: tuple[Readout[Any], ...] = ()  # what to read there (``dllm.contract.readouts``)
    first_forward_only: bool = False  # only in the forward that opens a block

    def __post_init__(self) -> None:
        in_choices("Need.region", self.region, REGIONS)
        check_reads(self.reads)

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of the statistics among what it reads."""
        return tuple(read.name for read in self.reads if isinstance(read, Statistic))

    def mask(self, canvas: Canvas, blocks: BlockState) -> Tensor:
        """The positions to score [N, L]."""
        wanted = canvas.valid if self.committed else canvas.undecided
        if self.region == "block":
            return wanted & blocks.in_open
        if self.region == "before":
            return wanted & (canvas.columns < blocks.open_end[:, None])
        low, high = self._bounds(canvas, blocks)
        return wanted & (canvas.columns >= low[:, None]) & (canvas.columns < high[:, None])

    def _bounds(self, canvas: Canvas, blocks: BlockState) -> tuple[Tensor, Tensor]:
        if self.region == "suffix":
            return blocks.begin, canvas.end
        origin = blocks.begin if self.region == "ahead" else canvas.start
        if self.ratio is not None:
            return origin, origin + (self.ratio * (canvas.initial_end - canvas.start)).floor().long()
        if self.span is None:
            return origin, canvas.end
        return origin + self.span[0], origin + self.span[1]


def readouts_of(needs: Iterable[Need]) -> list[Readout[Any]]:
    """All readouts of some needs, each once."""
    return list(dict.fromkeys(read for need in needs for read in need.reads))


def read_of_logits(needs: Iterable[Need]) -> list[str]:
    """What needs read that follows from the model's logits: names of statistics, and of the classes of others."""
    reads = [read for read in readouts_of(needs) if read.of_logits]
    return sorted({read.name if isinstance(read, Statistic) else type(read).__name__ for read in reads})
