"""Log-probabilities of a decode's own draws under the weights as they are now, with a gradient.

The sum over committed tokens is the log-probability of the trajectory where the rule does not read the draws (an
order). Where it ranks them by confidence, it takes that of *all* draws, committed or not: ``draws=True``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dllm.common.errors import UserError, in_choices, in_range
from dllm.models.bundle import Model
from dllm.models.network.visibility import InBlocks
from dllm.scoring.rl.canvas_scores import CanvasScorer, ScoredCanvases, ScoredCells, ScoringLaw, refuse_noise
from dllm.scoring.rl.live_weights import refuse_unlearning
from dllm.scoring.rl.rollouts import Origin, Rollouts, refuse_limit

Weigh = Callable[[Tensor, Tensor, Tensor], Tensor]  # log-probabilities, rows and columns [m] to a loss


@dataclass(frozen=True)
class TrajectoryCells:
    """What to score of rollouts, and where it goes."""

    canvases: ScoredCanvases  # to compute
    cells: ScoredCells  # to score [m]
    row: Tensor  # [m] the rollout of each
    column: Tensor  # [m] its answer column
    forward: Tensor | None  # [m] the forward that drew it, from 0 (None: the one of ``step_map``)


def trajectory_logprobs(
    model: Model,
    rollouts: Rollouts,
    *,
    law: str = "own",
    shrink: int = 1,
    shrink_in: str | None = None,
    only: Tensor | None = None,
    draws: bool = False,
    rows: int = 32,
    checkpoint: bool = False,
    ban: bool = True,
    corrected: bool = False,
) -> Tensor:
    """Log-probabilities of what the rollouts drew, under the model's weights as they are, in nats.

    Args:
        model: what decoded them, or another one of the same vocabulary.
        rollouts: what ``decoder.rollouts`` gave.
        law: ``own``, under the model at temperature 1, or ``drawn``, under what was drawn from: tempered and filtered
            by the current weights, where the token itself is always kept. A constraint does not narrow it.
        shrink: forwards that share a canvas, that before the first of them (1: the canvases as decoded).
        shrink_in: forwards are counted in the ``answer``, or in each ``block`` (None: as the model's attention goes).
        only: columns [R, G] to score (None: all that were drawn).
        draws: score everything that the forwards proposed. Needs rollouts with ``draws=True``.
        rows: canvases of a forward.
        checkpoint: keep nothing inside a layer for the backward pass; it is computed again.
        ban: banned ids are impossible, as in the decode (published trainers have no ban).
        corrected: score tokens that a constraint put there, too.

    Returns:
        [R, G], 0 at columns that are not scored; with ``draws`` [R, T, G]. float32, of a float64 model float64.

    Raises:
        UserError: these rollouts lack what the arguments need, or the weights cannot learn while gradients are on
            (``torch.no_grad`` switches them off). Nothing is computed then.
    """
    scorer, work = _work(model, rollouts, law, shrink, shrink_in, only, draws, rows, checkpoint, ban, corrected)
    values = scorer.all(work.canvases, work.cells)
    if work.forward is None:
        return values.new_zeros(rollouts.completion_ids.shape).index_put((work.row, work.column), values)
    assert rollouts.draw_ids is not None, "refused before"
    return values.new_zeros(rollouts.draw_ids.shape).index_put((work.row, work.forward, work.column), values)


def trajectory_backward(
    model: Model,
    rollouts: Rollouts,
    weigh: Weigh,
    *,
    law: str = "own",
    shrink: int = 1,
    shrink_in: str | None = None,
    only: Tensor | None = None,
    draws: bool = False,
    rows: int = 32,
    checkpoint: bool = False,
    ban: bool = True,
    corrected: bool = False,
) -> Tensor:
    """The backward pass of a loss that is a sum over tokens, batch by batch: memory is that of one batch of ``rows``
    canvases.

    Args:
        weigh: called for every batch with its log-probabilities [m], and with row and answer column of each [m];
            returns the batch's share of the loss, whose gradient is added at once.
        model, rollouts, law, shrink, shrink_in, only, draws, rows, checkpoint, ban, corrected: as in
            ``trajectory_logprobs``.

    Returns:
        The loss, without a gradient.

    Raises:
        UserError: as ``trajectory_logprobs``.
    """
    scorer, work = _work(model, rollouts, law, shrink, shrink_in, only, draws, rows, checkpoint, ban, corrected)
    total = torch.zeros((), dtype=scorer.dtype, device=rollouts.seeds.device)
    for numbers, values in scorer.batches(work.canvases, work.cells):
        loss = weigh(values, work.row[numbers], work.column[numbers])
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    return total


def _work(
    model: Model,
    rollouts: Rollouts,
    law: str,
    shrink: int,
    shrink_in: str | None,
    only: Tensor | None,
    draws: bool,
    rows: int,
    checkpoint: bool,
    ban: bool,
    corrected: bool,
) -> tuple[CanvasScorer, TrajectoryCells]:
    """What computes, and what is to be computed. Raises UserError where it cannot be."""
    scorer = CanvasScorer(model, ScoringLaw(law, rollouts.sampling, ban), rows, checkpoint)
    refuse_noise(model)
    if torch.is_grad_enabled():
        refuse_unlearning(model)
    in_range("shrink", shrink, 1, advice="It counts forwards.")
    if shrink_in is not None:
        in_choices("shrink_in", shrink_in, ("answer", "block"))
    if only is not None and only.shape != rollouts.step_map.shape:
        raise UserError(f"only has the shape {list(only.shape)}, and the answers {list(rollouts.step_map.shape)}.")
    if law == "drawn":
        refuse_limit(rollouts, "drawn")
    if (law == "drawn" or draws) and (bent := int(rollouts.bent.sum())):
        raise UserError(
            f"a constraint changed or held up commits in {bent} of {len(rollouts)} rollouts, and which ids it allowed "
            "was not kept. Score with law='own', or select the others: rollouts.select(~rollouts.bent)."
        )
    if draws:
        refuse_limit(rollouts, "draws")
        return scorer, _of_draws(rollouts, shrink, only)
    refuse_limit(rollouts, "slices")
    by_block = rollouts.by_block if shrink_in is None else shrink_in == "block"
    return scorer, slices_of(rollouts, shrink, by_block, only, corrected)


def slices_of(
    rollouts: Rollouts, shrink: int = 1, by_block: bool = False, only: Tensor | None = None, corrected: bool = False
) -> TrajectoryCells:
    """The forwards that left tokens, cut into runs from the front; one canvas each, that before its first forward."""
    origin, step = rollouts.origin, rollouts.step_map.long()
    has_token = (origin == Origin.DRAWN) | (origin == Origin.FORCED) | (origin == Origin.CONSTRAINED)
    run = forward_runs(step, has_token, shrink, rollouts.block.long() if by_block else torch.zeros_like(step))
    is_scored = has_token if corrected else has_token & (origin != Origin.CONSTRAINED)
    is_scored = is_scored if only is None else is_scored & only.bool()
    row, column = is_scored.nonzero(as_tuple=True)
    pairs, canvas = torch.stack([row, run[row, column]], 1).unique(dim=0, return_inverse=True)
    which, number = pairs.unbind(1)
    mine = has_token[which] & (run[which] == number[:, None])
    first = step[which].masked_fill(~mine, torch.iinfo(torch.int64).max).amin(1)
    visible = (origin[which] > Origin.GIVEN) & (step[which] < first[:, None])
    canvases = laid(rollouts, which, visible | rollouts.given[which], first - 1)
    return _cells(rollouts, canvases, canvas, row, column, rollouts.completion_ids[row, column], None)


def forward_runs(step: Tensor, has_token: Tensor, shrink: int, block: Tensor) -> Tensor:
    """Numbers [R, G] of the runs that the forwards ``step`` [R, G] of columns ``has_token`` [R, G] are cut into: the
    distinct forwards of each ``block`` [R, G] of a row, ``shrink`` at a time from the front. Other columns have 0."""
    if not step.numel():
        return step
    count, at = int(step.max()) + 1, torch.where(has_token, block, 0)
    at = at * count + torch.where(has_token, step, 0)
    there = torch.zeros(len(step), int(at.max()) // count + 1, count, dtype=torch.int64, device=step.device)
    flat = there.view(len(step), -1)
    flat.scatter_(1, at, 1)
    there[:, :, 0] = 0  # no forward
    rank = (there.cumsum(2) - 1).clamp(min=0) // shrink
    number = rank + torch.arange(there.shape[1], device=step.device)[:, None] * count
    return number.view(len(step), -1).gather(1, at)


def _of_draws(rollouts: Rollouts, shrink: int, only: Tensor | None) -> TrajectoryCells:
    """Every forward, on its own canvas."""
    if rollouts.draw_ids is None or rollouts.canvas_ids is None:
        raise UserError("draws=True needs what every forward proposed. Decode with rollouts(..., draws=True).")
    if shrink != 1:
        raise UserError(f"shrink={shrink} with draws=True: each forward drew on its own canvas. Use shrink=1.")
    is_draw = rollouts.draw_ids >= 0
    is_draw = is_draw if only is None else is_draw & only.bool()[:, None]
    row, forward, column = is_draw.nonzero(as_tuple=True)
    pairs, canvas = torch.stack([row, forward], 1).unique(dim=0, return_inverse=True)
    answers = rollouts.canvas_ids[pairs[:, 0], pairs[:, 1]].long()
    visible = (answers != rollouts.mask_id) & rollouts.asked[pairs[:, 0]]
    canvases = laid(rollouts, pairs[:, 0], visible, pairs[:, 1], answers)
    tokens = rollouts.draw_ids[row, forward, column].long()
    return _cells(rollouts, canvases, canvas, row, column, tokens, forward)


def _cells(
    rollouts: Rollouts,
    canvases: ScoredCanvases,
    canvas: Tensor,
    row: Tensor,
    column: Tensor,
    token: Tensor,
    forward: Tensor | None,
) -> TrajectoryCells:
    cells = ScoredCells(canvas, canvases.start[canvas] + column, token, rollouts.temperature[row])
    return TrajectoryCells(canvases, cells, row, column, forward)


def laid(
    rollouts: Rollouts,
    row: Tensor,
    visible: Tensor,
    forward: Tensor | None = None,
    answers: Tensor | None = None,
    prompt_masks: Tensor | None = None,
) -> ScoredCanvases:
    """Canvases of the rollouts ``row`` [c] that show the answer columns ``visible`` [c, G], and masks elsewhere.
    forward [c]: as wide as in this forward, from 0 (None: all that was asked for). answers [c, G]: ids (None: as
    decoded). prompt_masks [c, Lp]: columns of the prompts that are masked, too."""
    prompt, answer = rollouts.prompt_ids[row], rollouts.completion_ids[row] if answers is None else answers
    start, inside = rollouts.prompt_mask[row].sum(1), rollouts.asked[row]
    masked = inside & ~visible
    answer = answer.masked_fill(masked, rollouts.mask_id)
    longest, length = prompt.shape[1], prompt.shape[1] + answer.shape[1]
    at = (torch.arange(length, device=row.device) + (longest - start)[:, None]).clamp(max=length - 1)
    before = torch.zeros_like(prompt, dtype=torch.bool)
    prompt_masked = before if prompt_masks is None else prompt_masks
    prompt = prompt.masked_fill(prompt_masked, rollouts.mask_id)
    width = start + inside.sum(1) if forward is None else rollouts.width[row, forward].long()
    canvases = ScoredCanvases(
        tokens=torch.cat([prompt, answer], 1).gather(1, at),
        masked=torch.cat([prompt_masked, masked], 1).gather(1, at),
        given=torch.cat([~before, rollouts.given[row]], 1).gather(1, at),
        width=width,
        start=start,
    )
    return replace(canvases, masked=canvases.masked & ~canvases.beyond(length))


def goes_by_block(model: Model) -> bool:
    """Whether the model's attention goes by blocks, so that trainers cut trajectories within each."""
    return isinstance(model.config.attention, InBlocks)
