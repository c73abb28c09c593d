"""What a trace says of the bits that every forward decided."""

from __future__ import annotations

from math import isnan, log2

from dllm.record.trace import Trace


def bits(trace: Trace) -> list[float]:
    """The sum of -log2 p over the tokens that each forward committed (of the kept candidate). Those whose probability
    is not known (None, nan) count as 0."""
    chances = [record.candidates[number].confidence for record, number in trace.path()]
    return [sum(-log2(max(p, 1e-300)) for p in turn if p is not None and not isnan(p)) for turn in chances]
