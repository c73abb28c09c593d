"""The likeliest sets that single additions lead to, found best first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

Addition = tuple[int, int]  # a place, and what is put there


class Weighed(NamedTuple):
    """An addition, and its weight among all that are possible."""

    addition: Addition
    weight: float


def best_first(
    guesses: Sequence[Weighed], steps: Sequence[Sequence[Addition]], *, trust: float, most: int, least: float
) -> list[frozenset[Addition]]:
    """At most ``most`` sets of additions, each of a chance of at least ``least``, smaller sets first.

    A set that is the first steps of ``steps`` grows by the next one with chance ``trust``. Else a set grows by one of
    the ``guesses`` at another place, with a chance in proportion to their weights. A set's chance is the sum over the
    ways that lead to it. None has all places.
    """
    chain = [frozenset[Addition]()]
    for step in steps:
        chain.append(chain[-1].union(step))
    following = dict(zip(chain, chain[1:], strict=False))
    guesses = sorted(guesses, key=lambda guess: -guess.weight)
    places = len({guess.addition[0] for guess in guesses})
    edge: dict[frozenset[Addition], float] = {chain[0]: 1.0}
    sets: dict[frozenset[Addition], None] = {}
    while edge and len(sets) <= most:
        here = max(edge, key=edge.__getitem__)
        chance = edge.pop(here)
        if chance < least and sets:
            break
        sets[here] = None
        ways = []
        if here in following:
            ways, chance = [(following[here], trust * chance)], chance * (1 - trust)
        if chance:
            ways += [(child, chance * share) for child, share in _children(here, guesses, least / chance)]
        for child, more in ways:
            if len(child) < places and child not in sets:
                edge[child] = edge.get(child, 0.0) + more
    return sorted(list(sets)[1:], key=len)


def _children(
    here: frozenset[Addition], guesses: Sequence[Weighed], least: float
) -> Iterator[tuple[frozenset[Addition], float]]:
    """The sets one addition larger, and their shares of at least ``least``. guesses: by falling weight."""
    places = {place for place, _ in here}
    free = [guess for guess in guesses if guess.addition[0] not in places]
    total = sum(guess.weight for guess in free)
    for addition, weight in free:
        if weight <= 0 or weight < least * total:
            break
        yield here | {addition}, weight / total
