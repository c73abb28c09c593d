"""End a row when the text without a gap holds a stop token (WeDLM's engine, arXiv 2512.22737)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dllm.common.errors import Set, in_range
from dllm.common.ranking import one_of
from dllm.contract import Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.clash import Clash
from dllm.contract.setting import replaced
from dllm.contract.traits import EosTraits
from dllm.models.text.ids import Ids
from dllm.parts.eos.base import EndOfText, after_first


class StopFront(EndOfText):
    """A row ends after the first stop token of its front: the answer up to its first mask. A stop token further right
    ends nothing yet. What is after the end leaves the canvas.

    stops: ids that end a text (None: the model's). limit: a row also ends when its front has that many tokens, although
    ``gen_length`` may be longer: masks after the limit are decoded with the rest, as WeDLM's window has them, and
    dropped (None: the answer's own length).
    """

    traits = EosTraits(at_once=True, shrinks=True, fills=False)
    clashes = (
        Clash(
            lambda c: c.part.limit is not None and c.part.limit < c.sampling.min_tokens,
            "{eos.limit} ends an answer before {sampling.min_tokens}.",
            [Set("eos.limit", None), lambda c: Set("sampling.min_tokens", c.part.limit)],
        ),
        Clash(
            lambda c: (
                (beyond := [stop for stop in c.part.stops or () if stop >= c.model.vocab])
                and {"one": beyond[0], "last": c.model.vocab - 1}
            ),
            "{eos.stops} holds {one:value}, but the model's ids end at {last:value}.",
            [Set("eos.stops", None)],
            "Or drop it.",
        ),
    )

    def __init__(self, stops: Sequence[int] | None = None, limit: int | None = None) -> None:
        in_range("eos.stops", stops, 0, advice="Give the ids of tokens, or {null} for the model's own.")
        in_range("eos.limit", limit, 1, advice="{null} is the answer's whole length.")
        self.stops, self.limit = stops if stops is None else tuple(stops), limit

    def resolved(self, ids: Ids) -> EndOfText:
        return self if self.stops is not None else replaced(self, stops=tuple(dict.fromkeys((ids.eos, *ids.stops))))

    def cut(self, candidates: Canvas, view: View, step: Step, ends: tuple[int, ...], full: Tensor) -> Canvas:
        length, at = len(candidates.columns), candidates.columns - candidates.start[:, None]
        gap = torch.where(candidates.undecided, candidates.columns, length).amin(1, keepdim=True)
        front = (at >= 0) & (candidates.columns < gap) & candidates.valid & candidates.tail
        last = one_of(candidates.tokens, ends if self.stops is None else self.stops) & ~candidates.given
        if self.limit is not None:
            last = last | (at >= self.limit - 1)
        end, has_end = after_first(candidates, front & last)
        return candidates.stop_at(end, has_end & (end < candidates.end), attended=False)
