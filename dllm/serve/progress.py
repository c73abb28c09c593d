"""What clients are told of rows that are decoded: their answers so far, how much of them is final, and guesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dllm.contract import Turn
from dllm.contract.canvas import Canvas
from dllm.serve.jobs import Job, Progress

Guesses = dict[int, tuple[int, float]]  # token and probability by position


def progress_of(turn: Turn, rows: Sequence[int], jobs: Sequence[Job], takes_back: bool) -> list[Progress]:
    """What ``rows``, which decode ``jobs``, look like after a turn. takes_back: as in ``final_end``."""
    at = torch.tensor(rows, device=turn.chosen.device)
    canvas = turn.candidates.select(turn.step.owner.first[at])
    counts = torch.stack([turn.view.blocks.turn, turn.blocks.index, final_end(turn, takes_back)], 1)[at].tolist()
    found = list(map(_progress, jobs, counts, canvas.tokens.tolist(), canvas.masked.tolist()))
    if not any(job.snapshots for job in jobs):
        return found
    turns = turn.ledger.commit_turn[at].masked_fill(canvas.masked, 0).tolist()
    return list(map(_pictured, jobs, found, turns, guesses_of(turn, canvas, at)))


def _progress(job: Job, counts: list[int], tokens: list[int], masked: list[bool]) -> Progress:
    """Of one row, from all its columns. counts: its forwards, its block, and the column where its final part ends."""
    begin, length = job.request.answer_start, len(job.request.tokens)
    forwards, block, end = counts
    return Progress(forwards, block, tokens[begin:length], masked[begin:length], max(0, min(end, length) - begin))


def _pictured(job: Job, progress: Progress, turns: list[int], guesses: Guesses) -> Progress:
    """With what a snapshot shows beside the tokens, if its client wants snapshots."""
    if not job.snapshots:
        return progress
    begin, length = job.request.answer_start, len(job.request.tokens)
    shown = {column - begin: guess for column, guess in guesses.items() if begin <= column < length}
    return replace(progress, turns=turns[begin:length], guesses=shown)


def guesses_of(turn: Turn, canvas: Canvas, at: Tensor) -> list[Guesses]:
    """The model's proposals for what is masked on ``canvas``, the rows ``at`` of the turn, by their columns."""
    token, sure = turn.guesses
    told = (canvas.masked & turn.view.scores.scored[at], token[at], sure[at])
    return [
        {column: (token, sure) for column, (hidden, token, sure) in enumerate(zip(*row, strict=True)) if hidden}
        for row in zip(*(part.tolist() for part in told), strict=True)
    ]


def final_end(turn: Turn, takes_back: bool) -> Tensor:
    """The column [B] before which nothing of a row will change any more. takes_back: the rule or the schedule may undo
    or replace what is in the current block."""
    canvas, owner, blocks = turn.candidates, turn.step.owner, turn.blocks
    end = torch.where(canvas.undecided, canvas.columns, canvas.end[:, None]).amin(1)
    if not owner.is_single:  # final is what all candidates of the row agree on
        length, first = len(canvas.columns), canvas.select(owner.first[owner.row])
        same = (first.tokens == canvas.tokens) & (first.masked == canvas.masked)
        end = torch.minimum(end, torch.where(same, length, canvas.columns).amin(1))
        end = torch.full_like(blocks.begin, length).scatter_reduce(0, owner.row, end, "amin")
    return torch.where(blocks.done, end, torch.minimum(end, blocks.begin)) if takes_back else end
