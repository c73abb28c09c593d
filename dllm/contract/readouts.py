"""Readouts: what a part wants to know of a forward besides the proposals and their confidences.

A part names readouts in its needs, and asks the scores for what they found:

    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=(Statistic("entropy"), HiddenState())),)

    def step(self, view: View, state: State) -> Step:
        hidden = view.scores.of(HiddenState())  # its values [N, n, D], and their columns [N, n]

A readout is a frozen value: parts that ask for equal ones are served once. One of your own extends ``Readout`` and
computes what it wants from ``HeadInput``. Letters: N candidates, L columns, n scored columns, V tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn

from dllm.common.errors import UserError, in_choices
from dllm.common.rowwise import Rowwise
from dllm.contract.canvas import Canvas
from dllm.kernels.row_statistics import ROW_STATISTICS
from dllm.models.config import ModelConfig

F = TypeVar("F", covariant=True)
# The statistics of ``Scores.statistics`` that a part may ask for.
STATISTICS = (*ROW_STATISTICS, "current", "likeliest")


@dataclass(frozen=True)
class ByColumn(Rowwise):
    """Values at the scored columns of each candidate."""

    values: Tensor  # [N, n, ...] what was read there; logits are -inf for banned ids
    columns: Tensor  # [N, n] their columns, ascending (L: no column)

    def spread(self, length: int) -> Tensor:
        """The values by column [N, L, ...]; 0 where nothing was read."""
        out = self.values.new_zeros(len(self.values), length + 1, *self.values.shape[2:])
        at = self.columns.view(*self.columns.shape, *[1] * (self.values.dim() - 2)).expand_as(self.values)
        return out.scatter(1, at, self.values)[:, :length]


@dataclass(frozen=True)
class Lookup(Rowwise):
    """Logits of a few tokens at each scored position, by a product with the head's rows of these tokens alone."""

    shared: ClassVar[tuple[str, ...]] = ("find",)

    columns: Tensor  # [N, n] the scored columns (L: no column)
    source: Tensor  # [N, n, ...] what ``find`` reads
    find: Callable[[Tensor, Tensor], Tensor]  # makes logits [k, K] of ids [k, K]
    triton: bool = False  # our kernels run
    banned: Tensor | None = None  # [N, n, V] ids that a constraint keeps out (None: none)

    def __call__(self, ids: Tensor) -> Tensor:
        """Logits [N, n, K] of ``ids`` [N, n, K] at the scored rows."""
        logits = self.find(self.source.flatten(0, 1), ids.flatten(0, 1)).view(ids.shape)
        return logits if self.banned is None else logits.masked_fill(self.banned.gather(-1, ids), -torch.inf)


class HeadInput(Protocol):
    """What readouts are computed from: one forward of N candidates, at the columns that it scored."""

    @property
    def canvas(self) -> Canvas:
        """The canvases [N] that the forward saw."""

    @property
    def columns(self) -> Tensor:
        """The scored columns [N, n], ascending (L: no column)."""

    @property
    def logits(self) -> Tensor | None:
        """All logits [N, n, V], -inf for banned ids. None: no readout ``stores_logits``."""

    def hidden(self, layer: int | None) -> Tensor:
        """Hidden states [N, n, D] that predict these columns, as they leave a ``layer`` (None: as the head reads them,
        after the last norm). Under guidance, of the canvas as it is."""

    def head(self, hidden: Tensor) -> Tensor:
        """The model's own logits [..., V] of hidden states [..., D] after the last norm, in float32 or wider."""

    def lookup(self) -> Lookup:
        """Reads the logits of a few tokens."""


Disallowed = Callable[[Tensor], Tensor]  # which ids fit nowhere at columns [N, n]: [N, n, V]


class Readout(Generic[F]):
    """Base of all readouts: a frozen dataclass that implements ``read`` and ``width``.

    A readout changes no token: what a decode does without it, it does with it.
    """

    # It is computed by ``read``, once the layers have run. False: the loop makes it while they run.
    behind_head: ClassVar[bool] = True
    reads_hidden: ClassVar[bool] = True  # it reads hidden states, which not every network shows
    reads_attention: ClassVar[bool] = False  # it reads the queries and keys of layers
    extra_queries: ClassVar[bool] = False  # it computes queries beside those of the canvas
    # What it says follows from the model's logits, so it contradicts a rule that changes these or their confidences.
    of_logits: ClassVar[bool] = True
    # a layer whose outgoing hidden states it reads, counted from 0, or from the last by -1 (None: no inner layer)
    layer: int | None = None

    def width(self, config: ModelConfig) -> int:
        """How many numbers it keeps of each scored position. A recorded turn keeps those of one number only."""
        raise NotImplementedError

    def taken(self, statistics: Mapping[str, Tensor], readings: Mapping[Any, Any]) -> F:
        """What it found, from ``Scores.statistics`` and ``Scores.readings``."""
        assert self in readings, f"{self} was read but not declared in any need"
        return cast("F", readings[self])

    def stores_logits(self, head_weight: Tensor | None) -> bool:
        """Whether the forward must keep all logits for it. head_weight: the head's matrix (None: it is quantised)."""
        return False

    def on(self, device: torch.device) -> Readout[F]:
        """The readout with what it holds on ``device``; called once, before the first forward."""
        return self

    def read(self, source: HeadInput) -> F:
        """What it finds: tensors [N, ...], or a ``Rowwise`` dataclass of such."""
        raise NotImplementedError

    def without(self, reading: Any, disallowed: Disallowed) -> Any:
        """What it found, less what the constraints of rows do not allow."""
        return reading


@dataclass(frozen=True)
class Statistic(Readout[Tensor]):
    """A number of each scored position [N, L], float64, 0 elsewhere: an entry of ``Scores.statistics``. One pass over
    the logits makes all that parts ask for, and stores no logits."""

    name: str  # one of ``STATISTICS``, which ``Scores.statistics`` explains

    behind_head = reads_hidden = False

    def __post_init__(self) -> None:
        in_choices("Statistic.name", self.name, STATISTICS)

    @staticmethod
    def of(*names: str) -> tuple[Statistic, ...]:
        """The statistics of these names."""
        return tuple(map(Statistic, names))

    def width(self, config: ModelConfig) -> int:
        return 1

    def taken(self, statistics: Mapping[str, Tensor], readings: Mapping[Any, Any]) -> Tensor:
        assert self.name in statistics, f"{self} was read but not declared in any need"
        return statistics[self.name]


@dataclass(frozen=True)
class AllLogits(Readout[ByColumn]):
    """All logits of each scored position [N, n, V]. In papers: logits."""

    reads_hidden = False

    def width(self, config: ModelConfig) -> int:
        return config.vocab

    def stores_logits(self, head_weight: Tensor | None) -> bool:
        return True

    def read(self, source: HeadInput) -> ByColumn:
        assert source.logits is not None, "stored for this readout"
        return ByColumn(source.logits, source.columns)

    def without(self, reading: ByColumn, disallowed: Disallowed) -> ByColumn:
        return replace(reading, values=reading.values.masked_fill(disallowed(reading.columns), -torch.inf))


@dataclass(frozen=True)
class LogitLookup(Readout[Lookup]):
    """The logits of any few tokens at each scored position, without those of the others."""

    reads_hidden = False

    def width(self, config: ModelConfig) -> int:
        return config.width

    def stores_logits(self, head_weight: Tensor | None) -> bool:
        return head_weight is None

    def read(self, source: HeadInput) -> Lookup:
        return source.lookup()

    def without(self, reading: Lookup, disallowed: Disallowed) -> Lookup:
        return replace(reading, banned=disallowed(reading.columns))


@dataclass(frozen=True)
class HiddenState(Readout[ByColumn]):
    """Hidden states [N, n, D] that predict the scored positions; in a model that predicts from the position before
    (Dream), those of that position. In papers: hidden states, features."""

    layer: int | None = None  # as they leave this layer (None: as the head reads them)

    of_logits = False

    def width(self, config: ModelConfig) -> int:
        return config.width

    def read(self, source: HeadInput) -> ByColumn:
        return ByColumn(source.hidden(self.layer), source.columns)


@dataclass(frozen=True, eq=False)
class Probe(Readout[ByColumn]):
    """What a network of your own says of each hidden state, [N, n, ...]. It is moved to the model's device once, as a
    copy. In papers: probe, auxiliary head."""

    network: nn.Module  # of hidden states [N, n, D]
    numbers: int  # how many it makes of each position
    layer: int | None = None  # as in ``HiddenState``

    of_logits = False

    def width(self, config: ModelConfig) -> int:
        return self.numbers

    def on(self, device: torch.device) -> Probe:
        return replace(self, network=deepcopy(self.network).to(device).eval())

    def read(self, source: HeadInput) -> ByColumn:
        return ByColumn(self.network(source.hidden(self.layer)), source.columns)


@dataclass(frozen=True)
class Shadow(Readout[Tensor]):
    """Log-probability of the token now on the canvas [N, L], at every column of the current block, from an extra query
    that does not see it: a mask that sees every column but its own, and the other shadows. In papers: shadow tokens."""

    behind_head = reads_hidden = False
    extra_queries = True

    def width(self, config: ModelConfig) -> int:
        return 1


@dataclass(frozen=True)
class AttentionMap(Readout["AttentionWeights"]):
    """Attention weights of the rows that predict open masks: a mean over heads and layers. In papers: attention map."""

    layers: int | None = None  # the mean is over this many of the last layers (None: the last quarter)
    received: bool = False  # also what each column gets on average; papers: column sums
    # in models that predict a token at the position before it, read the token's own query instead of that one
    unshifted: bool = False

    behind_head = reads_hidden = of_logits = False
    reads_attention = True

    def width(self, config: ModelConfig) -> int:
        return config.max_length

    def of(self, count: int) -> range:
        """Which of a model's ``count`` layers these are."""
        return range(count - (-(-count // 4) if self.layers is None else self.layers), count)


@dataclass(frozen=True)
class AttentionWeights(Rowwise):
    """Softmax weights of one forward, float32 or wider, averaged over heads and layers as ``AttentionMap`` says. Keys
    that a cache holds from earlier forwards give the weights that these keys have, as in the attention itself. In
    papers: attention map."""

    columns: Tensor  # [N, m] the masks of the open blocks, ascending (L: no column)
    # [N, m, L] of the rows that predict them on every column; 0 on what such a row does not see, and for a row that
    # this forward does not compute
    weights: Tensor
    # [N, L] what each column gets on average from the columns that this forward computes (None: not asked for); papers:
    # attention sinks
    received: Tensor | None

    def between_masks(self, pairs: Tensor) -> Tensor:
        """``pairs`` [N, m, L], such as the weights, of those columns alone [N, m, m]."""
        inside = self.columns.clamp(max=pairs.shape[2] - 1)
        return pairs.gather(2, inside[:, None].expand(-1, inside.shape[1], -1))

    def at_masks(self, values: Tensor) -> Tensor:
        """values [N, L] at those columns [N, m]; 0 elsewhere."""
        inside = self.columns.clamp(max=values.shape[1] - 1)
        return values.gather(1, inside).masked_fill(self.columns >= values.shape[1], 0)

    def scatter_to(self, values: Tensor, over: Tensor) -> Tensor:
        """``over`` [N, L] with values [N, m] at those columns."""
        return torch.cat([over, over[:, :1]], 1).scatter(1, self.columns, values)[:, :-1]


def check_reads(reads: object) -> None:
    """Raise UserError for what is not a tuple of readouts."""
    if isinstance(reads, tuple) and all(isinstance(readout, Readout) for readout in reads):
        return
    raise UserError(f"Need.reads={reads!r} must be a tuple of readouts, such as (Statistic('entropy'),).")
