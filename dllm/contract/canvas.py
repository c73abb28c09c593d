"""The canvas: the token sequences being denoised, prompt included, one row per request.

A canvas is immutable: every change makes a new one. Every row begins in column 0, so that no column of it moves when
longer rows join; padding is after its end. What a row sees never depends on its neighbours.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import ClassVar

import torch
from torch import Tensor

from dllm.common import debug
from dllm.common.errors import UserError
from dllm.common.kept_property import kept_property
from dllm.common.rowwise import Rowwise, join, move, select

# A number for all requests, or a sequence or tensor with one entry per request.
PerRequest = float | Sequence[float] | Tensor


@dataclass(frozen=True)
class Request:
    """One sequence to denoise. In papers: prompt."""

    tokens: Sequence[int]  # its ids, masks included; papers: input ids
    masked: Sequence[bool]  # which of them are still to be decided; papers: mask index
    seed: int = 0  # of its noise: with the position and the turn it decides every draw; papers: seed
    # column where the answer begins, and the block grid with it (None: the first masked position); papers: prompt
    # length
    start: int | None = None
    param_index: int | None = None  # its index in per-request parameters (None: its place in the batch)
    temperature: float | None = None  # 0 is the argmax (None: that of ``Canvas.of``); papers: temperature
    infill: bool = False  # what is given after ``start`` was asked for, and belongs to no sampler
    constraint: Hashable | None = None  # what its text must match (one of ``dllm.constraints``; None: anything)
    answer_prefix: str = ""  # the answer's beginning, where it is in the prompt
    gap: int | None = None  # column of a gap whose size is to be found, which is one mask as long as it is not
    # what its size was found by: each size that was tried, in order, and the mean probability of the likeliest tokens
    probes: tuple[tuple[int, float], ...] = ()

    @staticmethod
    def answer(prompt: Sequence[int], length: int, mask_id: int, seed: int = 0) -> Request:
        """A prompt followed by ``length`` masks."""
        tokens = [*prompt, *([mask_id] * length)]
        return Request(tokens, [False] * len(prompt) + [True] * length, seed, len(prompt))

    @property
    def first_mask(self) -> int:
        """Its column, or where the request ends if it has none."""
        return list(self.masked).index(True) if any(self.masked) else len(self.tokens)

    @property
    def answer_start(self) -> int:
        return self.first_mask if self.start is None else self.start

    @property
    def infill_prefix(self) -> Sequence[int] | None:
        """Ids before the answer that begin an infilling's text. None: a plain answer, which ends at its first end of
        text: after its first gap, nothing is given."""
        gap = self.first_mask
        if (self.start is not None and not self.infill) or all(self.masked[gap:]):
            return None
        return [] if self.start is not None else self.tokens[:gap]


@dataclass(frozen=True)
class Canvas(Rowwise):
    """B rows of L columns, being denoised. Every change makes a new value. In papers: x, sequence."""

    shared: ClassVar[tuple[str, ...]] = ("columns",)

    tokens: Tensor  # [B, L] ids, as the next forward sees them; papers: x
    masked: Tensor  # [B, L] still to be decided; papers: mask index
    valid: Tensor  # [B, L] attended to (False: padding, or cut off); papers: attention mask
    given: Tensor  # [B, L] there at the start; never changes; papers: prompt index
    tail: Tensor  # [B, L] columns after all given text, where an end of text ends the answer
    start: Tensor  # [B] column where the answer begins; papers: prompt length
    grid: Tensor  # [B] column that blocks count from: the answer's start, or 0 in block-causal models
    end: Tensor  # [B] column after the last one that may still be decided
    initial_end: Tensor  # [B] what ``end`` was at the start; papers: generation length
    shortened: Tensor  # [B] whether an end-of-text policy shortened the row
    seed: Tensor  # [B] seed of the row's noise; papers: seed
    temperature: Tensor  # [B] float64; 0 is the argmax; papers: temperature
    row_id: Tensor  # [B] the row's id in its batch
    param_index: Tensor  # [B] its index in per-request parameters
    columns: Tensor  # [L] 0 to L - 1

    @staticmethod
    def of(
        requests: Sequence[Request],
        pad_id: int,
        device: torch.device | str = "cpu",
        grid_at_zero: bool = False,
        temperature: PerRequest = 0.0,
        names: Sequence[int] | None = None,
        step: int = 1,
    ) -> Canvas:
        """Lay requests out as one batch, padded to the longest, or to the next multiple of ``step``.

        Blocks count from the answer's start, or with ``grid_at_zero`` from column 0 (block-causal models).
        temperature: of the requests that name none; a sequence or tensor has one entry per request. names: of the rows
        (None: 0, 1, ...). Raises UserError for an empty request, and if there are fewer temperatures than requests.
        """
        for number, request in enumerate(requests):
            if not request.tokens:
                raise UserError(f"request {number} is empty: give it at least one token or one mask.")
        start = torch.tensor([request.answer_start for request in requests])
        end = torch.tensor([len(request.tokens) for request in requests])
        columns = torch.arange(-(-max(len(request.tokens) for request in requests) // step) * step)
        valid = columns < end[:, None]
        pairs = [pair for request in requests for pair in zip(request.tokens, request.masked, strict=True)]
        ids, hidden = torch.tensor(pairs).unbind(1)
        tokens = torch.full(valid.shape, pad_id).masked_scatter(valid, ids)
        masked = torch.zeros_like(valid).masked_scatter(valid, hidden.bool())
        given = valid & ~masked
        last, wide = torch.where(given, columns, -1).amax(1, keepdim=True), torch.float64
        canvas = Canvas(
            tokens=tokens,
            masked=masked,
            valid=valid,
            given=given,
            tail=valid & (columns > last),
            start=start,
            grid=torch.zeros_like(start) if grid_at_zero else start,
            end=end,
            initial_end=end,
            shortened=torch.zeros_like(start, dtype=torch.bool),
            seed=torch.tensor([request.seed for request in requests]),
            temperature=torch.tensor([nan if r.temperature is None else r.temperature for r in requests], dtype=wide),
            row_id=torch.tensor(range(len(requests)) if names is None else names),
            columns=columns,
            param_index=torch.tensor([i if r.param_index is None else r.param_index for i, r in enumerate(requests)]),
        )
        own, usual = canvas.temperature, per_row(temperature, canvas)
        return move(replace(canvas, temperature=torch.where(own.isnan(), usual, own)), device)

    @property
    def positions(self) -> Tensor:
        """Position of each column in its row [B, L]."""
        return self.columns.expand_as(self.tokens)

    @kept_property
    def undecided(self) -> Tensor:
        """Masked positions that may still be decided [B, L]."""
        return self.masked & (self.columns < self.end[:, None])

    @property
    def committed(self) -> Tensor:
        """Positions that this decode has decided [B, L]."""
        return self.valid & ~self.given & ~self.masked

    @property
    def revisable(self) -> Tensor:
        """Those of them that may be decided again [B, L]: nothing is after ``end``, where no text depends on it."""
        return self.committed & (self.columns < self.end[:, None])

    @kept_property
    def no_positions(self) -> Tensor:
        """No position at all [B, L]. This very mask is known to be empty without asking the device."""
        return torch.zeros_like(self.masked)

    def commit(self, where: Tensor, tokens: Tensor) -> Canvas:
        """Fix the positions ``where`` [B, L] to ``tokens`` [B, L]."""
        masked = self.masked.masked_fill(where, False)
        return replace(self, tokens=torch.where(where, tokens, self.tokens), masked=masked)

    def show(self, where: Tensor, tokens: Tensor) -> Canvas:
        """Lay ``tokens`` [B, L] at ``where`` [B, L] as what undecided positions show; the others are left alone."""
        return replace(self, tokens=torch.where(where & self.undecided, tokens, self.tokens))

    def remask(self, where: Tensor, mask_id: int) -> Canvas:
        """Undo commits at ``where`` [B, L]; given positions, and what is after ``end``, are left alone."""
        where = where & ~self.given & self.valid & (self.columns < self.end[:, None])
        return replace(self, tokens=self.tokens.masked_fill(where, mask_id), masked=self.masked | where)

    def stop_at(self, end: Tensor, rows: Tensor, attended: bool) -> Canvas:
        """In ``rows`` [B], decide nothing from column ``end`` [B] on. attended False: cut these columns off, too."""
        end = torch.where(rows, torch.minimum(end, self.end), self.end)
        cut = replace(self, end=end, shortened=self.shortened | rows)
        if attended:
            return cut
        stays = (self.columns < end[:, None]) | ~rows[:, None]
        return replace(cut, valid=self.valid & stays, tail=self.tail & stays)

    def select(self, rows: Tensor) -> Canvas:
        """The rows numbered ``rows`` [b], in that order; a row may occur several times (candidates) or never
        (finished)."""
        return select(self, rows)

    def join(self, other: Canvas) -> Canvas:
        """The rows of this batch, then those of another one."""
        wider = max(self, other, key=lambda canvas: len(canvas.columns))
        return replace(join(self, other), columns=wider.columns)


def packed(where: Tensor, columns: Tensor, width: int | None = None) -> Tensor:
    """Columns of the set entries of each row of ``where`` [B, L], ascending, padded with L: [B, w]. ``columns`` [L]: 0
    to L - 1.

    w is ``width``, which no row may exceed; None: the widest row, which costs a copy to the host.
    """
    width = int(where.sum(1).max()) if width is None else width
    assert not debug.ON or int(where.sum(1).amax()) <= width, "a bound is too small: rows would be dropped"
    number = columns[:width].expand(len(where), -1).contiguous()  # how many set entries are before the one
    return torch.searchsorted(where.cumsum(1), number, right=True)


def per_row(value: PerRequest, canvas: Canvas) -> Tensor:
    """A parameter as float64 [B]. Raises UserError if there are fewer entries than requests."""
    value = torch.as_tensor(value, dtype=torch.float64, device=canvas.param_index.device)
    if value.dim() == 0:
        return value.expand(len(canvas.param_index))
    if int(canvas.param_index.max()) >= len(value):
        raise UserError(
            f"a per-request parameter has {len(value)} entries, but there are at least "
            f"{int(canvas.param_index.max()) + 1} requests. Give one number for all, or one entry each."
        )
    return value[canvas.param_index]
