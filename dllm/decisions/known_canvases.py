"""Which slots a model predicts: on models that decode block by block, or from left to right, not all."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dllm.decisions.reading import ReadQuery
from dllm.errors import UserError
from dllm.models.config import ModelConfig

_WAY_OUT = "Use estimator=local with slot=open, at the end of the answer, one question to a canvas."


def sees_behind(config: ModelConfig) -> bool:
    """Whether a mask sees all given text after it."""
    return config.attention.block is None


def refuse_unknown_canvases(config: ModelConfig, queries: Sequence[ReadQuery]) -> None:
    """Raise UserError for canvases that the model's attention was not made for: a slot that it does not predict while
    text before it is masked, or text after the slot that it does not see."""
    kind, canvases = config.attention, [query.canvas for query in queries]
    if kind.name == "full":
        return
    length = max(len(canvas.tokens) for canvas in canvases)
    masked = torch.tensor([[at in canvas.masked for at in range(length)] for canvas in canvases])
    start = torch.tensor([canvas.start for canvas in canvases])
    order = kind.order(masked, start)
    if order is None:
        return
    predicted, sources = kind.predicted(masked, start), config.sources(masked, start)
    pieces = kind.pieces(masked, start)
    for row, query in enumerate(queries):
        first = min(query.canvas.masked)
        for column, _ in query.wanted:
            alone = predicted is not None and not bool(predicted[row, column])
            early = kind.block is not None and bool(pieces[row, column] > pieces[row, first])
            if alone or early:
                raise UserError(
                    f"this model is {kind.is_called}: it decodes one block at a time, and does not predict a position "
                    f"while text that comes first is masked. {_WAY_OUT}"
                )
            given = range(column + 1, len(query.canvas.tokens))
            reach = order.reach[row, sources[row, column]]
            if any(at not in query.canvas.masked and bool(order.rank[row, at] > reach) for at in given):
                raise UserError(
                    f"this model is {kind.is_called}: it decodes one block at a time, and a position does not see the "
                    f"text behind its block. {_WAY_OUT}"
                )
