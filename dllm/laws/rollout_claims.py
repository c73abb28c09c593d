"""The laws of rollouts, each a function of a trial that raises ``Broken`` where it does not hold. A rule whose tokens
no single forward draws gives no rollouts, and obeys them all. R rows, G answer columns."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from dllm.common.errors import UserError
from dllm.contract import Turn
from dllm.laws.claims import Trial, holds
from dllm.laws.decodes import ids_of, with_mask
from dllm.loop.runner import Runner
from dllm.loop.runtime.runtime import Runtime
from dllm.models.bundle import Model
from dllm.models.network.transformer import Transformer
from dllm.scoring.rl.rollout_checks import refuse_parts
from dllm.scoring.rl.rollouts import Origin, Rollouts
from dllm.scoring.rl.sampled import RolloutRequest, rollouts_of
from dllm.scoring.rl.trajectories import slices_of, trajectory_backward, trajectory_logprobs

# How far log-probabilities of one forward may be apart, in nats.
LOGP_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
SAME_GRADIENT = 1e-10  # of float64, relative to the largest entry


def gives_rollouts(trial: Trial) -> bool:
    """Whether the rule's tokens are draws of single forwards."""
    try:
        refuse_parts(trial.parts)
    except UserError:
        return False
    return True


def law_model(network: Transformer) -> Model:
    """The network as what is loaded."""
    return Model(network, network.config, None, ids_of(network.config), "of the trial", Path())


def law_rollouts(
    trial: Trial, numbers: Sequence[int] | None = None, draws: bool = False
) -> tuple[Rollouts, list[Turn]]:
    """The requests so numbered as rollouts (None: all), and the canvases that the loop showed [B, L], with their rows
    and turns."""
    model, turns = law_model(trial.network), list[Turn]()
    runner = Runner.of(model, replace(trial.parts, sampling=trial.sampling), Runtime("eager"))
    numbers = range(len(trial.requests)) if numbers is None else numbers
    requests = [with_mask(trial.requests[number], model.ids.placeholder) for number in numbers]
    return rollouts_of(runner, requests, RolloutRequest(draws=draws), str, observe=turns.append), turns


def a_rollout_is_scored_again(trial: Trial) -> None:
    """Under unchanged weights the log-probabilities of every draw are those that the decode noted, by slices or draw by
    draw, under both laws. Where a cache is not exact, nothing is claimed."""
    if not gives_rollouts(trial) or not trial.parts.cache.traits.exact:
        return
    rollouts, _ = law_rollouts(trial, draws=True)
    model, near = law_model(trial.network), LOGP_TOLERANCE[trial.network.dtype]
    is_draw = (rollouts.origin == Origin.DRAWN) | (rollouts.origin == Origin.FORCED)
    for law in ("own", "drawn"):
        noted = getattr(rollouts, f"{law}_logps")
        if "slices" not in rollouts.limits and law not in rollouts.limits:
            with torch.no_grad():
                logps = trajectory_logprobs(model, rollouts, law=law)
            _near(logps, torch.where(is_draw, noted, 0.0), near, f"{law}, by slices")
        if "draws" not in rollouts.limits and law not in rollouts.limits:
            with torch.no_grad():
                each = trajectory_logprobs(model, rollouts, law=law, draws=True)
            at = (rollouts.step_map.long() - 1).clamp(min=0)[:, None]
            _near(
                each.gather(1, at)[:, 0].masked_fill(~is_draw, 0.0),
                torch.where(is_draw, noted, 0.0),
                near,
                f"{law}, drawn",
            )


def _near(again: Tensor, noted: Tensor, near: float, name: str) -> None:
    off = (again - noted).abs()
    row, column = divmod(int(off.nan_to_num(torch.inf).flatten().argmax().item()), again.shape[1])
    holds(
        bool((off <= near).all()),
        f"row {row}, column {column}, {name}: noted {noted[row, column]:.15g}, again {again[row, column]:.15g}",
    )


def a_rollout_is_alone(trial: Trial) -> None:
    """A row's rollout is the same alone and among others."""
    if not gives_rollouts(trial):
        return
    together, _ = law_rollouts(trial)
    near = LOGP_TOLERANCE[trial.network.dtype]
    for number in range(len(trial.requests)):
        alone, _ = law_rollouts(trial, [number])
        length = alone.completion_ids.shape[1]
        for name in ("completion_ids", "completion_mask", "step_map", "origin", "block"):
            mine, theirs = getattr(alone, name)[0], getattr(together, name)[number, :length]
            holds(torch.equal(mine, theirs), f"row {number}: {name} is {mine.tolist()} alone, {theirs.tolist()} not")
        for name in ("own_logps", "drawn_logps"):
            mine, theirs = getattr(alone, name), getattr(together, name)[number : number + 1, :length]
            holds(torch.equal(mine.isnan(), theirs.isnan()), f"row {number}: {name} is known in other columns alone")
            _near(mine.nan_to_num(), theirs.nan_to_num(), near, f"{name} of row {number} alone")
        steps = int(alone.forwards[0])
        holds(int(together.forwards[number]) == steps, f"row {number}: {steps} forwards alone")
        wide = alone.width[0].tolist(), together.width[number, :steps].tolist()
        holds(wide[0] == wide[1], f"row {number}: widths {wide[0]} alone, {wide[1]} among others")


def slices_cover_every_draw(trial: Trial) -> None:
    """Canvases are those that the forwards saw, and every draw that was kept is in one slice, however they are cut."""
    if not gives_rollouts(trial):
        return
    takes_back = trial.parts.sampler.traits.revocable or trial.parts.blocks.traits.rolls_back
    rollouts, canvases = _watched(trial, takes_back)
    for row, canvases_shown in enumerate(canvases):
        steps = rollouts.canvases(row)
        pad = int((rollouts.prompt_mask[row] == 0).sum())
        for number, (mine, theirs) in enumerate(zip(steps[:, pad:].tolist(), canvases_shown, strict=True), 1):
            holds(mine[: len(theirs)] == theirs, f"row {row}: {mine} is not the canvas of forward {number}, {theirs}")
    if "slices" in rollouts.limits:
        return
    draws = ((rollouts.origin == Origin.DRAWN) | (rollouts.origin == Origin.FORCED)).nonzero().tolist()
    for shrink in (1, 2, int(rollouts.forwards.max())):
        for by_block in (False, True):
            cells = slices_of(rollouts, shrink, by_block)
            cells_covered = sorted(zip(cells.row.tolist(), cells.column.tolist(), strict=True))
            holds(
                cells_covered == [tuple(draw) for draw in draws],
                f"shrink={shrink}: slices hold {cells_covered}, drawn were {draws}",
            )
            hidden = cells.canvases.masked[cells.cells.canvas, cells.cells.column]
            holds(bool(hidden.all()), f"shrink={shrink}: a column that is scored shows its token")


def _watched(trial: Trial, draws: bool) -> tuple[Rollouts, list[list[list[int]]]]:
    """The rollouts, and by row the canvas before each forward without padding, as the loop showed it."""
    rollouts, turns = law_rollouts(trial, draws=draws)
    canvases: list[list[list[int]]] = [[] for _ in trial.requests]
    for turn in turns:
        for row, name in enumerate(turn.canvas.row_id.tolist()):
            if bool(turn.active[row]):
                canvases[name].append(turn.canvas.tokens[row, : len(trial.requests[name].tokens)].tolist())
    return rollouts, canvases


def gradients_are_plain(trial: Trial) -> None:
    """The gradient of a weighted sum is that of plain autograd through one canvas at a time, without chunks, batches
    and shared canvases, whole or batch by batch, with layers kept or computed again."""
    if not gives_rollouts(trial):
        return
    rollouts, _ = law_rollouts(trial)
    if {"slices", "own"} & rollouts.limits.keys():
        return
    network = deepcopy(trial.network).requires_grad_(True)
    model, weights = law_model(network), list(network.parameters())
    share = torch.linspace(-1, 1, rollouts.step_map.numel(), dtype=network.dtype).view(rollouts.step_map.shape)
    plain = torch.autograd.grad(_plain_sum(rollouts, model, share), weights, allow_unused=True)
    gradients = torch.autograd.grad(
        (trajectory_logprobs(model, rollouts, rows=5) * share).sum(), weights, allow_unused=True
    )
    trajectory_backward(
        model, rollouts, lambda values, row, column: (values * share[row, column]).sum(), rows=3, checkpoint=True
    )
    for (name, weight), expected, once in zip(network.named_parameters(), plain, gradients, strict=True):
        if expected is None:
            continue
        scale = max(float(expected.abs().max()), 1.0)
        for how, mine in (("whole", once), ("by batches", weight.grad)):
            off = torch.inf if mine is None else float((mine - expected).abs().max()) / scale
            holds(off < SAME_GRADIENT, f"{name}: its gradient {how} is {off:.3g} off")


def _plain_sum(rollouts: Rollouts, model: Model, share: Tensor) -> Tensor:
    """The sum of share times log-probability by a definition without any economy."""
    total, network = torch.zeros((), dtype=share.dtype), model.transformer
    for row in range(len(rollouts)):
        pad = int((rollouts.prompt_mask[row] == 0).sum())
        start = int(rollouts.prompt_mask[row].sum())
        for step, canvas in enumerate(rollouts.canvases(row)[:, pad:], 1):
            width = int(rollouts.width[row, step - 1])
            tokens = canvas[None, :width]
            masked = (tokens == rollouts.mask_id) & (torch.arange(width) >= start)
            hidden = network.encode(tokens, None, masked, start)
            source = model.config.sources(masked, torch.tensor([start]))[0]
            logits = network.logits(hidden)[0, source].index_fill(1, torch.tensor([rollouts.mask_id]), -torch.inf)
            log_p = logits.log_softmax(-1)
            is_draw = (rollouts.origin[row] == Origin.DRAWN) | (rollouts.origin[row] == Origin.FORCED)
            for column in (is_draw & (rollouts.step_map[row] == step)).nonzero()[:, 0].tolist():
                token = int(rollouts.completion_ids[row, column])
                total = total + share[row, column] * log_p[start + column, token]
    return total
