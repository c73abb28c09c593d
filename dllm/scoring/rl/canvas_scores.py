"""Log-probabilities of tokens on given canvases, with a gradient: the differentiable counterpart of
``dllm.scoring.decisions.reading``.

Equal canvases are computed once. The head runs on the hidden states that are asked for, 128 at a time, each chunk under
``torch.utils.checkpoint``: of V = 126,464 logits in float32 a chunk takes 65 MB, and no [.., V] tensor outlives it.

Letters: C canvases, L columns, m cells, each a column of a canvas.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recomputed

from dllm.common.errors import UserError, in_choices, in_range
from dllm.common.rowwise import Rowwise, select
from dllm.contract.setting import Sampling
from dllm.loop.proposals import filtered
from dllm.models.bundle import Model
from dllm.models.network.experts import at_least_float32
from dllm.models.network.layer import Layer, run_layer
from dllm.models.network.memory import Memory
from dllm.models.network.rope import Angles
from dllm.scoring.decisions.reading import HEAD_ROWS

SCORING_LAWS = ("own", "drawn")


@dataclass(frozen=True)
class ScoredCanvases(Rowwise):
    """Canvases to compute, each beginning in column 0 and padded after its ``width``."""

    tokens: Tensor  # [C, L] ids, the mask's where undecided
    masked: Tensor  # [C, L] undecided columns
    given: Tensor  # [C, L] columns that guidance masks: the prompt, and what was given in the answer
    width: Tensor  # [C] valid columns
    start: Tensor  # [C] column where the answer begins

    def distinct(self) -> tuple[ScoredCanvases, Tensor]:
        """Each canvas once, and the number [C] of that of every canvas."""
        length = self.tokens.shape[1]
        tokens = self.tokens.masked_fill(self.beyond(length), 0)
        ids = tokens * 4 + self.masked * 2 + self.given * 1
        keys = torch.cat([ids.masked_fill(self.beyond(length), -1), self.width[:, None], self.start[:, None]], 1)
        unique, inverse = keys.unique(dim=0, return_inverse=True)
        first = torch.full((len(unique),), len(keys), device=keys.device)
        first = first.scatter_reduce(0, inverse, torch.arange(len(keys), device=keys.device), "amin")
        return select(self, first), inverse

    def beyond(self, length: int) -> Tensor:
        """Columns after the width [C, length]."""
        return torch.arange(length, device=self.width.device) >= self.width[:, None]

    def cut(self, length: int) -> ScoredCanvases:
        """Their first columns."""
        return replace(self, **{name: getattr(self, name)[:, :length] for name in ("tokens", "masked", "given")})


@dataclass(frozen=True)
class ScoredCells(Rowwise):
    """Whose log-probabilities are wanted."""

    canvas: Tensor  # [m] number of the canvas
    column: Tensor  # [m] column of it
    token: Tensor  # [m] the token there
    temperature: Tensor  # [m] float64: what the logits are divided by under ``drawn`` (0: nothing is drawn)


@dataclass(frozen=True)
class ScoringLaw:
    """Which distribution the log-probabilities are of."""

    name: str  # ``own``: the model's at temperature 1; ``drawn``: tempered and filtered
    sampling: Sampling  # filters, guidance and bans
    ban: bool = True  # banned ids count as impossible (published trainers have no ban)

    def __post_init__(self) -> None:
        in_choices("law", self.name, SCORING_LAWS)

    def of(self, model: Model, logits: Tensor, cells: ScoredCells, early: Tensor) -> Tensor:
        """Log-probabilities [m] of the cells' tokens from their ``logits`` [m, V], which are the caller's own. early
        [m]: an end of text is banned there."""
        if self.ban:
            for token in model.ids.banned(self.sampling.suppress_mask, self.sampling.forbid_eos):
                logits.select(-1, token).fill_(-torch.inf)
            for end in model.ids.ends if self.sampling.min_tokens else ():
                logits.select(-1, end).masked_fill_(early, -torch.inf)
        at = cells.token[:, None]
        if self.name == "drawn":
            hot = cells.temperature > 0
            logits = logits / torch.where(hot, cells.temperature, 1.0).to(logits.dtype)[:, None]
            if self.sampling.top_p is not None or self.sampling.top_k is not None:
                inside = filtered(logits.detach(), self.sampling.top_p, self.sampling.top_k)
                out = inside.isinf().scatter(1, at, False)  # the token itself stays when the weights have moved
                logits = logits.masked_fill(out, -torch.inf)
        values = logits.gather(1, at)[:, 0] - logits.logsumexp(-1)
        return values if self.name == "own" else torch.where(hot, values, 0.0)


@dataclass(frozen=True)
class CanvasScorer:
    """Computes log-probabilities of cells."""

    model: Model  # whose weights
    law: ScoringLaw  # which distribution
    rows: int = 32  # canvases of a forward
    checkpoint: bool = False  # layers are computed again in the backward pass, instead of kept

    def __post_init__(self) -> None:
        in_range("rows", self.rows, 1, advice="It counts canvases of a forward.")

    @property
    def dtype(self) -> torch.dtype:
        """Of log-probabilities."""
        return at_least_float32(self.model.transformer.dtype)

    def batches(self, canvases: ScoredCanvases, cells: ScoredCells) -> Iterator[tuple[Tensor, Tensor]]:
        """Numbers of cells, and their log-probabilities, batch by batch: of canvases of like width."""
        canvases, number = canvases.distinct()
        place = torch.empty_like(number[: len(canvases.width)])
        order = canvases.width.argsort()
        place[order] = torch.arange(len(order), device=order.device)
        canvases, of_cell = select(canvases, order), place[number[cells.canvas]]
        for begin in range(0, len(order), self.rows):
            mine = ((of_cell >= begin) & (of_cell < begin + self.rows)).nonzero()[:, 0]
            if not len(mine):
                continue
            part = select(canvases, torch.arange(begin, min(begin + self.rows, len(order)), device=order.device))
            part = part.cut(int(part.width.amax()))
            yield mine, self._log_probabilities(part, replace(select(cells, mine), canvas=of_cell[mine] - begin))

    def all(self, canvases: ScoredCanvases, cells: ScoredCells) -> Tensor:
        """Log-probabilities of all cells [m], in their order."""
        batches = list(self.batches(canvases, cells))
        if not batches:
            return torch.zeros(len(cells.token), dtype=self.dtype, device=cells.token.device)
        numbers, values = (torch.cat(parts) for parts in zip(*batches, strict=True))
        return values[numbers.argsort()]

    def _log_probabilities(self, canvases: ScoredCanvases, cells: ScoredCells) -> Tensor:
        hidden = self._hidden_states(canvases)
        early = cells.column < (canvases.start + self.law.sampling.min_tokens)[cells.canvas]
        masked = canvases.masked & ~canvases.beyond(canvases.masked.shape[1])
        source = self.model.config.sources(masked, canvases.start)[cells.canvas, cells.column]
        states = hidden.view(-1, len(canvases.width), *hidden.shape[1:])[:, cells.canvas, source]  # [1 or 2, m, D]
        parts = []
        for begin in range(0, len(cells.token), HEAD_ROWS):
            part = slice(begin, begin + HEAD_ROWS)
            inputs = (
                states[:, part],
                select(cells, torch.arange(*part.indices(len(early)), device=early.device)),
                early[part],
            )
            grads = torch.is_grad_enabled() and states.requires_grad
            parts.append(recomputed(self._head, *inputs, use_reentrant=False) if grads else self._head(*inputs))
        return torch.cat(parts)

    def _head(self, states: Tensor, cells: ScoredCells, early: Tensor) -> Tensor:
        """Log-probabilities [m] from states [1, m, D], or [2, m, D] under guidance."""
        logits = self.model.transformer.logits(states)
        guidance = self.law.sampling.guidance
        if guidance:
            conditional, free = logits
            logits = free + (guidance + 1) * (conditional - free)
        else:
            logits = logits[0]
        if logits.untyped_storage().data_ptr() == states.untyped_storage().data_ptr():
            logits = logits.clone()  # a model of its own class, whose hidden states are its logits
        return self.law.of(self.model, logits, cells, early)

    def _hidden_states(self, canvases: ScoredCanvases) -> Tensor:
        """Hidden states [C, L, D]; under guidance [2 C, L, D], those of the canvases without what is given last."""
        tokens, masked, start = canvases.tokens, canvases.masked, canvases.start
        beyond = canvases.beyond(tokens.shape[1])
        if self.law.sampling.guidance:
            mask = self.model.ids.placeholder
            tokens = torch.cat([tokens, tokens.masked_fill(canvases.given, mask)])
            masked, start, beyond = (torch.cat([tensor, tensor]) for tensor in (masked, start, beyond))
        valid = ~beyond if bool(beyond.any()) else None
        grads = self.checkpoint and torch.is_grad_enabled()
        more: dict[str, Any] = {"run": run_again} if grads else {}
        return self.model.transformer.encode(tokens, valid, masked, start, **more)


def run_again(
    layer: Layer, x: Tensor, residual: Tensor | None, angles: Angles, columns: Tensor | None, memory: Memory, index: int
) -> tuple[Tensor, Tensor]:
    """A layer whose inner values are computed again in the backward pass."""
    arguments = (layer, x, residual, angles, columns, memory, index)
    states: tuple[Tensor, Tensor] = recomputed(run_layer, *arguments, use_reentrant=False)
    return states


def refuse_noise(model: Model) -> None:
    """Raise UserError for a model whose undecided columns show noise."""
    if model.ids.mask is None:
        raise UserError(
            f"undecided columns of {model.name} show noise, and these log-probabilities are of masks. Use a model of "
            "masks."
        )
