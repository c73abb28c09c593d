"""A sampler at play: it is fed hand-written scores turn by turn, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dllm.parts import (
    AllLogits,
    AttentionMap,
    AttentionWeights,
    ByColumn,
    Canvas,
    Fixed,
    LogitLookup,
    Owner,
    Readout,
    Request,
    Sampler,
    Scores,
    Shadow,
    Shared,
    Step,
    UnconstrainedLogits,
    View,
    lookup_stored,
    packed,
    update_rows,
)

PROMPT, MASK, PAD = 2, 60, 61
ATTENTION = (AttentionMap(), AttentionMap(received=True))  # what adas and dawn read by default


class Game:
    """Rows of one answer each, in blocks of ``block`` (None: one block); every number is relative to the answer."""

    def __init__(self, sampler: Sampler, length: int, block: int | None = None, rows: int = 1) -> None:
        self.sampler, self.blocks, self.length = sampler, Fixed(block or length), length
        self.canvas = Canvas.of([Request.answer([0] * PROMPT, length, MASK, seed) for seed in range(rows)], PAD)
        self.span = self.blocks.start(self.canvas, sampler.traits.lookahead)
        self.state = sampler.start(self.canvas, self.blocks)
        self.shared = Shared.of(sampler.shared(), self.canvas.start.device, "sampler")
        self.step: Step = self.view_of(Scores(*[torch.zeros_like(self.canvas.masked)] * 4)).step(
            self.canvas.no_positions
        )

    def view(self, confidence: Any, token: Any = 7, **statistics: Any) -> View:
        """What the sampler sees: one number per answer position, a row or several; logits [B, length, V]."""
        logits = statistics.pop("logits", None)
        rows = torch.arange(PROMPT, PROMPT + self.length).expand(len(self.canvas.tokens), -1)
        known = self.canvas.valid & ~self.canvas.given
        logits = None if logits is None else torch.as_tensor(logits)
        if logits is not None:
            statistics.setdefault("logsumexp", logits.double().logsumexp(-1))
        readings: dict[Readout[Any], Any] = {}
        if "shadow" in statistics:
            readings[Shadow()] = self._lay(statistics.pop("shadow"))
        if logits is not None:
            found = ByColumn(logits, rows)
            readings |= {
                AllLogits(): found,
                UnconstrainedLogits(): found,
                LogitLookup(): lookup_stored(logits, rows, False),
            }
        scores = Scores(
            scored=known,
            token=self._lay(token).long(),
            confidence=self._lay(confidence),
            committable=known,
            statistics={
                name: self._lay(value).long() if name == "likeliest" else self._lay(value)
                for name, value in statistics.items()
            },
            readings=readings,
        )
        self.span = self.span.after_forward()
        return self.view_of(scores)

    def view_of(self, scores: Scores, forced: Tensor | None = None) -> View:
        """The same from other scores, or with positions that a cache forces."""
        owner = Owner.single(len(self.canvas.row_id), self.canvas.start.device)
        return View.of(self.canvas, scores, self.span, forced, owner, self.shared, self.sampler.traits.edits)

    def turn(self, confidence: Any, token: Any = 7, **statistics: Any) -> list[int]:
        """One forward and the step that follows; the positions it committed, of row 0."""
        return self.play(confidence, token, **statistics)[0]

    def play(self, confidence: Any, token: Any = 7, **statistics: Any) -> list[list[int]]:
        view = self.view(confidence, token, **statistics)
        self.step = self.sampler.propose(view, self.state)
        self.state = update_rows(view.active, {**self.state, **self.step.state}, self.state)
        assert self.step.owner.is_single
        self.canvas = applied(self.step, view)
        full, before = self.span.full(self.canvas, self.step.owner), self.span
        if self.sampler.traits.edits:
            full = full & ~self.step.keep_open
        self.span = self.blocks.advance(self.canvas, self.span, self.step.owner, full, self.step.stop)
        self.state = self.sampler.next_block(self.state, self.span.index != before.index)
        return positions(self.step.commit)

    @property
    def accepted(self) -> list[int]:
        """Positions of row 0 that the rule itself accepted in the last turn."""
        assert self.step.accepted is not None
        return positions(self.step.accepted)[0]

    def commit(self, places: Sequence[int], token: int = 7) -> None:
        """Fix positions of every row beforehand."""
        where = torch.zeros_like(self.canvas.masked)
        where[:, [PROMPT + at for at in places]] = True
        self.canvas = self.canvas.commit(where, torch.full_like(self.canvas.tokens, token))
        self.span = self.blocks.start(self.canvas, self.sampler.traits.lookahead)

    def _lay(self, value: Any) -> Tensor:
        rows = len(self.canvas.tokens)
        value = torch.as_tensor(value, dtype=torch.float64)
        answer = value.expand(rows, self.length)
        return torch.cat([answer.new_zeros(rows, PROMPT), answer], 1)


def with_attention(view: View, weights: Tensor, received: Tensor | None = None) -> View:
    """The view with attention weights [B, L, L] of every column on every other, and what each column gets [B, L]."""
    columns = packed(view.canvas.undecided & view.blocks.in_open, view.canvas.columns)
    rows = weights[torch.arange(len(weights))[:, None], columns.clamp(max=weights.shape[1] - 1)]
    rows = rows.masked_fill(columns[..., None] >= weights.shape[1], 0)
    received = weights.mean(1) if received is None else received
    found = AttentionWeights(columns, rows, received)
    return replace(view, scores=replace(view.scores, readings=view.scores.readings | dict.fromkeys(ATTENTION, found)))


def applied(step: Step, view: View) -> Canvas:
    """The candidates that a step makes of the canvas."""
    return step.owner.per_candidate(view.canvas).remask(step.remask, MASK).commit(step.written, step.tokens)


def positions(where: Tensor) -> list[list[int]]:
    """Answer-relative positions of the True entries, by row."""
    return [(row.nonzero()[:, 0] - PROMPT).tolist() for row in where]
