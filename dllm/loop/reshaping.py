"""The stage of a turn in which rows change their lengths. Only decodes whose ``length`` part does so have it."""

from __future__ import annotations

from dataclasses import replace

import torch

from dllm.compose.fitted import Parts
from dllm.contract import Turn
from dllm.contract.reshape import Reshape, reshaped
from dllm.loop.rows import Rows
from dllm.models.ids import Ids


def change_lengths(rows: Rows, turn: Turn, parts: Parts, ids: Ids) -> tuple[Rows, Turn]:
    """The rows [B] and their turn after it, with everything that is kept by column in its new column. Every row has one
    candidate."""
    change, state = parts.length.change(rows.candidates, turn.view, turn.step, rows.lengths)
    lengths, reshape, blocks = rows.lengths | state, reshaped(rows.candidates, change), rows.blocks
    if reshape is not None:
        rows = moved(rows, reshape, parts, ids)
        blocks = parts.blocks.follow(rows.candidates, rows.blocks, reshape)
    rows = replace(rows, lengths=lengths, blocks=blocks.closed(parts.length.waits(lengths)))
    turn = replace(turn, candidates=rows.candidates, blocks=rows.blocks, ledger=rows.ledger, reshape=reshape)
    return rows, turn


def moved(rows: Rows, reshape: Reshape, parts: Parts, ids: Ids) -> Rows:
    """Everything of the rows that is kept by column. A row that was full and has grown counts its blocks from the
    column in which it grew."""
    canvas = reshape.canvas(ids.placeholder, ids.eos)
    grid = torch.where(rows.blocks.done & reshape.open.any(1), reshape.before.end, canvas.grid)
    ledger = rows.ledger.reshaped(reshape, rows.blocks.turn)
    return replace(
        rows, candidates=replace(canvas, grid=grid), ledger=ledger, next_positions=reshape.moved(rows.next_positions),
        state=reshape.state(rows.state, parts.sampler.per_block),
        remembered=rows.session.moved(reshape, rows.remembered),
    )  # fmt: skip

