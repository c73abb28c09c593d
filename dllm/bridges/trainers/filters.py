"""Filters as other people's trainers write them."""

from __future__ import annotations

from typing import TypedDict


class Filters(TypedDict):
    """Ours: fields of ``Sampling``, where None is off."""

    top_p: float | None
    top_k: int | None


def filters_of(top_p: float | None, top_k: int | None) -> Filters:
    """Theirs, where 1 switches top_p off, and 0 or -1 top_k."""
    return {"top_p": None if top_p is None or top_p >= 1 else float(top_p), "top_k": max(int(top_k or 0), 0) or None}
