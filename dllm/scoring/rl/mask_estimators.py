"""Estimators of an answer's log-probability from canvases with random masks, as published trainers compute it.

They see the answer's text alone, not how it was decoded: any rollouts will do. All are under the model at temperature 1
(but ``prediction``), with a gradient. Masks are drawn by row and sample from a seed, or given; they are returned, so
that old and new policies may see the same ones.

Letters: R rollouts, Lp prompt columns, G answer columns, K canvases of a row, c canvases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log
from typing import Any

import torch
from torch import Tensor

from dllm.common.errors import UserError, in_choices, in_range
from dllm.common.noise import mixed, uniform
from dllm.contract.setting import Sampling
from dllm.models.bundle import Model
from dllm.scoring.rl.canvas_scores import CanvasScorer, ScoredCells, ScoringLaw, refuse_noise
from dllm.scoring.rl.live_weights import refuse_unlearning
from dllm.scoring.rl.rollouts import Origin, Rollouts, refuse_limit
from dllm.scoring.rl.trajectories import laid

MASK_KINDS = ("all", "random", "block_all", "block_random")


@dataclass(frozen=True)
class MaskEstimate:
    """What an estimator found."""

    values: Tensor  # [R, G] in nats, 0 at columns that are not scored; of ``elbo`` and ``sandwich`` [R]
    masks: Tensor  # bool, what was masked: an argument ``masks`` of another call
    share: float | None = None  # of ``coupled``: the expected share of masks of its second canvas


def one_step(
    model: Model, rollouts: Rollouts, *, p: float = 0.15, masks: Tensor | None = None, seed: int = 0, **how: Any
) -> MaskEstimate:
    """log p of every column of an answer that is masked whole, where each column of the prompt is masked with
    probability ``p`` (d1, arXiv 2504.12216). masks [R, Lp]: columns of the prompt. how: as in ``scorer_of``."""
    in_range("p", p, 0.0, 1.0)
    scorer = scorer_of(model, rollouts, **how)
    if masks is None:
        masks = _coins(rollouts, seed, rollouts.prompt_ids.shape[1]) < p
    masks = _as_masks(masks, rollouts.prompt_ids.shape) & rollouts.prompt_mask.bool()
    rows = torch.arange(len(rollouts), device=masks.device)
    return MaskEstimate(_log_p(scorer, rollouts, rows, torch.ones_like(rollouts.completion_ids).bool(), masks), masks)


def coupled(
    model: Model,
    rollouts: Rollouts,
    *,
    low: float = 0.2,
    high: float = 0.8,
    masks: Tensor | None = None,
    share: float | None = None,
    seed: int = 0,
    **how: Any,
) -> MaskEstimate:
    """log p of every column, from three canvases: all masked, and a random half and its complement, weighted by their
    expected shares t and 1 - t (DiffuCoder, arXiv 2506.20639). low, high: t is drawn between them, once for all rows.
    masks [R, G], share: of the second canvas, given. how: as in ``scorer_of``."""
    in_range("low", low, 0.0, high)
    scorer = scorer_of(model, rollouts, **how)
    if (masks is None) != (share is None):
        raise UserError("masks and share describe the same canvas: give both, or neither.")
    if masks is None or share is None:
        share = low + (high - low) * float(uniform(seed))
        masks = _coins(rollouts, seed, rollouts.completion_ids.shape[1]) < share
    in_range("share", share, 1e-9, 1 - 1e-9)
    masks = _as_masks(masks, rollouts.completion_ids.shape)
    rows = torch.arange(len(rollouts), device=masks.device).repeat(3)
    masked = torch.cat([torch.ones_like(masks), masks, ~masks])
    whole, half, other = _log_p(scorer, rollouts, rows, masked).chunk(3)
    return MaskEstimate((whole + half / share + other / (1 - share)) / 2, masks, share)


def elbo(
    model: Model,
    rollouts: Rollouts,
    samples: int = 1,
    *,
    coupled: bool = True,
    masks: Tensor | None = None,
    seed: int = 0,
    **how: Any,
) -> MaskEstimate:
    """The evidence lower bound of each answer [R], a mean over ``samples`` canvases. For a canvas with k of the
    answer's n columns masked, coupled: the sum of log p over the masked ones by (n + 1) / k, and that over the others
    on the complement by (n + 1) / (n - k), halved; k is uniform in 0..n, evenly spaced over the rows, and an empty half
    counts as 0 (ESPO, arXiv 2512.03759). Else by n / k, with k uniform in 1..n (BGPO). masks [R, K, G]. how: as in
    ``scorer_of``."""
    in_range("samples", samples, 1, advice="It counts canvases of a row.")
    scorer = scorer_of(model, rollouts, **how)
    free = _free(rollouts)
    count = free.sum(1).double()
    if masks is None:
        masks = torch.stack([_random_count(rollouts, free, seed, sample, coupled) for sample in range(samples)], 1)
    masks = _as_masks(masks, (len(rollouts), masks.shape[1], free.shape[1])) & free[:, None]
    masked = masks.sum(2)  # [R, K]
    halves = [(masks, (count[:, None] + 1) / masked if coupled else count[:, None] / masked)]
    if coupled:
        halves.append((free[:, None] & ~masks, (count[:, None] + 1) / (count[:, None] - masked)))
    rows = torch.arange(len(rollouts), device=free.device).repeat_interleave(masks.shape[1])
    total = torch.zeros((), device=free.device)
    for half, weight in halves:
        log_p = _log_p(scorer, rollouts, rows, half.flatten(0, 1)).sum(1).view(masked.shape)
        total = total + torch.where(half.any(2), log_p * weight.nan_to_num(posinf=0.0).to(log_p.dtype), 0.0)
    return MaskEstimate((total / len(halves)).mean(1), masks)


def sandwich(
    model: Model,
    rollouts: Rollouts,
    advantages: Tensor,
    samples: int = 2,
    *,
    kind: str = "block_random",
    block_length: int = 32,
    p: float = 0.15,
    beta: float = 1.5,
    mix: float = 0.5,
    masks: Tensor | None = None,
    seed: int = 0,
    **how: Any,
) -> MaskEstimate:
    """Bounds of each answer's mean log-probability [R], below where its advantage is positive, and else a mixture with
    an upper one (SPG, arXiv 2510.09541).

    Below: the mean over canvases of the mean log p of masked columns of the text. Above: the mean over the columns that
    some canvas masks of log(mean over canvases of p^beta [masked] / share) / beta, where share is the masked part of
    the text's columns. What follows the text is always masked, and never counted.

    Args:
        advantages: [R], their signs alone.
        samples: canvases of a row (of kind ``all``: 1).
        kind: ``all`` masks the answer; ``random`` any number of the text's columns; ``block_all`` a random block and
            what follows it; ``block_random`` any number of a block's columns, and what follows it.
        block_length: columns of a block.
        p: with which probability another column is masked, too.
        beta, mix: exponent and weight of the upper bound.
        masks: [R, K, Lp + G].
        seed: of the masks.
        how: as in ``scorer_of``.
    """
    in_choices("kind", kind, MASK_KINDS)
    in_range("samples", samples, 1, advice="It counts canvases of a row.")
    in_range("beta", beta, 1e-9)
    in_range("mix", mix, 0.0, 1.0)
    scorer, text = scorer_of(model, rollouts, **how), rollouts.completion_mask.bool() & _free(rollouts)
    longest = rollouts.prompt_ids.shape[1]
    if masks is None:
        masks = torch.stack(
            [_in_kind(rollouts, text, kind, block_length, p, seed, sample) for sample in range(samples)], 1
        )
    masks = _as_masks(masks, (len(rollouts), masks.shape[1], longest + text.shape[1]))
    masked = masks[:, :, longest:] | ~text[:, None]
    rows = torch.arange(len(rollouts), device=text.device).repeat_interleave(masks.shape[1])
    values = _log_p(scorer, rollouts, rows, masked.flatten(0, 1), masks[:, :, :longest].flatten(0, 1))
    log_p, in_text = values.view(masked.shape), masked & text[:, None]  # [R, K, G]
    number = in_text.sum(2)
    below = (torch.where(in_text, log_p, 0.0).sum(2) / number.clamp(min=1)).mean(1)
    share = number.double() / text.sum(1, keepdim=True).clamp(min=1)
    inner = beta * log_p - share.clamp(min=1e-8).log().to(log_p.dtype)[:, :, None]
    some = in_text.any(1)
    inner = torch.where(in_text, inner, -torch.inf).masked_fill(~some[:, None], 0.0)
    column = (inner.logsumexp(1) - log(masks.shape[1])) / beta
    above = torch.where(some, column, 0.0).sum(1) / some.sum(1).clamp(min=1)
    positive = torch.as_tensor(advantages, device=text.device) > 0
    return MaskEstimate(torch.where(positive, below, mix * above + (1 - mix) * below), masks)


def prediction(
    model: Model, rollouts: Rollouts, forward: int, *, tokens: Tensor | None = None, **how: Any
) -> MaskEstimate:
    """Log-probability, at the temperature of the draws and unfiltered, of what a ``forward`` (from 1) proposed at every
    masked column of its canvas (MDPO, arXiv 2508.13148). tokens [R, G]: ids to score instead, -1 where none is. how:
    as in ``scorer_of``."""
    in_range("forward", forward, 1, int(rollouts.width.shape[1]), "It is counted from 1.")
    scorer = scorer_of(model, rollouts, **how)
    if tokens is None:
        if rollouts.draw_ids is None:
            raise UserError("prediction scores what a forward proposed. Decode with rollouts(..., draws=True).")
        tokens = rollouts.draw_ids[:, forward - 1].long()
    if rollouts.canvas_ids is not None:
        answers = rollouts.canvas_ids[:, forward - 1].long()
    else:
        refuse_limit(rollouts, "slices")
        answers = rollouts.at(forward)
    visible = (answers != rollouts.mask_id) & rollouts.asked
    rows = torch.arange(len(rollouts), device=visible.device)
    has_forward = rollouts.width[:, forward - 1] > 0
    canvases = laid(rollouts, rows, visible, torch.where(has_forward, forward - 1, 0), answers)
    row, column = ((tokens >= 0) & rollouts.asked & has_forward[:, None]).nonzero(as_tuple=True)
    heat = rollouts.temperature[row] + torch.finfo(scorer.dtype).eps
    scorer = replace(scorer, law=replace(scorer.law, name="drawn"))
    cells = ScoredCells(row, canvases.start[row] + column, tokens[row, column], heat)
    values = scorer.all(canvases, cells)
    return MaskEstimate(values.new_zeros(tokens.shape).index_put((row, column), values), rollouts.asked & ~visible)


def scorer_of(
    model: Model, rollouts: Rollouts, *, rows: int = 32, checkpoint: bool = False, ban: bool = True
) -> CanvasScorer:
    """What scores the canvases of an estimator. rows, checkpoint, ban: as in ``trajectory_logprobs``. Raises UserError
    for a model of noise, and for weights that cannot learn while gradients are on."""
    refuse_noise(model)
    if torch.is_grad_enabled():
        refuse_unlearning(model)
    sampling = Sampling(**{**vars(rollouts.sampling), "top_p": None, "top_k": None})
    return CanvasScorer(model, ScoringLaw("own", sampling, ban), rows, checkpoint)


def _free(rollouts: Rollouts) -> Tensor:
    """Answer columns [R, G] that are not given."""
    return rollouts.asked & ~rollouts.given


def _log_p(
    scorer: CanvasScorer, rollouts: Rollouts, row: Tensor, masked: Tensor, prompt_masks: Tensor | None = None
) -> Tensor:
    """log p [c, G] of the answers of the rollouts ``row`` [c] at their decided columns among those ``masked`` [c, G].
    prompt_masks [c, Lp]: columns of the prompts that are masked, too."""
    canvases = laid(rollouts, row, ~masked | rollouts.given[row], prompt_masks=prompt_masks)
    is_decided = (rollouts.origin != Origin.GIVEN)[row] & rollouts.asked[row]
    canvas, column = (masked & is_decided).nonzero(as_tuple=True)
    of = row[canvas]
    cells = ScoredCells(
        canvas, canvases.start[canvas] + column, rollouts.completion_ids[of, column], rollouts.temperature[of]
    )
    values = scorer.all(canvases, cells)
    return values.new_zeros(masked.shape).index_put((canvas, column), values)


def _coins(rollouts: Rollouts, seed: int, width: int, sample: int = 0) -> Tensor:
    """Uniform numbers [R, width], float64, by row, sample and column."""
    rows = torch.arange(len(rollouts), device=rollouts.seeds.device)[:, None]
    return uniform(seed, rows, sample, torch.arange(width, device=rows.device))


def _first(rollouts: Rollouts, among: Tensor, count: Tensor, seed: int, sample: int) -> Tensor:
    """``count`` [R] columns of each row, drawn ``among`` [R, G]."""
    coins = _coins(rollouts, seed, among.shape[1], sample).masked_fill(~among, torch.inf)
    return (coins.argsort(1).argsort(1) < count[:, None]) & among


def _random_count(rollouts: Rollouts, free: Tensor, seed: int, sample: int, coupled: bool) -> Tensor:
    """Masks [R, G] of a sample of ``elbo``."""
    total, rows = free.sum(1), torch.arange(len(free), device=free.device)
    if coupled:
        start = float(uniform(seed, sample, 1))
        count = (((start + rows / len(free)) % 1.0) * (total + 1)).long()
    else:
        count = 1 + (uniform(seed, rows, sample, 1) * total).long()
    return _first(rollouts, free, count, mixed(seed, 2).item(), sample)  # type: ignore[arg-type]


def _in_kind(
    rollouts: Rollouts, text: Tensor, kind: str, block_length: int, p: float, seed: int, sample: int
) -> Tensor:
    """Masks [R, Lp + G] of a sample of ``sandwich``."""
    longest, columns = rollouts.prompt_ids.shape[1], torch.arange(text.shape[1], device=text.device)
    rows = torch.arange(len(text), device=text.device)
    length = text.sum(1).clamp(min=1)
    begin = torch.zeros_like(length)
    if kind.startswith("block"):
        blocks = -(-length // block_length)
        begin = (uniform(seed, rows, 3) * blocks).long().add(sample) % blocks * block_length
    inside = text & (columns >= begin[:, None])
    masked = columns >= begin[:, None]
    if kind.endswith("random"):
        end = begin + block_length if kind == "block_random" else length
        part = inside & (columns < end[:, None])
        count = 1 + (uniform(seed, rows, sample, 4) * part.sum(1)).long()
        masked = masked & (~part | _first(rollouts, part, count, seed, sample))
    whole = torch.cat([torch.zeros(len(text), longest, dtype=torch.bool, device=text.device), masked | ~text], 1)
    more = _coins(rollouts, mixed(seed, 5).item(), whole.shape[1], sample) < p  # type: ignore[arg-type]
    exempt = torch.cat([rollouts.prompt_mask == 0, inside], 1)
    if not kind.startswith("block"):  # in blocks, text before the chosen one is masked so, too
        exempt[:, longest:] = True
    return whole | (more & ~exempt)


def _as_masks(masks: Tensor, shape: Any) -> Tensor:
    """The masks as booleans. Raises UserError for another shape."""
    if masks.shape != torch.Size(shape):
        raise UserError(f"masks have the shape {list(masks.shape)}, and must have {list(shape)}.")
    return masks.bool()


ESTIMATORS_BY_NAME: dict[str, Callable[..., MaskEstimate]] = {
    "one_step": one_step,
    "coupled": coupled,
    "elbo": elbo,
    "sandwich": sandwich,
    "prediction": prediction,
}


def estimate(name: str, model: Model, rollouts: Rollouts, *arguments: Any, **how: Any) -> MaskEstimate:
    """The estimator of that ``name``. Raises UserError for another name."""
    in_choices("estimator", name, ESTIMATORS_BY_NAME)
    return ESTIMATORS_BY_NAME[name](model, rollouts, *arguments, **how)
