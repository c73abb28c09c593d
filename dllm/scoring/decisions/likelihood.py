"""Log-likelihood of a text after a prompt: two Monte-Carlo bounds of masked diffusion models, and an exact chain.

mc_count      a uniform number of target tokens is masked (LLaDA, Nie et al. 2025, arXiv 2502.09992)
mc_bernoulli  each target token is masked with one probability p, itself uniform (Dream, Ye et al. 2025, 2508.15487)
exact_ar      the chain rule from left to right: token i predicted with i and all after it masked; L forwards

Both bounds have the same expectation: the mean, over all orders of the target's tokens, of the chain in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import fsum

import torch
from torch import Generator, Tensor

from dllm.common.errors import UserError, in_range, nearest
from dllm.models.bundle import Model
from dllm.scoring.decisions.reading import ReadCanvas, Reading, ReadQuery, read_canvases

MaskDraw = tuple[Tensor, Tensor]  # masked [R, T], and the weight [R, T] of each target token's log-probability


@dataclass(frozen=True)
class Estimator:
    """How to estimate. Every target draws from its own generator with the same seed, so that an estimate does not
    depend on what was asked before, and choices of equal length are compared under equal masks."""

    method: str = "mc_count"  # mc_count, mc_bernoulli, chain, pseudo or exact_ar
    samples: int = 128  # of the Monte-Carlo bounds
    rows: int = 8  # canvases in a forward; exact_ar computes each alone
    # weight w of classifier-free guidance: logits are u + (w + 1) (c - u) with u from a masked prompt
    guidance: float = 0.0
    seed: int = 1234  # of every target's generator
    eps: float = 1e-3  # the least share p of masks that mc_bernoulli draws

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
    """x masked tokens of L, weighed L / x. One x is drawn; the other rows of a batch lie evenly spaced after it. Halves
    are rounded up. The published code rounds them to even, which makes odd counts rarer than even ones (L = 4, 8 rows:
    1 and 3 a third as often) and so shifts the expectation."""
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
    masked, weights = torch.ones(length, length).triu().bool(), torch.eye(length)
    yield from zip(masked.split(estimator.rows), weights.split(estimator.rows), strict=True)


METHODS: dict[str, Callable[[Estimator, int, Generator], Iterator[MaskDraw]]] = {
    "mc_count": by_count,
    "mc_bernoulli": by_coin,
    "exact_ar": by_chain,
}


@dataclass(frozen=True)
class Estimate:
    """A log-likelihood, and what it took."""

    value: float  # of the log-likelihood, in nats
    forwards: int  # of the network
    query_tokens: int  # that these forwards computed


@dataclass(frozen=True)
class Likelihood:
    """Estimates log p(target | prompt). The prompt is never masked."""

    model: Model  # the network with its ids
    estimator: Estimator  # how to estimate

    def __call__(self, prompt: Sequence[int], target: Sequence[int]) -> Estimate:
        """Raises UserError when there is no target, no prompt, more tokens than the model takes, or an estimator that a
        model of its attention cannot serve."""
        return self.compare(prompt, [target])[0]

    def compare(self, prompt: Sequence[int], targets: Sequence[Sequence[int]]) -> list[Estimate]:
        """Each target's estimate. Targets share forwards, and canvases that are equal: those of one token have one."""
        for target in targets:
            self._check(prompt, target)
        groups = [self._queries(prompt, target) for target in targets]
        queries = [query for group in groups for query, _ in group]
        readings = iter(read_canvases(self.model, queries, self.estimator.rows, guidance=self.estimator.guidance))
        return [self._sum([(next(readings), weights) for _, weights in group]) for group in groups]

    def _queries(self, prompt: Sequence[int], target: Sequence[int]) -> list[tuple[ReadQuery, list[float]]]:
        """What to read of a target, and the weight of every log-probability. Dream's estimator closes the target with
        an EOS that is neither masked nor counted."""
        tail = [self.model.ids.eos] if self.estimator.method == "mc_bernoulli" else []
        mask, start, queries = self.model.ids.placeholder, len(prompt), list[tuple[ReadQuery, list[float]]]()
        rows = (
            (masks, weight) for pair in self.estimator.draws(len(target)) for masks, weight in zip(*pair, strict=True)
        )
        for masks, weight in rows:
            hide = masks.tolist()
            tokens = (*prompt, *(mask if hid else token for hid, token in zip(hide, target, strict=True)), *tail)
            masked = frozenset(start + at for at, hid in enumerate(hide) if hid)
            terms = [(at, value) for at, value in enumerate(weight.tolist()) if value]
            if terms:
                targets = tuple((start + at, (target[at],)) for at, _ in terms)
                queries.append((ReadQuery(ReadCanvas(tokens, masked, start), targets), [value for _, value in terms]))
        return queries

    @staticmethod
    def _sum(readings: Sequence[tuple[Reading, list[float]]]) -> Estimate:
        value = fsum(p * weight for r, weights in readings for (p,), weight in zip(r.log_p, weights, strict=True))
        return Estimate(value, sum(r.forwards for r, _ in readings), sum(r.query_tokens for r, _ in readings))

    def _check(self, prompt: Sequence[int], target: Sequence[int]) -> None:
        if not prompt or not target:
            raise UserError("a likelihood needs a prompt and a target of at least one token each.")
        kind = self.model.config.attention
        if self.model.ids.mask is None:
            raise UserError(
                f"a likelihood is estimated from masked texts, and undecided positions of {self.model.name} show "
                "noise. Use decide, which reads one slot."
            )
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
