"""Several calls of the network as one stream of rows.

Linear layers, norms and MLPs map every row by itself. So the rows of all calls go through them together: weights are
read once, and every operation is launched once. Only attention asks which rows belong together. There, each call's part
of the stream meets the call's own memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dllm.models.network.conditioning import Conditioning
from dllm.models.network.layer import RunLayer
from dllm.models.network.memory import Memory, Projected, by_call
from dllm.models.network.transformer import Transformer


@dataclass(frozen=True)
class Inputs:
    """What a call of the network takes, as ``Transformer.forward`` does."""

    tokens: Tensor  # [b, n] ids
    positions: Tensor  # [b, L] of the rotary embeddings
    memory: Memory  # where keys and values go
    columns: Tensor | None  # [b, n] of the canvas; None: all L in order
    conditioning: Conditioning | None = None  # embeddings from the forward before (None: no query is given one)
    run: RunLayer | None = None  # what runs its layers (None: the network)
    totals: Tensor | None = None  # [b, 1] columns of each row in all; None: no rotary embedding depends on them

    @property
    def more(self) -> dict[str, Any]:
        """What only some networks take."""
        options = {"conditioning": self.conditioning, "run": self.run, "totals": self.totals}
        return {name: value for name, value in options.items() if value is not None}


class Stream(Memory):
    """The memories of several calls of ``shapes`` (b, n). None of them may widen its forward."""

    def __init__(self, memories: Sequence[Memory], shapes: Sequence[tuple[int, int]]) -> None:
        assert not any(memory.widens for memory in memories), "a forward that widens is one call"
        self.memories, self.shapes = memories, shapes

    def attend(self, layer: int, fresh: Projected, columns: Tensor | None) -> Tensor:
        assert columns is not None, "a stream names the column of every row"
        calls = zip(self.memories, fresh.by_call(self.shapes), by_call(columns, self.shapes), strict=True)
        return torch.cat([memory.attend(layer, part, at).flatten(0, 1) for memory, part, at in calls])[None]


def run_together(model: Transformer, calls: Sequence[Inputs]) -> list[Tensor]:
    """Hidden rows [b, n, D] of each call, all run as one stream [1, sum of b n, D]."""
    shapes = [(len(call.tokens), call.tokens.shape[1]) for call in calls]
    tokens = torch.cat([call.tokens.flatten() for call in calls])[None]
    columns = torch.cat([call.columns.flatten() for call in calls if call.columns is not None])[None]
    positions = calls[0].positions[:1]  # a column has the same position in every row
    stream = Stream([call.memory for call in calls], shapes)
    conditionings = [call.conditioning for call in calls if call.conditioning is not None]
    more: dict[str, Any] = {"conditioning": Conditioning.joined(conditionings)} if conditionings else {}
    pairs = zip(calls, shapes, strict=True)
    lengths = [call.totals.expand(shape).flatten() for call, shape in pairs if call.totals is not None]
    if lengths:
        more["totals"] = torch.cat(lengths)[None]
    return by_call(model(tokens, positions, stream, columns, **more)[0], shapes)
