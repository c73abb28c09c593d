"""The likeliest tokens of a position in the forward that decided it."""

from __future__ import annotations

import torch

from dllm.contract import Turn

Likeliest = list[tuple[int, float]]  # ids and their log-probabilities in nats, the likeliest first
POSITIONS_AT_ONCE = 32  # positions at once: their log-probabilities are float64, 1 MB each at a vocabulary of 126,464


@torch.inference_mode()
def likeliest(turn: Turn, row: int, count: int) -> dict[int, Likeliest]:
    """The ``count`` likeliest tokens by column of batch row ``row``, where a candidate of it wrote in this turn what
    the forward scored. The runner must offer logits (``Runner.offering``)."""
    offered = turn.view.scores.repropose
    assert offered is not None, "a forward offers its logits where it is asked to"
    written = turn.step.written[turn.step.owner.row == row].any(0)
    columns = (written & turn.view.scores.scored[row]).nonzero()[:, 0]
    found: dict[int, Likeliest] = {}
    for some in columns.split(POSITIONS_AT_ONCE):
        numbers = offered.log_probabilities(torch.full_like(some, row), some)
        values, ids = numbers.topk(min(count, numbers.shape[-1]))
        for column, pairs in zip(some.tolist(), zip(ids.tolist(), values.tolist(), strict=True), strict=True):
            found[column] = list(zip(*pairs, strict=True))
    return found
