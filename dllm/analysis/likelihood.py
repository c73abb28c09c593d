"""Log-likelihood of a text behind a prompt: two Monte-Carlo bounds of masked diffusion models, and an exact chain.

mc_count      a uniform number of target tokens is masked (LLaDA, Nie et al. 2025, arXiv 2502.09992)
mc_bernoulli  each target token is masked with one probability p, itself uniform (Dream, Ye et al. 2025, 2508.15487)
exact_ar      the chain rule from left to right: token i predicted with i and all behind it masked; L forwards

Both bounds have the same expectation: the mean, over all orders of the target's tokens, of the chain in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from dllm.errors import UserError, in_range, nearest
from dllm.models.bundle import Model
from dllm.models.experts import at_least_float32

MaskDraw = tuple[Tensor, Tensor]  # masked [R, T], and the weight [R, T] of each target token's log-probability
HEAD_ROWS = 128  # rows of logits at a time: of 126,464 columns in float32 they take 65 MB, three to five times


@dataclass(frozen=True)
class Estimator:
    """How to estimate. samples: of the Monte-Carlo bounds, ``rows`` of them in a forward (exact_ar: rows alone).
    guidance w > 0: logits are u + (w + 1) (c - u) with u from a masked prompt. eps: the least p of mc_bernoulli.

    Every target draws from its own generator with the same seed, so that an estimate does not depend on what was
    asked before, and choices of equal length are compared under equal masks.
    """

    method: str = "mc_count"
    samples: int = 128
    rows: int = 8
    guidance: float = 0.0
    seed: int = 1234
    eps: float = 1e-3

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            hint = nearest(str(self.method), METHODS)
            raise UserError(f"likelihood={self.method!r} is unknown; choose one of {', '.join(METHODS)}.{hint}")
        in_range("mc_num", self.samples, 1)
        in_range("mc_batch", self.rows, 1)
        in_range("guidance", self.guidance, 0)
        in_range("eps", self.eps, 1e-9, 1)
        if self.method != "exact_ar" and self.samples % min(self.rows, self.samples):
            raise UserError(f"mc_num={self.samples} must be a multiple of mc_batch={self.rows}.")

    def draws(self, length: int) -> Iterator[MaskDraw]:
        """Masks for a target of ``length`` tokens, batch by batch. Weighted sums over all batches give the mean."""
        if length == 1:  # always masked: both bounds are exact, without noise
            yield torch.ones(1, 1, dtype=torch.bool), torch.ones(1, 1)
            return
        generator = Generator().manual_seed(self.seed)
        yield from METHODS[self.method](self, length, generator)


def by_count(estimator: Estimator, length: int, generator: Generator) -> Iterator[MaskDraw]:
    """x masked tokens of L, weighed L / x. One x is drawn; the other rows of a batch lie evenly spaced behind it.

    Halves are rounded up. The published code rounds them to even, which makes odd counts rarer than even ones
    (L = 4, 8 rows: 1 and 3 a third as often) and so shifts the expectation.
    """
    rows = min(estimator.rows, estimator.samples)
    shift = (2 * torch.arange(rows) * length + rows) // (2 * rows)
    for _ in range(estimator.samples // rows):
        first = torch.randint(1, length + 1, (), generator=generator)
        count = (first + shift - 1) % length + 1
        rank = torch.rand(rows, length, generator=generator).argsort(1).argsort(1)
        masked = rank < count[:, None]
        yield masked, masked * (length / count[:, None]) / estimator.samples


def by_coin(estimator: Estimator, length: int, generator: Generator) -> Iterator[MaskDraw]:
    """Each token masked with p = (1 - eps) t + eps, weighed 1 / p; the t of a batch's rows lie evenly spaced."""
    rows = min(estimator.rows, estimator.samples)
    for _ in range(estimator.samples // rows):
        moment = (torch.rand((), generator=generator) + torch.arange(rows) / rows) % 1
        chance = ((1 - estimator.eps) * moment + estimator.eps)[:, None]
        masked = torch.rand(rows, length, generator=generator) < chance
        yield masked, masked / chance / estimator.samples


def by_chain(estimator: Estimator, length: int, generator: Generator) -> Iterator[MaskDraw]:
    """Row i masks i..L and counts token i alone."""
    masked, counted = torch.ones(length, length).triu().bool(), torch.eye(length)
    yield from zip(masked.split(estimator.rows), counted.split(estimator.rows), strict=True)


METHODS: dict[str, Callable[[Estimator, int, Generator], Iterator[MaskDraw]]] = {
    "mc_count": by_count, "mc_bernoulli": by_coin, "exact_ar": by_chain,
}  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """value: of the log-likelihood, in nats. forwards of the network it took, and their query tokens."""

    value: float
    forwards: int
    query_tokens: int


@dataclass(frozen=True)
class Likelihood:
    """Estimates log p(target | prompt). The prompt is never masked."""

    model: Model
    estimator: Estimator

    def __call__(self, prompt: Sequence[int], target: Sequence[int]) -> Estimate:
        """Raises UserError when there is no target, no prompt, more tokens than the model takes, or an estimator that a
        model of its attention cannot serve."""
        return self.compare(prompt, [target])[0]

    def compare(self, prompt: Sequence[int], targets: Sequence[Sequence[int]]) -> list[Estimate]:
        """Each target's estimate. Targets of one token each share their one forward."""
        for target in targets:
            self._check(prompt, target)
        if all(len(target) == 1 for target in targets):
            canvas, one = self._canvas(prompt, targets[0]), torch.ones(1, 1)
            values = self._log_p(canvas, len(prompt), one.bool(), one, torch.tensor(targets).T)[0].tolist()
            calls = [1, *[0] * (len(targets) - 1)]
            return [Estimate(v, n, n * self._size(canvas, 1)) for v, n in zip(values, calls, strict=True)]
        return [self._estimate(prompt, target) for target in targets]

    def _estimate(self, prompt: Sequence[int], target: Sequence[int]) -> Estimate:
        canvas, value, forwards, queries = self._canvas(prompt, target), 0.0, 0, 0
        for masked, weight in self.estimator.draws(len(target)):
            if masked.any():
                _, at = weight.nonzero(as_tuple=True)
                log_p = self._log_p(canvas, len(prompt), masked, weight, canvas[len(prompt) + at, None])
                value += float(log_p[:, 0] @ weight[weight != 0].double())
                forwards, queries = forwards + 1, queries + self._size(canvas, len(masked))
        return Estimate(value, forwards, queries)

    def _canvas(self, prompt: Sequence[int], target: Sequence[int]) -> Tensor:
        """The ids [L]. Dream's estimator closes the target with an EOS that is neither masked nor counted."""
        tail = [self.model.ids.eos] if self.estimator.method == "mc_bernoulli" else []
        return torch.tensor([*prompt, *target, *tail])

    def _size(self, canvas: Tensor, rows: int) -> int:
        return len(canvas) * rows * (2 if self.estimator.guidance else 1)

    @torch.inference_mode()
    def _log_p(self, canvas: Tensor, start: int, masked: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
        """Log-probabilities [n, k] in float64 of ``tokens`` [n, k] at the n target positions whose ``weight`` is not
        zero, in row-major order. Of the logits [n, V] no more than ``HEAD_ROWS`` rows exist at a time."""
        network, guidance = self.model.transformer, self.estimator.guidance
        rows = canvas.repeat(len(masked), 1)
        is_mask = torch.zeros_like(rows, dtype=torch.bool)
        is_mask[:, start : start + masked.shape[1]] = masked
        rows = rows.masked_fill(is_mask, self.model.ids.mask)
        if guidance:
            blank = rows.clone()
            blank[:, :start] = self.model.ids.mask
            rows, is_mask = torch.cat([rows, blank]), torch.cat([is_mask, is_mask])
        hidden = network.encode(rows.to(network.device), None, is_mask.to(network.device), start)
        row, at = weight.nonzero(as_tuple=True)
        at = self.model.config.sources(is_mask, torch.full((len(rows),), start))[row, start + at]
        parts = []
        for one, column, token in zip(*(x.split(HEAD_ROWS) for x in (row, at, tokens)), strict=True):
            logits = network.head(hidden[one, column])
            logits = logits.to(at_least_float32(logits.dtype))
            if guidance:
                free = network.head(hidden[len(masked) + one, column]).to(logits.dtype)
                logits = free + (guidance + 1) * (logits - free)
            parts.append(F.log_softmax(logits, -1).gather(1, token.to(logits.device)))
        return torch.cat(parts).cpu().double()

    def _check(self, prompt: Sequence[int], target: Sequence[int]) -> None:
        if not prompt or not target:
            raise UserError("a likelihood needs a prompt and a target of at least one token each.")
        kind = self.model.config.attention
        if len(target) > 1 and self.estimator.method != "exact_ar" and not kind.everywhere:
            raise UserError(
                f"likelihood={self.estimator.method} masks tokens anywhere, but this model's attention is "
                f"{kind.is_called}, and it predicts one block at a time. Use likelihood=exact_ar."
            )
        if self.estimator.guidance and kind.causal:
            raise UserError(
                f"guidance={self.estimator.guidance:g} needs a prompt of masks, which means nothing where, as here, "
                f"attention is {kind.is_called}. Set guidance=0."
            )
        limit, length = self.model.config.max_length, len(prompt) + len(target) + 1
        if length > limit:
            raise UserError(
                f"the prompt takes {len(prompt)} tokens and the target {len(target)}, more than the model's limit of "
                f"{limit} with an end-of-text token. Shorten the prompt, or use fewer worked examples."
            )
