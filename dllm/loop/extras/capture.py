"""Attention weights as a readout: what some rows of a forward attend to.

Fused attention returns no weights. So a readout multiplies the rows that were asked for with the keys of a layer once
more, beside the attention itself. m rows over S keys cost 2 m S H h operations and m S H exponentials a layer: for
LLaDA-8B, 32 rows and 600 keys 0.16 GFLOP, against 16 GFLOP for every row of the forward. No map of all heads or layers
is stored: both are averaged as they come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from dllm.common.ranks import ALONE, Ranks
from dllm.common.rowwise import select_or_all
from dllm.contract.canvas import packed
from dllm.contract.readouts import AttentionMap, AttentionWeights, HeadInput
from dllm.loop.extras.base import Extra, ScoredCandidates, Work
from dllm.loop.hidden import HiddenStates
from dllm.models.config import ModelConfig
from dllm.models.network.attention import Visible, attention_weights
from dllm.models.network.packed_calls import Inputs
from dllm.parts.cache.columns import gather_rows
from dllm.parts.cache.passes import Call, ForwardPass

ROWS_AT_ONCE = 64  # whose weights of all heads exist together: 34 MB for 32 heads over 4,096 keys


@dataclass(frozen=True)
class AttentionReadout(Extra):
    """Reads the weights that a part asked for."""

    readout: AttentionMap  # which ones
    config: ModelConfig  # the network's

    def start(self, work: Work) -> AttentionCapture:
        canvas, blocks, length = work.canvas, work.blocks, len(work.canvas.columns)
        where = canvas.undecided & blocks.in_open & blocks.active[:, None]
        columns = packed(where, canvas.columns, blocks.shapes.max_per_row(where, length, True))
        rows, inside = columns, columns.clamp(max=length - 1)
        if not self.readout.unshifted:
            sources = self.config.sources(canvas.masked & canvas.valid, canvas.start)
            rows = torch.where(columns < length, sources.gather(1, inside), length)
        return AttentionCapture(self.readout, self.readout.of(self.config.layers), columns, rows, self.config.ranks)


@dataclass(frozen=True)
class AttentionCapture(Extra):
    """What to read in a forward of N candidates."""

    readout: AttentionMap  # the readout that it serves
    layers: range  # those whose attention weights are averaged
    columns: Tensor  # [N, m] the masks of the open blocks (L: no column)
    rows: Tensor  # [N, m] the columns whose queries are read for them
    ranks: Ranks = ALONE  # that share the heads
    calls: list[tuple[Call, CallCapture]] = field(default_factory=list)  # filled call by call

    def at_call(self, work: Work, forward: ForwardPass, call: Call, inputs: Inputs) -> Inputs:
        """Read along. Under guidance the forward runs 2 N candidates, and those of both halves are read."""
        rows, extra = self.rows.repeat(len(forward.queries) // len(self.rows), 1), forward.shadows.shape[1]
        rows_of_call, planned = (select_or_all(tensor, call.candidates) for tensor in (rows, forward.queries))
        inputs.memory.reader = capture = CallCapture(self, call, rows_of_call, planned, extra)
        self.calls.append((call, capture))
        return inputs

    def finish(self, work: Work, hidden: HiddenStates, source: HeadInput, result: ScoredCandidates) -> ScoredCandidates:
        parts, scores = [capture.means() for _, capture in self.calls], result.scores
        count = len(work.shown.row_id)
        weights = self._gather([part for part, _ in parts], count)
        received = self._gather([part for _, part in parts], count) if self.readout.received else None
        reading = AttentionWeights(self.columns, weights, received)
        return replace(result, scores=replace(scores, readings={**scores.readings, self.readout: reading}))

    def _gather(self, parts: Sequence[Tensor], canvases: int) -> Tensor:
        """[N, ...] from the parts [b, ...] of the calls of so many ``canvases``; 0 for a candidate in no call."""
        count = len(self.columns)
        if len(parts) == 1 and self.calls[0][0].candidates is None:
            return parts[0][:count]
        out = parts[0].new_zeros(canvases, *parts[0].shape[1:])
        for (call, _), part in zip(self.calls, parts, strict=True):
            out[slice(None) if call.candidates is None else call.candidates] = part
        return out[:count]


class CallCapture:
    """Reads along in one call, layer by layer. rows [b, m]: the columns to read of its candidates. planned [b, L]: what
    these compute. In the call they are in R rows, K candidates side by side. extra: rows at the call's end that are no
    column's own."""

    def __init__(self, capture: AttentionCapture, call: Call, rows: Tensor, planned: Tensor, extra: int) -> None:
        self.capture, self.call, self.length, self.extra, self.layers = capture, call, planned.shape[1], extra, 0
        beside, nowhere = call.side_by_side, torch.zeros_like(planned[:, :1])
        planned = torch.cat([planned, nowhere], 1)
        self.rows = rows[:, None] if beside is None else rows[beside.candidates]  # [R, K, m]
        self.planned = planned[:, None] if beside is None else planned[beside.candidates]  # [R, K, L + 1]
        self.total = self.received = torch.zeros((), device=rows.device)

    def reads(self, layer: int) -> bool:
        return layer in self.capture.layers

    def read(self, layer: int, query: Tensor, keys: Tensor, visible: Visible, columns: Tensor | None) -> None:
        """Add a layer: queries [R, K n, H, h] at their columns [R, K n] (None: all in order), keys [R, H_kv, S, h]."""
        home, (count, several) = self.rows.device, self.rows.shape[:2]
        everything = torch.arange(query.shape[1], device=home).expand(count, -1)
        columns = everything if columns is None else columns.to(home)
        ran, mask = query.shape[1] - self.extra, visible.of_queries(0, query.shape[1]).mask
        query, mask = query[:, :ran], mask[:, :ran] if mask is not None and mask.dim() == 3 else mask
        by = columns[:, :ran].unflatten(1, (several, ran // several))  # [R, K, n]
        at = self._places(by)
        first = torch.arange(several, device=home)[:, None] * by.shape[2]
        index = (at.clamp(min=0) + first).flatten(1).to(query.device)
        if self.capture.readout.received:
            whole = mean_weights(query, keys, mask)
            mine, whole = gather_rows(whole, index).to(home), whole.to(home)
            counts = self.planned.gather(2, by)[..., None]
            share = torch.where(counts, whole.unflatten(1, by.shape[1:]), 0).sum(2) / counts.sum(2).clamp(min=1)
            self.received = self.received + self._by_column(share, columns)
        else:
            mask_of_rows = gather_rows(mask, index) if mask is not None and mask.dim() == 3 else mask
            mine = mean_weights(gather_rows(query, index), keys, mask_of_rows).to(home)
        mine = torch.where((at >= 0).flatten(1)[..., None], mine, 0)
        self.total, self.layers = self.total + self._by_column(mine, columns), self.layers + 1

    def means(self) -> tuple[Tensor, Tensor]:
        """Weights [b, m, L], and what each column received [b, L], as means over the layers."""
        assert self.layers == len(self.capture.layers), "a cache that shows its keys shows those of every layer"
        ranks, both, beside = self.capture.ranks, self.capture.readout.received, self.call.side_by_side
        weights = ranks.mean(self.total).unflatten(1, self.rows.shape[1:]) / self.layers
        received = ranks.mean(self.received) / self.layers if both else self.received
        if beside is None:
            return weights[:, 0], received[:, 0] if both else received
        place = beside.row, beside.place
        return weights[place], received[place] if both else received

    def _places(self, by: Tensor) -> Tensor:
        """Where the rows to read are among the computed columns ``by`` [R, K, n]: [R, K, m]; -1: not computed."""
        order = torch.arange(by.shape[2], device=by.device).expand_as(by)
        place = torch.full_like(self.planned, -1, dtype=torch.int64).scatter(2, by, order)
        place[..., self.length] = -1
        return place.gather(2, self.rows)

    def _by_column(self, weights: Tensor, columns: Tensor) -> Tensor:
        """Weights [R, r, S] of the call's keys by the columns of these [R, r, L]. A call without buffers attends to its
        own rows. After the columns of a buffer lie a slot for padding and the candidates' own rows."""
        slots = columns
        if self.call.reach:
            slots = torch.arange(weights.shape[2], device=weights.device).clamp(max=self.length)
            slots = slots.expand(len(columns), -1)
            if self.call.side_by_side is not None:
                slots = torch.cat([slots[:, : self.length + 1], columns], 1)
        out = weights.new_zeros(*weights.shape[:2], self.length + 1)
        return out.scatter_add(2, slots[:, None].expand_as(weights), weights)[..., :-1]


def mean_weights(query: Tensor, keys: Tensor, visible: Tensor | None) -> Tensor:
    """Attention weights [B, r, S], averaged over the heads; arguments as of ``attention_weights``."""
    masks = [visible] * max(-(-query.shape[1] // ROWS_AT_ONCE), 1)
    if visible is not None and visible.dim() == 3:
        masks = list(visible.split(ROWS_AT_ONCE, 1))
    parts = [
        attention_weights(some_rows, keys, mask).mean(1)
        for some_rows, mask in zip(query.split(ROWS_AT_ONCE, 1), masks, strict=True)
    ]
    return torch.cat(parts, 1)
