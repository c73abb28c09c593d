"""What the forward that decided a position said of its token, and of those that were likeliest there."""

from __future__ import annotations

import torch

from dllm.contract import Turn
from dllm.record.turns import log_probabilities

Likeliest = list[tuple[int, float]]  # ids and their log-probabilities in nats, the likeliest first
POSITIONS_AT_ONCE = 32  # positions at once: their log-probabilities are float64, 1 MB each at a vocabulary of 126,464


@torch.inference_mode()
def likeliest(turn: Turn, row: int, count: int) -> dict[int, Likeliest]:
    """The ``count`` likeliest tokens by column of batch row ``row``, where a candidate of it wrote in this turn what
    the forward scored. The runner must offer logits (``Runner.offering``)."""
    logits = turn.view.scores.repropose
    assert logits is not None, "a forward offers its logits where it is asked to"
    changes = turn.step.written[turn.step.owner.row == row].any(0)
    columns = (changes & turn.view.scores.scored[row]).nonzero()[:, 0]
    tops: dict[int, Likeliest] = {}
    for some in columns.split(POSITIONS_AT_ONCE):
        numbers = logits.log_probabilities(torch.full_like(some, row), some)
        values, ids = numbers.topk(min(count, numbers.shape[-1]))
        for column, pairs in zip(some.tolist(), zip(ids.tolist(), values.tolist(), strict=True), strict=True):
            tops[column] = list(zip(*pairs, strict=True))
    return tops


@torch.inference_mode()
def own_and_drawn(turn: Turn, row: int) -> dict[tuple[int, int], tuple[float, float]]:
    """Both log-probabilities (``log_probabilities``) of what the candidates of batch row ``row`` wrote in this turn, by
    column and token. The runner must score (``Runner.scoring``)."""
    step, pairs = turn.step, dict[tuple[int, int], tuple[float, float]]()
    both = log_probabilities(turn)
    for candidate in (step.owner.row == row).nonzero()[:, 0].tolist():
        columns = step.written[candidate].nonzero()[:, 0]
        places = zip(columns.tolist(), step.tokens[candidate][columns].tolist(), strict=True)
        numbers = (values[candidate][columns].tolist() for values in both)
        pairs |= zip(places, zip(*numbers, strict=True), strict=True)
    return pairs
