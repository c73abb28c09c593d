"""Find the size of a gap before it is filled (CAL, arXiv 2602.00476, as its released code has it)."""

from __future__ import annotations

from math import exp

from dllm.common.errors import Set, in_range
from dllm.contract.clash import ROWS_STAY, Clash
from dllm.contract.traits import LengthTraits
from dllm.parts.lengths.base import Length, Search


class Cal(Length):
    """Lay the gap with several numbers of masks, and ask the model once how sure it is of each: the mean probability of
    its likeliest tokens there. That falls with the length for every text; divided by the general fall (``bias``), it
    peaks near the true one. The search climbs from ``begin`` masks up to ``limit``, then down to 1.

    span: masks between two tries. misses: tries in a row without a better one, after which a direction ends. bias:
    false compares the means themselves; the fall was fitted on LLaDA-8B-Base.
    """

    traits = LengthTraits(changes=False, probes=True)
    clashes = (
        Clash(
            lambda c: c.part.begin > c.part.limit,
            "{length.begin} is more than {length.limit}.",
            [lambda c: Set("length.begin", c.part.limit), lambda c: Set("length.limit", c.part.begin)],
        ),
        Clash(
            lambda c: c.attention.name != "full",
            "{length} weighs a gap by the text after it, but this model's attention is {kind:value}.",
            [ROWS_STAY],
        ),
    )

    def __init__(self, limit: int = 64, begin: int = 8, span: int = 1, misses: int = 4, bias: bool = True) -> None:
        in_range("length.limit", limit, 1)
        in_range("length.begin", begin, 1)
        in_range("length.span", span, 1)
        in_range("length.misses", misses, 1)
        self.limit, self.begin, self.span, self.misses, self.bias = limit, begin, span, misses, bias

    def search(self, most: int) -> Search:
        limit, begin = min(self.limit, most), min(self.begin, most)
        best, top = begin, self.value(begin, (yield begin))
        for step in (self.span, -self.span):
            length, misses = begin + step, 0
            while 1 <= length <= limit and misses < self.misses:
                value = self.value(length, (yield length))
                better = value > top
                best, top, misses = (length, value, 0) if better else (best, top, misses + 1)
                length += step
        return best

    def value(self, length: int, sure: float) -> float:
        """What a mean probability of a gap of ``length`` masks is worth."""
        return sure / (exp(-1.77 * length) + 0.56 * exp(-0.06 * length) + 0.24) if self.bias else sure
