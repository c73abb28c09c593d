"""Rules that go by how sure a forward is that the text ends within the canvas: what they have in common."""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.common.errors import Set, in_range
from dllm.contract import Need, State, View
from dllm.contract.canvas import Canvas, PerRequest, per_row
from dllm.contract.clash import Clash
from dllm.contract.readouts import Statistic
from dllm.contract.setting import replaced
from dllm.contract.traits import LengthTraits
from dllm.models.text.ids import Ids
from dllm.parts.lengths.base import Length


class ByEnd(Length):
    """Base of rules that change rows by ``end_confidence``, ``factor`` columns at a time, within ``limit`` columns of
    an answer."""

    traits = LengthTraits(changes=True)
    per_request = ("limit",)
    clashes = (
        Clash(
            lambda c: (
                isinstance(most := c.part.limit, int | float) and c.gen_length is not None and most < c.gen_length
            ),
            "{length.limit} is less than {gen_length}, which an answer begins with.",
            [lambda c: Set("length.limit", c.gen_length), lambda c: Set("gen_length", c.part.limit)],
            at="gen_length",
        ),
    )

    def __init__(self, limit: PerRequest, factor: int, checked: int) -> None:
        in_range("length.limit", limit, 1)
        in_range("length.checked", checked, 1)
        self.limit, self.factor, self.checked = limit, factor, checked
        self.eos_id, self.most = -1, 1 << 30  # until they are resolved

    def resolved(self, ids: Ids, most: int) -> Length:
        return replaced(self, eos_id=ids.eos, most=most)

    def needs(self) -> tuple[Need, ...]:
        """What ``end_confidence`` reads."""
        return (Need("answer", committed=True, reads=Statistic.of("likeliest", "first")),)

    def start(self, canvas: Canvas) -> State:
        """The most columns of the answer in each row [B]: what was asked for, and what is left of ``most`` columns."""
        return {"limit": torch.minimum(per_row(self.limit, canvas).long(), self.most - canvas.start)}


def end_confidence(view: View, eos_id: int, checked: int) -> Tensor:
    """How sure a forward is that the text ends within the canvas [B], float32: probabilities of the last ``checked``
    columns of the answer, decided ones too, whose likeliest token is the end of the text, divided by ``checked``
    (DAEDAL, arXiv 2508.00819, as its code has it)."""
    canvas, scores = view.canvas, view.scores
    answer = scores.scored & (canvas.columns >= canvas.start[:, None]) & (canvas.columns < canvas.end[:, None])
    says_end = answer & (scores.statistic("likeliest") == eos_id)
    place = says_end.flip(1).cumsum(1).flip(1)  # 1 in the last of them
    is_last = says_end & (place <= checked)
    sure = scores.statistic("first")
    probabilities = sure.new_zeros(len(sure), checked + 1).scatter(1, place.masked_fill(~is_last, 0), sure * is_last)
    return (probabilities[:, 1:].sum(1) / checked).float()
