"""Clean text and a noisy copy of its answer in one sequence, from which models with a causal context learn.

The clean columns learn the next token. A block of the copy is what decoding has before it when that block is active:
clean text in front, and some masks inside. Who sees whom follows from the rank and reach that the model's kind of
attention declares for decoding. The prompt has no copy: its columns would repeat the clean ones.

Letters: R rows of a step, B of a group, A columns of the widest answer, L of text, N of copies, S = L + N, M terms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from dllm.models.network.attention_order import AttentionKind
from dllm.models.network.transformer import Transformer
from dllm.models.network.visibility import CausalByRank
from experiments.mini import data
from experiments.mini.forward import logits_at
from experiments.mini.objectives.base import Objective
from experiments.mini.recipe import Recipe
from experiments.mini.tokenizer import EOS, MASK

NEXT = "next token"  # in the log: of the clean text beside a noisy copy
LEAN = 4.0  # see ``noise``


@dataclass(frozen=True)
class Rows:
    """A step's texts. answers [R, A]: with ends of text up to the ``canvas`` [R] of each and beyond. weight [R, A]: of
    each token, 0 beyond its canvas."""

    tasks: list[str]
    prompts: list[list[int]]
    answers: Tensor
    canvas: Tensor
    weight: Tensor

    @property
    def starts(self) -> Tensor:
        """The answers' first columns [R]."""
        return torch.tensor([len(prompt) for prompt in self.prompts])

    def shares(self, terms: Tensor) -> Tensor:
        """Weights [R, A] that sum to 1 over the step, from how often each token counts, ``terms`` [R, A]. Each row is
        over the square root of its weight, as in ``data.Batch.share``."""
        found = terms * self.weight / self.weight.sum(1, keepdim=True) ** 0.5
        return found / found.sum().clamp(min=1e-9)


@dataclass(frozen=True)
class Copies:
    """The noisy copies. number [R, A]: the block of each column. masked, share [R, A]: of the step's loss."""

    number: Tensor
    masked: Tensor
    share: Tensor


@dataclass(frozen=True)
class Streams:
    """A group of rows. tokens, positions [B, S], visible [B, S, S]. Of the terms [M]: the row and column of the logits,
    the target, the task that the log counts it for with what weight, and its share of the loss."""

    tokens: Tensor
    positions: Tensor
    visible: Tensor
    row: Tensor
    column: Tensor
    target: Tensor
    task: Tensor
    weight: Tensor
    shares: Tensor
    tasks: tuple[str, ...]

    def to(self, device: torch.device) -> Streams:
        return replace(self, **data.moved(self, device))

    def share(self) -> Tensor:
        return self.shares

    def counted(self) -> tuple[Tensor, Tensor]:
        return self.task, self.weight


class FromStreams(Objective[Streams]):
    """Base of the objectives that learn from streams."""

    def losses(self, model: Transformer, batch: Streams) -> Tensor:
        logits = logits_at(model, batch.tokens, batch.visible, batch.row, batch.column, batch.positions)
        return F.cross_entropy(logits, batch.target, reduction="none")


def drawn(
    vocab: Tokenizer, recipe: Recipe, step: int, canvas_of: Callable[[Random, int], int]
) -> tuple[Rows, torch.Generator]:
    """The texts of a step, and the generator that goes on. canvas_of: a row's canvas, from the length of its answer. A
    model that is adapted meets all items from the start."""
    rng, generator = data.seeded(recipe.seed, step)
    names, prompts, answers = data.rows_of(
        vocab, recipe.model, rng, recipe.batch, recipe.progress(step), data.MIXES[recipe.requests]
    )
    lengths = torch.tensor([len(answer) for answer in answers])
    canvas = torch.tensor([canvas_of(rng, length) for length in lengths.tolist()])
    widest = int(canvas.max())
    padded = torch.tensor([answer + [EOS] * (widest - len(answer)) for answer in answers])
    column, extra = torch.arange(widest), (canvas - lengths - 1).clamp(min=1)
    behind = (data.EXTRA_EOS_MOST / extra).clamp(max=data.EXTRA_EOS_WEIGHT)
    weight = torch.where(column <= lengths[:, None], 1.0, behind[:, None]) * (column < canvas[:, None])
    return Rows(names, prompts, padded, canvas, weight), generator


def noise(number: Tensor, free: Tensor, block: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Masks [R, A] in blocks of ``block`` columns, by their ``number`` [R, A], and the share [R, A] of its block's
    ``free`` columns [R, A] that is masked.

    Of a block a uniform share, rounded, as published. Which of them is uniform too in half of the rows. In the others
    the later ones rather, by up to LEAN times their place, because decoding mostly goes from left to right.
    """
    rows, width = number.shape
    ratio = torch.rand((rows, int(number.max()) + 1), generator=generator).gather(1, number)
    lean, leans = (torch.rand((rows, 1), generator=generator) for _ in range(2))
    place = torch.arange(width) / block * LEAN * lean * (leans < 0.5)
    score = torch.rand((rows, width), generator=generator) + place
    beside = (number[:, :, None] == number[:, None, :]) & free[:, None, :]
    count = beside.sum(2)
    hidden = (ratio * count).round()
    above = (beside & (score[:, None, :] > score[:, :, None])).sum(2)
    return free & (above < hidden), hidden / count.clamp(min=1)


def grouped(rows: Rows, kind: AttentionKind, shift: int, next_weight: float, copies: Copies | None) -> list[Streams]:
    """The groups of a step. shift: the model's. next_weight: of the clean text's loss, where that of the copies is 1.
    Beside copies, clean text after the first end of text is nothing to learn from."""
    learnt = torch.ones_like(rows.weight) if copies is None else (rows.weight == 1).float()
    following = next_weight * rows.shares(learnt)
    widths = rows.starts + (1 if copies is None else 2) * rows.canvas
    return [packed(rows, kind, shift, following, copies, at) for at in map(torch.tensor, data.grouped(widths.tolist()))]


def packed(
    rows: Rows, kind: AttentionKind, shift: int, following: Tensor, copies: Copies | None, at: Tensor
) -> Streams:
    """The rows ``at`` [B], right-padded. following [R, A]: shares of the clean text."""
    start, canvas = rows.starts[at], rows.canvas[at]
    column, end = torch.arange(int((start + canvas).max())), start + canvas
    place = (column - start[:, None]).clamp(0, rows.answers.shape[1] - 1)  # in the answer
    tokens = rows.answers[at].gather(1, place)
    for to, number in enumerate(at.tolist()):
        tokens[to, : start[to]] = torch.tensor(rows.prompts[number])
    valid, names = column < end[:, None], tuple(rows.tasks[number] for number in at.tolist())
    clean = kind.order(torch.zeros_like(valid), start)
    assert clean is not None, "full attention has no clean text beside it"
    row, n = following[at].nonzero(as_tuple=True)
    there, weight = start[row] + n, rows.weight[at]
    alone = Streams(
        tokens,
        column.expand_as(tokens),
        clean.visible(clean, valid),
        row,
        there - 1,
        tokens[row, there],
        row,
        weight[row, n],
        following[at][row, n],
        names,
    )
    if copies is None:
        return alone
    these = Copies(copies.number[at], copies.masked[at], copies.share[at])
    return with_copies(alone, kind, shift, start, canvas, these, weight)


def with_copies(
    clean: Streams, kind: AttentionKind, shift: int, start: Tensor, canvas: Tensor, copies: Copies, weight: Tensor
) -> Streams:
    """The clean text with a noisy copy of each answer after it."""
    width, n = clean.tokens.shape[1], torch.arange(int(canvas.max()))
    real = n < canvas[:, None]
    column = torch.minimum(start[:, None] + n, (start + canvas)[:, None] - 1)  # of the padding: the last again
    masked, number = copies.masked[:, : len(n)] & real, copies.number[:, : len(n)]
    row, there = masked.nonzero(as_tuple=True)
    outside = torch.full(clean.tokens.shape, -1)
    numbers = outside.scatter(1, column, torch.where(real, number, number.gather(1, canvas[:, None] - 1)))
    holes = torch.zeros_like(outside, dtype=torch.bool).index_put((row, column[row, there]), torch.tensor(True))
    seen = sees(kind, holes, start, numbers).gather(1, column[:, :, None].expand(-1, -1, width))
    own = numbers.gather(1, column)
    valid = torch.arange(width) < (start + canvas)[:, None]
    before = seen & (numbers[:, None, :] < own[:, :, None]) & valid[:, None, :]
    beside = seen.gather(2, column[:, None, :].expand(-1, len(n), -1)) & (own[:, :, None] == own[:, None, :])
    above = torch.cat([clean.visible, torch.zeros(*clean.tokens.shape, len(n), dtype=torch.bool)], 2)
    below = torch.cat([before, beside & real[:, None, :]], 2)
    text = clean.tokens.gather(1, column)
    return Streams(
        torch.cat([clean.tokens, text.masked_fill(masked, MASK)], 1),
        torch.cat([clean.positions, column], 1),
        torch.cat([above, below], 1),
        torch.cat([clean.row, row]),
        torch.cat([clean.column, width + there - shift]),
        torch.cat([clean.target, text[row, there]]),
        torch.cat([torch.full_like(clean.row, len(start)), row]),
        torch.cat([clean.weight, weight[row, there]]),
        torch.cat([clean.shares, copies.share[row, there]]),
        (*clean.tasks, NEXT),
    )


def sees(kind: AttentionKind, masked: Tensor, start: Tensor, number: Tensor) -> Tensor:
    """Which columns [B, L] each column of a copy [B, L] may see when its own block is active: nothing is masked before
    the block, ``masked`` [B, L] inside it, everything after. number [B, L]: of blocks, -1 outside of the answer."""
    rows, width = number.shape
    block = torch.arange(int(number.max()) + 1)[:, None]
    states = (masked[:, None] & (number[:, None] == block)) | (number[:, None] > block)  # [B, blocks, L]
    order = kind.order(states.flatten(0, 1), start.repeat_interleave(len(block)))
    assert order is not None
    rank, reach = (one.unflatten(0, (rows, len(block))) for one in (order.rank, order.reach))
    own = number.clamp(min=0)
    return rank.gather(1, own[:, :, None].expand(-1, -1, width)) <= reach.gather(1, own[:, None]).transpose(1, 2)


BLOCK = 16  # the window of ``experiment=wedlm``; published training has 32 for the same window


class KnownFirst(FromStreams):
    """Blocks count from the text's first column, so that answers begin anywhere in one. A mask's loss is over the
    share of its block that is masked; the next-token loss of the clean text has the same weight as all of these."""

    def batches(self, vocab: Tokenizer, recipe: Recipe, step: int) -> Sequence[Streams]:
        rows, generator = drawn(vocab, recipe, step, canvas_of)
        first = rows.starts[:, None]
        number = (first + torch.arange(rows.answers.shape[1])) // BLOCK - first // BLOCK
        masked, ratio = noise(number, rows.weight > 0, BLOCK, generator)
        share = rows.shares(masked / ratio.clamp(min=1e-8))
        return grouped(rows, CausalByRank(), 0, 1.0, Copies(number, masked, share))


def canvas_of(rng: Random, answer: int) -> int:
    """With ends of text, up to a window of them: the window runs on after the end."""
    return answer + 1 + rng.randint(0, BLOCK)
