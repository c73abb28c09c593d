"""A few cases that together show every part, and as many pairs of parts as they can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from heapq import heapify, heappop, heapreplace
from itertools import combinations as pairs
from typing import Any, TypeVar

CoveredCase = TypeVar("CoveredCase")  # a frozen dataclass of parts by name


def widest_first(listed: Sequence[CoveredCase], count: int) -> list[CoveredCase]:
    """So many of the cases, that each shows as many parts, then pairs of parts, as possible which those before it do
    not.

    What a case adds can only shrink, so the first one of the heap whose number still holds is the best of all.
    """
    listed = listed if count else []
    shown = [{*pairs(parts := parts_shown(case), 1), *pairs(parts, 2)} for case in listed]
    heap = [(-worth(new), at) for at, new in enumerate(shown)]
    seen: set[Any] = set()
    order: list[CoveredCase] = []
    heapify(heap)
    while heap and len(order) < count:
        promised, at = heap[0]
        adds = -worth(shown[at] - seen)
        if adds > promised:
            heapreplace(heap, (adds, at))
            continue
        heappop(heap)
        order.append(listed[at])
        seen |= shown[at]
    return order


def worth(new: set[tuple[Any, ...]]) -> int:
    """How much a case shows: a part that few combinations allow counts as twenty pairs, or none of them might come."""
    return sum(20 if len(shown) == 1 else 1 for shown in new)


def parts_shown(case: Any) -> list[tuple[str, Any]]:
    """The case's fields, and those of the cases inside it."""
    out: list[tuple[str, Any]] = []
    for entry in fields(case):
        value = getattr(case, entry.name)
        out += parts_shown(value) if is_dataclass(value) else [(entry.name, value)]
    return out
